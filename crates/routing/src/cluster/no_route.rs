//! The end of a path that the configuration does not continue.
//!
//! | verb | answer |
//! |---|---|
//! | all | the failure "no route" and why |
//!
//! Not a handle that a configuration can name (that is `ErrorRoute`): selectors end here.

use crate::{Batch, BoxFuture, Context, Failure, Outcomes, Route, split::ready_outcomes};

/// Nowhere to go.
pub(crate) struct NoRoute(Failure);

impl NoRoute {
    pub(crate) fn new(why: &str) -> Self {
        NoRoute(Failure::NoRoute(why.into()))
    }
}

impl Route for NoRoute {
    fn route<'a>(&'a self, batch: Batch, _context: &'a Context) -> BoxFuture<'a, Outcomes> {
        ready_outcomes(vec![Err(self.0.clone()); batch.len()])
    }
}
