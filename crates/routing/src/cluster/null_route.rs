//! Answers as an empty cache would, and asks nobody.
//!
//! | verb | answer |
//! |---|---|
//! | get gets gat gats lease-get metaget | a miss, without a lease: nobody could accept the fill |
//! | set add replace append prepend cas lease-set | `NOT_STORED` |
//! | delete incr decr touch | `NOT_FOUND` |

use crate::{
    Batch, BoxFuture, Context, Outcome, Outcomes, Route,
    split::at_once,
    verb::{Kind, Verb},
};
use bytes::Bytes;
use lookaside_protocol::{Operation, Reply};

/// The route to nowhere that is no error.
pub struct NullRoute;

impl Route for NullRoute {
    fn route<'a>(&'a self, batch: Batch, _context: &'a Context) -> BoxFuture<'a, Outcomes> {
        at_once(batch.iter().map(|request| nothing_there(&request.operation)).collect())
    }
}

fn nothing_there(operation: &Operation<Bytes>) -> Outcome {
    let verb = Verb::of(operation);
    Ok(match (verb.kind(), verb) {
        (Kind::Read, _) => Reply::Miss,
        (Kind::Delete, _) | (_, Verb::Incr | Verb::Decr | Verb::Touch) => Reply::NotFound,
        (Kind::Update, _) => Reply::NotStored,
    })
}
