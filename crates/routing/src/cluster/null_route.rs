//! Replies as an empty cache would; no server is asked.
//!
//! | verb | reply |
//! |---|---|
//! | get gets gat gats lease-get metaget | a miss, without a lease: there is no server that could accept the fill |
//! | set add replace append prepend cas lease-set | `NOT_STORED` |
//! | delete incr decr touch | `NOT_FOUND` |
//! | meta commands | `EN`, `NS` or `NF`, with the flags that a client wants returned |

use crate::{
    Batch, BoxFuture, Context, Outcome, Outcomes, Route,
    configuration::RouteType,
    meta,
    split::ready_outcomes,
    verb::{Verb, VerbKind},
};
use bytes::Bytes;
use lookaside_protocol::{Operation, Reply, Request};
use std::sync::Arc;

/// Replies as an empty cache would.
pub struct NullRoute;

impl Route for NullRoute {
    fn route<'a>(&'a self, batch: Batch, _context: &'a Context) -> BoxFuture<'a, Outcomes> {
        ready_outcomes(batch.iter().map(empty_cache_reply).collect())
    }
}

/// The reply of an empty cache.
pub(crate) fn empty_cache_reply(request: &Request<Bytes>) -> Outcome {
    if let Operation::Meta(meta) = &request.operation {
        return Ok(Reply::Meta(meta::empty_cache_reply(&request.key, meta)));
    }
    let verb = Verb::of(&request.operation);
    Ok(match (verb.kind(), verb) {
        (VerbKind::Read, _) => Reply::Miss,
        (VerbKind::Delete, _) | (_, Verb::Incr | Verb::Decr | Verb::Touch) => Reply::NotFound,
        (VerbKind::Update, _) => Reply::NotStored,
    })
}

pub(crate) const TYPE: RouteType = RouteType::without_arguments("NullRoute", |_, _| Arc::new(NullRoute));
