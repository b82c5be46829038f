//! The results of gets and reads as Python sees them, for both clients.

use crate::codec::ValueCodec;
use crate::error::{client_error, exception, name_key, typed_error};
use crate::key::key_text;
use crate::read::LoadFailed;
use lookaside_client::{ClientError, Content, ReadError, TypedError, TypedReadError};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// What a get has found.
pub(crate) type Found = Result<Option<Content>, TypedError>;

/// The value of a get; `None` on a miss. A lost, late or reordered datagram is a miss (§3.1 of the paper), which the
/// client has counted as an error.
pub(crate) fn found_content(found: Found) -> Result<Option<Content>, TypedError> {
    match found {
        Err(TypedError::Client(ClientError::DatagramLost { .. })) => Ok(None),
        found => found,
    }
}

/// The dictionary of the values that were found, by the caller's names of their keys; errors name keys as they were
/// sent. A key whose server fails, or refuses, is a miss, unless no server has answered: then the first error is that
/// of the call. Lost datagrams are misses, and no errors.
pub(crate) fn found_values<'py>(
    py: Python<'py>,
    codec: ValueCodec,
    names: impl IntoIterator<Item = Bound<'py, PyAny>>,
    keys: &[impl AsRef<[u8]>],
    found: Vec<Found>,
) -> PyResult<Bound<'py, PyDict>> {
    let dictionary = PyDict::new(py);
    let (mut is_answered, mut failure) = (false, None);
    for ((name, key), value) in names.into_iter().zip(keys).zip(found) {
        let key = || key_text(key.as_ref());
        match value {
            Ok(content) => {
                is_answered = true;
                if let Some(content) = content {
                    let value = codec.decode(py, &content).map_err(|error| name_key(py, error, key))?;
                    dictionary.set_item(name, value)?;
                }
            }
            Err(TypedError::Client(ClientError::DatagramLost { .. })) => {}
            Err(TypedError::Client(error)) => failure = failure.or(Some(error)),
            Err(error) => return Err(name_key(py, typed_error(py, &error), key)),
        }
    }
    match failure {
        Some(error) if !is_answered => Err(client_error(py, &error)),
        _ => Ok(dictionary),
    }
}

/// The values of a read, in the order of its keys.
pub(crate) struct ReadValues<'py> {
    /// `None` of Python in place of one that cannot be decoded.
    pub(crate) values: Vec<Bound<'py, PyAny>>,
    /// The indexes of those. They must be loaded, and stay in the cache until they expire or are deleted.
    pub(crate) undecodable: Vec<usize>,
}

impl<'py> ReadValues<'py> {
    /// An error is one that says nothing of a value: `KeyboardInterrupt`, say.
    pub(crate) fn decode(py: Python<'py>, codec: ValueCodec, found: &[Content]) -> PyResult<ReadValues<'py>> {
        let mut read = ReadValues { values: Vec::with_capacity(found.len()), undecodable: Vec::new() };
        for (index, content) in found.iter().enumerate() {
            let value = match codec.decode(py, content) {
                Err(error) if error.is_instance_of::<PyException>(py) => {
                    read.undecodable.push(index);
                    py.None().into_bound(py)
                }
                decoded => decoded?,
            };
            read.values.push(value);
        }
        Ok(read)
    }
}

pub(crate) fn read_error(py: Python<'_>, error: TypedReadError<LoadFailed>) -> PyErr {
    let name = match &error {
        TypedReadError::Read(ReadError::BadKey(_)) => "InvalidKeyError",
        TypedReadError::Read(_) => "LookasideError",
        TypedReadError::Encode(_) => "EncodeError",
    };
    exception(py, name, error.to_string())
}
