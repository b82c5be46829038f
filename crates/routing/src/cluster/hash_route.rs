//! One child for each key, by hash (§2 of the paper: keys are spread over servers through consistent hashing).
//!
//! | verb | effect |
//! |---|---|
//! | all | sent to the child that the key's hash picks; with one child, to that one |
//!
//! A multiget is split here: each child is asked once, all at the same time.

use crate::{Batch, BoxFuture, Context, KeyHash, Outcomes, Picker, Route, split::split};
use std::sync::Arc;

/// Spreads keys over children.
pub struct HashRoute {
    children: Vec<Arc<dyn Route>>,
    picker: Picker,
}

impl HashRoute {
    /// Spreads keys over `children` by `hash`.
    ///
    /// # Panics
    /// If `hash` cannot spread keys over so many children ([`KeyHash::over`] says when).
    pub fn new(children: Vec<Arc<dyn Route>>, hash: KeyHash) -> Self {
        let picker = hash.over(children.len()).expect("a hash that fits its children");
        HashRoute { children, picker }
    }
}

impl Route for HashRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        if let [only] = &*self.children {
            return only.route(batch, context);
        }
        split(&self.children, batch, context, |request| self.picker.pick_for(request))
    }
}
