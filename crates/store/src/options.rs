//! The options of a store.

/// Options of a [`crate::Store`].
#[derive(Clone, Debug)]
pub struct Options {
    /// All memory for items, their metadata and the index, in bytes (`-m`). Default 64 MiB, as memcached.
    pub memory_bytes_max: usize,
    /// The memory limit can be raised up to this ([`crate::Store::set_memory_limit`]), in bytes: address space for it
    /// is reserved. Default 0: it cannot be raised above `memory_bytes_max`. Without effect for a store in a named
    /// region.
    pub memory_bytes_reserved: usize,
    /// The largest value with its key and header, in bytes (`-I`). Default 1 MiB, as memcached.
    pub item_bytes_max: usize,
    /// A key gets at most one lease token in this time, in milliseconds, unless the first is used or voided by a
    /// delete or another store. Default 10,000 (§3.2.1). At 0 every miss gets a token: thundering herds are not held
    /// back, stale sets still are.
    pub lease_interval_ms: u32,
    /// The paper's rule to the letter: no new token before the interval is over, even after a delete.
    /// Default false: see `docs/deviations/001-lease-after-delete.md`.
    pub lease_interval_outlasts_delete: bool,
    /// How long a deleted value may still be shown as stale, in milliseconds. Default 10,000; 0 keeps none.
    pub stale_ms: u32,
    /// Each slab class has chunks larger than those of the one before by this factor (`-f`), 1.05 to 4. Default 1.07
    /// (§6.2). More waste at the ends of chunks when large; more classes that share the memory when small.
    pub growth_factor: f64,
    /// The smallest chunk, header included, in bytes (`-n`), 48 to 1024. Default 64 (§6.2).
    pub chunk_bytes_min: usize,
    /// Whether pages move between classes as their needs change (§6.2). Default true. If false, a page moves only to a
    /// class that has none.
    pub rebalance: bool,
    /// Classes are compared by the age of the items that they evict, times (chunk size)^this. Default 0.5; 0 is the
    /// paper's rule; larger values favour many small items over few large ones.
    pub age_exponent: f64,
    /// Items with an exptime of up to this many seconds leave memory in the second in which they expire (§6.3); others
    /// when a look-up or eviction finds them. Default 60, at most 60; 0 is off.
    pub transient_s: u32,
    /// Whether live items are evicted for new ones (`-M` is false). Default true. If false, a store that finds no free
    /// memory, nor items that have expired or are stale, is refused.
    pub evictions: bool,
    /// Makes the lease tokens of two servers, or of two processes of one server, differ.
    pub seed: u64,
    /// The seed of the hash of keys ([`crate::KeyHasher`]). Default 0. A server's is random and secret, so that no
    /// client can choose keys that evict each other. A store that is restored keeps the seed that it was saved with.
    pub hash_seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            memory_bytes_max: 64 << 20,
            memory_bytes_reserved: 0,
            item_bytes_max: 1 << 20,
            lease_interval_ms: 10_000,
            lease_interval_outlasts_delete: false,
            stale_ms: 10_000,
            growth_factor: 1.07,
            chunk_bytes_min: 64,
            rebalance: true,
            age_exponent: 0.5,
            transient_s: 60,
            evictions: true,
            seed: 0,
            hash_seed: 0,
        }
    }
}

impl Options {
    /// Factors nearer to 1 would make more classes than a byte can number.
    pub(crate) const GROWTH_FACTOR_MIN: f64 = 1.05;
    pub(crate) const GROWTH_FACTOR_MAX: f64 = 4.0;
    pub(crate) const CHUNK_BYTES_MIN: usize = 48;
    pub(crate) const CHUNK_BYTES_MAX: usize = 1024;
}

/// Why a store could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionsError {
    /// Less memory than the smallest store needs.
    MemoryTooSmall {
        /// The memory of the options.
        memory_bytes: usize,
        /// The memory needed.
        needed_bytes: usize,
    },
    /// An item must fit in half of the memory.
    ItemTooLarge {
        /// The item size of the options.
        item_bytes: usize,
        /// The largest size allowed.
        limit_bytes: usize,
    },
    /// The growth factor is out of range.
    GrowthFactor {
        /// The factor of the options.
        growth_factor: String,
    },
    /// The smallest chunk is out of range.
    ChunkSize {
        /// The chunk size of the options.
        chunk_bytes: usize,
    },
    /// The system could not give the memory.
    NoMemory {
        /// The memory requested.
        memory_bytes: usize,
        /// The system's error.
        reason: String,
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
            OptionsError::GrowthFactor { growth_factor } => {
                let (least, most) = (Options::GROWTH_FACTOR_MIN, Options::GROWTH_FACTOR_MAX);
                write!(f, "a growth factor of {growth_factor} is not between {least} and {most}")
            }
            OptionsError::ChunkSize { chunk_bytes } => {
                let (least, most) = (Options::CHUNK_BYTES_MIN, Options::CHUNK_BYTES_MAX);
                write!(f, "a smallest chunk of {chunk_bytes} bytes is not between {least} and {most}")
            }
            OptionsError::NoMemory { memory_bytes, reason } => {
                write!(f, "the system gives no {memory_bytes} bytes of memory: {reason}")
            }
        }
    }
}
