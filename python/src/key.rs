//! Keys: `str` or `bytes`, with the prefix of a client's pool in front.

use crate::error::{exception, typed_error};
use bytes::Bytes;
use lookaside_client::{ClientError, TypedError};
use lookaside_protocol::{KeyError, check_key};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyString};

/// Longer keys are cut in messages.
const SHOWN_BYTES_MAX: usize = 250;

/// A key that can be read without the GIL. A `str` is its UTF-8.
pub(crate) enum Key {
    Text(PyBackedStr),
    Bytes(PyBackedBytes),
    Prefixed(Vec<u8>),
}

impl Key {
    pub(crate) fn new(prefix: &[u8], key: &Bound<'_, PyAny>) -> PyResult<Key> {
        let plain = if let Ok(text) = key.cast::<PyString>() {
            Key::Text(PyBackedStr::try_from(text.clone())?)
        } else if let Ok(bytes) = key.cast::<PyBytes>() {
            Key::Bytes(PyBackedBytes::from(bytes.clone()))
        } else {
            let found = key.get_type().name()?;
            return Err(PyTypeError::new_err(format!("a key is str or bytes, not {found}: {}", key.repr()?)));
        };
        match prefix.is_empty() {
            true => Ok(plain),
            false => Ok(Key::Prefixed([prefix, plain.as_ref()].concat())),
        }
    }

    pub(crate) fn to_bytes(&self) -> Bytes {
        Bytes::copy_from_slice(self.as_ref())
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        match self {
            Key::Text(text) => text.as_bytes(),
            Key::Bytes(bytes) => bytes,
            Key::Prefixed(bytes) => bytes,
        }
    }
}

/// A key that servers accept.
pub(crate) fn checked_key(py: Python<'_>, key: Key) -> PyResult<Bytes> {
    match check_key(key.as_ref()) {
        Ok(()) => Ok(key.to_bytes()),
        Err(error) => Err(invalid_key(py, key.as_ref(), &error)),
    }
}

/// The error of a call with these keys, of which it names the first that no server accepts.
pub(crate) fn call_error(py: Python<'_>, keys: &[Key], error: &TypedError) -> PyErr {
    if let TypedError::Client(ClientError::BadKey(_)) = error {
        for key in keys {
            if let Err(error) = check_key(key.as_ref()) {
                return invalid_key(py, key.as_ref(), &error);
            }
        }
    }
    typed_error(py, error)
}

fn invalid_key(py: Python<'_>, key: &[u8], error: &KeyError) -> PyErr {
    exception(py, "InvalidKeyError", format!("bad key {}: {error}", key_text(key)))
}

/// A key as messages have it: text in quotes, cut if it is longer than any valid key.
pub(crate) fn key_text(key: &[u8]) -> String {
    let shown = key.get(..SHOWN_BYTES_MAX).unwrap_or(key);
    let rest = if shown.len() < key.len() { "..." } else { "" };
    format!("{:?}{rest}", String::from_utf8_lossy(shown))
}
