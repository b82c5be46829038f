//! What a value is: formats, compression, and the flags that tell both. Serves reads and writes of typed values; §3.1
//! of the paper ("serialization, compression").
//!
//! ```text
//!  a user's type  --ToContent-->  Content      --Codec-->  value, flags  ->  server
//!                                 format, bytes  compress
//! ```
//!
//! Invariants:
//! * What was not understood is an error, never another value: unknown flags, a format other than the type's, bytes
//!   behind the end.
//! * A value decompresses to at most [`Codec::decoded_bytes_max`] bytes.
//! * Integers and the mark of an absent row are never compressed: servers and other clients read them.

mod codec;
mod compression;
mod content;
mod error;
mod flags;

pub use codec::{Codec, Encoded};
#[cfg(feature = "json")]
pub use content::Json;
#[cfg(feature = "messagepack")]
pub use content::MessagePack;
pub use content::{Content, FromContent, ToContent};
pub use error::{DecodeError, EncodeError};
pub use flags::{Compression, Format, ValueFlags};
