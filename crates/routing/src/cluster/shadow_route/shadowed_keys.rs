//! Which keys a shadow copies.

use crate::{KeyFraction, RuntimeVariables, key::routing_key};
use bytes::Bytes;
use lookaside_protocol::Request;
use std::{collections::BTreeSet, sync::Arc};

/// The keys of one shadow.
#[derive(Clone, Debug)]
pub enum ShadowedKeys {
    /// No key.
    None,
    /// A part of all keys.
    Fraction(KeyFraction),
    /// The part that a variable names, or `otherwise` while there is no such variable.
    Variable {
        /// The name of the variable.
        name: Arc<str>,
        /// All variables.
        variables: RuntimeVariables,
        /// `None`: no key.
        otherwise: Option<KeyFraction>,
    },
    /// These routing keys.
    Listed(Arc<BTreeSet<Bytes>>),
}

impl ShadowedKeys {
    /// The keys at this moment, for one batch.
    pub(super) fn now(&self) -> KeysNow<'_> {
        match self {
            ShadowedKeys::None => KeysNow::Fraction(None),
            ShadowedKeys::Fraction(fraction) => KeysNow::Fraction(Some(*fraction)),
            ShadowedKeys::Variable { name, variables, otherwise } => {
                KeysNow::Fraction(variables.key_fraction(name).or(*otherwise))
            }
            ShadowedKeys::Listed(keys) => KeysNow::Listed(keys),
        }
    }
}

pub(super) enum KeysNow<'a> {
    Fraction(Option<KeyFraction>),
    Listed(&'a BTreeSet<Bytes>),
}

impl KeysNow<'_> {
    pub(super) fn contains(&self, request: &Request<Bytes>) -> bool {
        match self {
            KeysNow::Fraction(None) => false,
            KeysNow::Fraction(Some(fraction)) => fraction.contains(request),
            KeysNow::Listed(keys) => keys.contains(&*routing_key(request)),
        }
    }
}
