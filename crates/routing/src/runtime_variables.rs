//! Variables that an operator changes while the router runs, without a new configuration: the parts of all keys that
//! shadows copy.

use crate::KeyFraction;
use lookaside_sync::RwLock;
use std::{collections::BTreeMap, sync::Arc};

/// The variables of a router; clones share them. None at first.
#[derive(Clone, Debug, Default)]
pub struct RuntimeVariables(Arc<RwLock<BTreeMap<String, KeyFraction>>>);

impl RuntimeVariables {
    /// Replaces all variables.
    pub fn replace(&self, variables: BTreeMap<String, KeyFraction>) {
        *self.0.write() = variables;
    }

    /// The keys that the variable `name` stands for; `None` if there is no such variable.
    pub(crate) fn key_fraction(&self, name: &str) -> Option<KeyFraction> {
        self.0.read().get(name).copied()
    }
}
