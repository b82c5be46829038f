//! What can be set about a store.

/// Settings of a [`crate::Store`].
#[derive(Clone, Debug)]
pub struct Options {
    /// All memory for items, their metadata and the index, in bytes (`-m`). Default 64 MiB, as memcached.
    pub memory_bytes_max: usize,
    /// The largest value with its key and header, in bytes (`-I`). Default 1 MiB, as memcached.
    pub item_bytes_max: usize,
    /// A key gets at most one lease token in this time, in milliseconds, unless a delete comes between. Default
    /// 10,000 (§3.2.1). At 0 every miss gets a token: herds are not held back, stale sets still are.
    pub lease_interval_ms: u32,
    /// The paper's rule to the letter: a delete does not make a new token available before the interval is over.
    /// Default false: see `docs/deviations/001-lease-after-delete.md`.
    pub lease_interval_outlasts_delete: bool,
    /// How long a deleted value may still be shown as stale, in milliseconds. Default 10,000; 0 keeps none.
    pub stale_ms: u32,
    /// What makes lease tokens of two servers, or of two lives of one server, differ.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            memory_bytes_max: 64 << 20,
            item_bytes_max: 1 << 20,
            lease_interval_ms: 10_000,
            lease_interval_outlasts_delete: false,
            stale_ms: 10_000,
            seed: 0,
        }
    }
}

/// Why a store could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionsError {
    /// Less memory than the smallest store needs.
    MemoryTooSmall {
        /// What was asked for.
        memory_bytes: usize,
        /// What is needed.
        needed_bytes: usize,
    },
    /// An item must fit in half of the memory.
    ItemTooLarge {
        /// What was asked for.
        item_bytes: usize,
        /// What is allowed.
        limit_bytes: usize,
    },
}

impl std::error::Error for OptionsError {}

impl std::fmt::Display for OptionsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OptionsError::MemoryTooSmall { memory_bytes, needed_bytes } => {
                write!(f, "{memory_bytes} bytes of memory are too few: at least {needed_bytes} are needed")
            }
            OptionsError::ItemTooLarge { item_bytes, limit_bytes } => {
                write!(f, "items of {item_bytes} bytes are too large: at most {limit_bytes} fit this memory")
            }
        }
    }
}
