//! The replies to refused commands of the text and meta protocols, in memcached's words.

/// No such verb.
pub const UNKNOWN: &str = "ERROR";
/// Too few arguments, an invalid key, or an argument that is not a number.
pub const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
/// The data block does not end where its length says.
pub const BAD_DATA_CHUNK: &str = "CLIENT_ERROR bad data chunk";
/// The value is over the limit.
pub const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";
/// No end of the line within the limit.
pub const LINE_TOO_LONG: &str = "CLIENT_ERROR line too long";
/// An exptime that is not a number.
pub const INVALID_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";
/// A delta that is not a number of 64 bits.
pub const INVALID_DELTA: &str = "CLIENT_ERROR invalid numeric delta argument";
