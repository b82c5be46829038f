//! Settings of leases for clients that know none: of a `LeaseRoute`, or of every tree ([`super::Defaults`]).

use crate::LeaseScope;
use std::{str::FromStr, time::Duration};

/// What a store does whose client has not missed the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnleasedSet {
    /// It is stored: an old value can be stored after its delete.
    Pass,
    /// It is not.
    #[default]
    Refuse,
    /// It is stored if there is no value, and if the key has not been deleted for this long, in milliseconds.
    OnlyIfAbsent {
        /// The hold-off of deletes.
        hold_off_ms: u32,
    },
}

/// What becomes of a miss whose token another client holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotMisses {
    /// How long it is held back, and asked again meanwhile.
    pub wait: Duration,
    /// Whether the stale value is returned, if the server has one, instead of waiting.
    pub return_stale: bool,
}

/// The settings of a [`LeaseRoute`](crate::LeaseRoute).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseSettings {
    /// The connections over which a client may store what it has missed. Default [`LeaseScope::Connection`].
    pub scope: LeaseScope,
    /// Stores whose client has not missed the key. Default [`UnleasedSet::Refuse`].
    pub unleased_set: UnleasedSet,
    /// Misses whose token another client holds. Default 100 ms, and no stale values.
    pub hot_misses: HotMisses,
    /// How long a miss is remembered, in seconds. Default 10, the time between two tokens of a key.
    pub miss_age_s: u32,
}

impl Default for LeaseSettings {
    fn default() -> Self {
        LeaseSettings {
            scope: LeaseScope::default(),
            unleased_set: UnleasedSet::default(),
            hot_misses: HotMisses { wait: Duration::from_millis(HOT_MISS_WAIT_MS), return_stale: false },
            miss_age_s: MISS_AGE_S,
        }
    }
}

/// The default of `hot_miss_wait_ms`: many fills, and less than clients wait for a reply.
const HOT_MISS_WAIT_MS: u64 = 100;
/// The default of `miss_age_s`.
const MISS_AGE_S: u32 = 10;
/// The default of `hold_off_ms`: longer than most clients read the database.
const HOLD_OFF_MS: u32 = 2_000;

/// The values of `set_without_miss`.
pub(crate) const SET_WITHOUT_MISS: &str = "\"pass\", \"refuse\" or \"only-if-absent\"";

impl FromStr for UnleasedSet {
    type Err = String;

    fn from_str(word: &str) -> Result<UnleasedSet, String> {
        match word {
            "pass" => Ok(UnleasedSet::Pass),
            "refuse" => Ok(UnleasedSet::Refuse),
            "only-if-absent" => Ok(UnleasedSet::OnlyIfAbsent { hold_off_ms: HOLD_OFF_MS }),
            other => Err(format!("expected {SET_WITHOUT_MISS}, found {other:?}")),
        }
    }
}

/// The values of `scope`.
pub(crate) const SCOPE: &str = "\"connection\" or \"address\"";

impl FromStr for LeaseScope {
    type Err = String;

    fn from_str(word: &str) -> Result<LeaseScope, String> {
        match word {
            "connection" => Ok(LeaseScope::Connection),
            "address" => Ok(LeaseScope::Address),
            other => Err(format!("expected {SCOPE}, found {other:?}")),
        }
    }
}
