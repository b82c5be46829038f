//! The limits of both parsers.

/// Sizes beyond which a parser refuses a command or a reply.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The largest value, in bytes (memcached's `-I`).
    pub value_bytes_max: usize,
    /// The longest line of a command or a reply, in bytes; a get of many keys may be this long.
    pub line_bytes_max: usize,
}
