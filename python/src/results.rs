//! The results of gets and reads as Python sees them, for both clients.

use crate::codec::ValueCodec;
use crate::error::{exception, typed_error};
use crate::options::Settings;
use crate::read::LoadFailed;
use bytes::Bytes;
use lookaside_client::{ClientError, Content, ReadError, TypedError, TypedReadError};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// What a get has found.
pub(crate) type Found = Result<Option<Content>, TypedError>;

/// What a get by UDP has found: a lost, late or reordered datagram, which is an error like that of a server that refuses,
/// is a miss (§3.1 of the paper). The client has counted it as an error.
pub(crate) fn lost_as_miss(found: Found, is_udp: bool) -> Found {
    match found {
        Err(TypedError::Client(ClientError::Refused { .. })) if is_udp => Ok(None),
        found => found,
    }
}

/// The dictionary of the values that were found. Keys whose server did not answer are misses, unless that is so for
/// all.
pub(crate) fn found_values<'py>(
    py: Python<'py>,
    settings: &Settings,
    names: Vec<Bound<'py, PyAny>>,
    found: Result<Vec<Found>, TypedError>,
) -> PyResult<Bound<'py, PyDict>> {
    let found = found.map_err(|error| typed_error(py, &error))?;
    let found: Vec<Found> = found.into_iter().map(|found| lost_as_miss(found, settings.is_udp())).collect();
    if let Some(Err(error)) = found.first()
        && found.iter().all(|value| matches!(value, Err(TypedError::Client(_))))
    {
        return Err(typed_error(py, error));
    }
    let dictionary = PyDict::new(py);
    for (name, value) in names.into_iter().zip(found) {
        match value {
            Ok(Some(content)) => dictionary.set_item(name, settings.values.decode(py, &content)?)?,
            Ok(None) | Err(TypedError::Client(_)) => {}
            Err(error) => return Err(typed_error(py, &error)),
        }
    }
    Ok(dictionary)
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

/// The object by which the caller named a key.
pub(crate) fn name_of<'a, 'py>(
    key: &Bytes,
    full_keys: &[Bytes],
    names: &'a [Bound<'py, PyAny>],
) -> &'a Bound<'py, PyAny> {
    let index = full_keys.iter().position(|other| other == key);
    &names[index.expect("only keys of the read are loaded")]
}

pub(crate) fn read_error(py: Python<'_>, error: TypedReadError<LoadFailed>) -> PyErr {
    let name = match &error {
        TypedReadError::Read(ReadError::BadKey(_)) => "InvalidKeyError",
        TypedReadError::Read(_) => "LookasideError",
        TypedReadError::Encode(_) => "EncodeError",
    };
    exception(py, name, error.to_string())
}
