//! What can be set about a store.

/// Settings of a [`crate::Store`].
#[derive(Clone, Debug)]
pub struct Options {
    /// All memory for items, their metadata and the index, in bytes (`-m`). Default 64 MiB, as memcached.
    pub memory_bytes_max: usize,
    /// The largest value with its key and header, in bytes (`-I`). Default 1 MiB, as memcached.
    pub item_bytes_max: usize,
    /// A key gets at most one lease token in this time, in milliseconds, unless the first is used or a delete or
    /// another store comes between. Default 10,000 (§3.2.1). At 0 every miss gets a token: herds are not held back, stale sets still are.
    pub lease_interval_ms: u32,
    /// The paper's rule to the letter: nothing makes a new token available before the interval is over.
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

/// The smallest store.
const MEMORY_BYTES_MIN: usize = 64 << 10;
/// The largest items must leave a stripe room for others beside them.
const ITEMS_PER_STRIPE_MIN: usize = 4;
/// More stripes than this do not make waiting for one any rarer.
const STRIPES_MAX: usize = 256;

impl Options {
    /// Says how many stripes (as a power of two) this memory is cut into, if such a store can be.
    pub(crate) fn check(&self) -> Result<u32, OptionsError> {
        let memory_bytes = self.memory_bytes_max;
        if memory_bytes < MEMORY_BYTES_MIN {
            return Err(OptionsError::MemoryTooSmall { memory_bytes, needed_bytes: MEMORY_BYTES_MIN });
        }
        let limit_bytes = (memory_bytes / 2).min(u32::MAX as usize);
        if self.item_bytes_max > limit_bytes {
            return Err(OptionsError::ItemTooLarge { item_bytes: self.item_bytes_max, limit_bytes });
        }
        let stripe_bytes_min = (self.item_bytes_max * ITEMS_PER_STRIPE_MIN).max(MEMORY_BYTES_MIN);
        let stripes = (memory_bytes / stripe_bytes_min).clamp(1, STRIPES_MAX);
        Ok(stripes.ilog2())
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
