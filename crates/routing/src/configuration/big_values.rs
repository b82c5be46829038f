//! How large values are split, by the command line or by a `BigValueRoute`.

/// How large values are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BigValueSettings {
    /// The largest value that is not split, and the size of a chunk, in bytes; at least 1.
    pub split_threshold_bytes: usize,
    /// The chunks of one value that are sent together; 0 for all.
    pub batch_size: usize,
    /// Whether clients get values without [`BIG_VALUE_FLAG`](crate::BIG_VALUE_FLAG), as they have stored them.
    pub hides_flag: bool,
}

impl BigValueSettings {
    /// mcrouter's.
    pub const BATCH_SIZE: usize = 10;

    /// Values above this size are split, in bytes; else mcrouter's defaults.
    pub fn above(split_threshold_bytes: usize) -> Self {
        BigValueSettings { split_threshold_bytes, batch_size: Self::BATCH_SIZE, hides_flag: false }
    }
}
