//! The end of a path that the configuration does not continue.
//!
//! | verb | reply |
//! |---|---|
//! | all | the failure "no route" and the reason |
//!
//! Not a type of the configuration (that is `ErrorRoute`): selectors use it where no child is selected.

use crate::{Batch, BoxFuture, Context, Failure, Outcomes, Route, split::ready_outcomes};

/// Fails every request.
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
