//! Why a value could not be stored or read.

use super::flags::Format;
use std::fmt;

/// Why a value could not be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EncodeError {
    /// The library that writes the format refused it.
    Failed {
        /// The format.
        what: &'static str,
        /// Its message.
        why: String,
    },
    /// The crate was built without this compression.
    NotBuiltIn {
        /// The cargo feature.
        feature: &'static str,
    },
}

impl std::error::Error for EncodeError {}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EncodeError::Failed { what, why } => write!(f, "cannot write the value as {what}: {why}"),
            EncodeError::NotBuiltIn { feature } => {
                write!(f, "cannot compress the value: lookaside-client was built without the feature {feature}")
            }
        }
    }
}

/// Why a stored value could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// No format has these flags.
    UnknownFlags {
        /// The flags that the value was stored with.
        flags: u32,
    },
    /// The value is of another format than its reader's type.
    WrongFormat {
        /// The format of the type.
        expected: Format,
        /// The format of the value.
        found: Format,
    },
    /// The bytes are not what the flags claim.
    Malformed {
        /// The format or compression.
        what: &'static str,
        /// What is wrong.
        why: String,
    },
    /// The value decompresses to more bytes than allowed.
    TooLarge {
        /// The limit.
        bytes_max: usize,
    },
    /// The crate was built without this compression.
    NotBuiltIn {
        /// The cargo feature.
        feature: &'static str,
    },
}

impl std::error::Error for DecodeError {}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::UnknownFlags { flags } => {
                write!(f, "the value has flags {flags}, which mean nothing to this client: another client wrote it")
            }
            DecodeError::WrongFormat { expected, found } => write!(f, "the value is {found}, expected {expected}"),
            DecodeError::Malformed { what, why } => write!(f, "the value is not valid {what}: {why}"),
            DecodeError::TooLarge { bytes_max } => {
                write!(f, "the value decompresses to more than {bytes_max} bytes")
            }
            DecodeError::NotBuiltIn { feature } => {
                write!(f, "the value is compressed: lookaside-client was built without the feature {feature}")
            }
        }
    }
}
