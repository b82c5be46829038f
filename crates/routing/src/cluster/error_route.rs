//! Answers every request with an error, and asks nobody.
//!
//! | verb | answer |
//! |---|---|
//! | all | `SERVER_ERROR` and the text from the configuration |

use crate::{Batch, BoxFuture, Context, Outcomes, Route, split::at_once};
use bytes::Bytes;
use lookaside_protocol::{ErrorReply, Reply};

/// A refusal with a reason.
pub struct ErrorRoute {
    response: Bytes,
}

impl ErrorRoute {
    /// Refuses with `response`. Control characters, which would end the line early, become spaces.
    pub fn new(response: &str) -> Self {
        let line: String = response.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        ErrorRoute { response: line.into() }
    }
}

impl Route for ErrorRoute {
    fn route<'a>(&'a self, batch: Batch, _context: &'a Context) -> BoxFuture<'a, Outcomes> {
        let refusal = || Ok(Reply::Error(ErrorReply::Server(self.response.clone())));
        at_once(batch.iter().map(|_| refusal()).collect())
    }
}
