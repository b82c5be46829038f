//! Keys: `str` or `bytes`, with the prefix of a client's pool in front.

use crate::error::exception;
use bytes::Bytes;
use lookaside_protocol::check_key;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyString};

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
            return Err(PyTypeError::new_err(format!("a key is str or bytes, not {found}")));
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
        Err(error) => Err(exception(py, "InvalidKeyError", format!("bad key: {error}"))),
    }
}
