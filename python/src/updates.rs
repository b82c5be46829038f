//! The updates of both clients: from the arguments of a call to a request, and from its outcome to the call's result.

use crate::client_core::ClientCore;
use crate::error::{client_error, error_name, exception, name_key, typed_error};
use crate::key::{Key, checked_key, key_text};
use crate::markers::{WriteCore, mark_error, source_name};
use crate::options::{exptime, unix_s};
use bytes::Bytes;
use lookaside_client::{
    ClientError, Content, MarkError, ReadFrom, RegionalClient, RemoteWrite, TypedClient, TypedError,
};
use lookaside_sync::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// An update that `ClientCore` has prepared from a call's arguments, to be sent once: by `ClientCore.update`, which
/// blocks, or by that of a `Channel`.
#[pyclass(frozen, module = "lookaside._lookaside")]
pub(crate) struct PreparedUpdate(Mutex<Option<Update>>);

impl PreparedUpdate {
    pub(crate) fn new(update: Update) -> PreparedUpdate {
        PreparedUpdate(Mutex::new(Some(update)))
    }

    pub(crate) fn take(&self) -> PyResult<Update> {
        self.0.lock().take().ok_or_else(|| PyRuntimeError::new_err("an update is sent once"))
    }
}

/// A request that changes what is cached, or that asks for remote markers.
pub(crate) enum Update {
    Set { key: Bytes, content: Content, exptime: i64 },
    Add { key: Bytes, content: Content, exptime: i64 },
    Incr { key: Bytes, delta: u64 },
    Decr { key: Bytes, delta: u64 },
    Touch { key: Bytes, exptime: i64 },
    Delete { key: Bytes },
    SetMany { names: Vec<Py<PyAny>>, values: Vec<(Bytes, Content)>, exptime: i64 },
    DeleteMany { names: Vec<Py<PyAny>>, keys: Vec<Bytes> },
    BeginWrite { regional: RegionalClient, keys: Vec<Bytes> },
    FinishWrite { write: RemoteWrite },
    AbortWrite { write: RemoteWrite },
    FindSources { regional: RegionalClient, keys: Vec<Bytes> },
}

/// What became of it.
pub(crate) enum Updated {
    /// It was executed.
    Stored,
    /// Whether it was stored, or was there.
    Flag(bool),
    /// `None` if there was no value.
    Number(Option<u64>),
    SetMany {
        names: Vec<Py<PyAny>>,
        stored: Vec<Result<(), ClientError>>,
    },
    DeletedMany {
        names: Vec<Py<PyAny>>,
        deleted: Vec<Result<bool, ClientError>>,
    },
    Begun(Box<Result<RemoteWrite, MarkError>>),
    Sources(Vec<ReadFrom>),
}

impl Update {
    pub(crate) fn set(
        core: &ClientCore,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        ttl: Option<f64>,
    ) -> PyResult<Update> {
        let (key, content, exptime) = parse_store(core, key, value, ttl)?;
        Ok(Update::Set { key, content, exptime })
    }

    pub(crate) fn add(
        core: &ClientCore,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        ttl: Option<f64>,
    ) -> PyResult<Update> {
        let (key, content, exptime) = parse_store(core, key, value, ttl)?;
        Ok(Update::Add { key, content, exptime })
    }

    pub(crate) fn incr(core: &ClientCore, key: &Bound<'_, PyAny>, delta: &Bound<'_, PyAny>) -> PyResult<Update> {
        Ok(Update::Incr { key: full_key(core, key)?, delta: parse_delta(delta)? })
    }

    pub(crate) fn decr(core: &ClientCore, key: &Bound<'_, PyAny>, delta: &Bound<'_, PyAny>) -> PyResult<Update> {
        Ok(Update::Decr { key: full_key(core, key)?, delta: parse_delta(delta)? })
    }

    pub(crate) fn touch(core: &ClientCore, key: &Bound<'_, PyAny>, ttl: Option<f64>) -> PyResult<Update> {
        Ok(Update::Touch { key: full_key(core, key)?, exptime: exptime(key.py(), "ttl", ttl, unix_s)? })
    }

    pub(crate) fn delete(core: &ClientCore, key: &Bound<'_, PyAny>) -> PyResult<Update> {
        Ok(Update::Delete { key: full_key(core, key)? })
    }

    pub(crate) fn set_many(core: &ClientCore, mapping: &Bound<'_, PyAny>, ttl: Option<f64>) -> PyResult<Update> {
        let (mut names, mut values) = (Vec::new(), Vec::new());
        for item in mapping.call_method0("items")?.try_iter()? {
            let (name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item?.extract()?;
            values.push(encode_under(core, &name, &value)?);
            names.push(name.unbind());
        }
        Ok(Update::SetMany { names, values, exptime: exptime(mapping.py(), "ttl", ttl, unix_s)? })
    }

    pub(crate) fn delete_many(core: &ClientCore, keys: &Bound<'_, PyAny>) -> PyResult<Update> {
        let names: Vec<Bound<'_, PyAny>> = keys.try_iter()?.collect::<PyResult<_>>()?;
        let keys = names.iter().map(|name| full_key(core, name)).collect::<PyResult<_>>()?;
        Ok(Update::DeleteMany { names: names.into_iter().map(Bound::unbind).collect(), keys })
    }

    pub(crate) fn begin_write(core: &ClientCore, keys: &Bound<'_, PyAny>) -> PyResult<Update> {
        let py = keys.py();
        let full_key = |name: PyResult<Bound<'_, PyAny>>| {
            let key = full_key(core, &name?)?;
            match std::str::from_utf8(&key) {
                Ok(_) => Ok(key),
                Err(_) => {
                    let why = format!("the key {} is not UTF-8, so SQL cannot name it", key_text(&key));
                    Err(exception(py, "InvalidKeyError", why))
                }
            }
        };
        let keys = keys.try_iter()?.map(full_key).collect::<PyResult<_>>()?;
        Ok(Update::BeginWrite { regional: core.regional(py)?, keys })
    }

    pub(crate) fn find_sources(core: &ClientCore, keys: &Bound<'_, PyAny>) -> PyResult<Update> {
        let py = keys.py();
        let keys = keys.try_iter()?.map(|name| full_key(core, &name?)).collect::<PyResult<_>>()?;
        Ok(Update::FindSources { regional: core.regional(py)?, keys })
    }

    pub(crate) async fn send(self, client: &TypedClient) -> Result<Updated, TypedError> {
        let plain = client.client();
        Ok(match self {
            Update::Set { key, content, exptime } => {
                client.set(&key, &content, exptime).await?;
                Updated::Stored
            }
            Update::Add { key, content, exptime } => Updated::Flag(client.add(&key, &content, exptime).await?),
            Update::Incr { key, delta } => Updated::Number(plain.incr(&key, delta).await?),
            Update::Decr { key, delta } => Updated::Number(plain.decr(&key, delta).await?),
            Update::Touch { key, exptime } => Updated::Flag(plain.touch(&key, exptime).await?),
            Update::Delete { key } => Updated::Flag(plain.delete(&key).await?),
            Update::SetMany { names, values, exptime } => {
                let stored = match client.set_many(values, exptime).await {
                    // Nothing is known to be stored.
                    Err(TypedError::Client(error)) => names.iter().map(|_| Err(error.clone())).collect(),
                    stored => stored?,
                };
                Updated::SetMany { names, stored }
            }
            Update::DeleteMany { names, keys } => {
                Updated::DeletedMany { names, deleted: plain.delete_many(&keys).await? }
            }
            Update::BeginWrite { regional, keys } => {
                Updated::Begun(Box::new(regional.with_client(plain.clone()).begin_write(&keys).await))
            }
            Update::FinishWrite { write } => {
                write.with_client(plain.clone()).finish().await?;
                Updated::Stored
            }
            Update::AbortWrite { write } => {
                write.with_client(plain.clone()).abort().await?;
                Updated::Stored
            }
            Update::FindSources { regional, keys } => {
                let found = regional.with_client(plain.clone()).find_sources(&keys).await;
                Updated::Sources(found.map_err(ClientError::BadKey)?)
            }
        })
    }
}

impl Updated {
    /// The result of the call.
    pub(crate) fn into_result<'py>(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Updated::Stored => Ok(py.None().into_bound(py)),
            Updated::Begun(begun) => {
                let write = begun.map_err(|error| mark_error(py, &error))?;
                Ok(Bound::new(py, WriteCore(write))?.into_any())
            }
            Updated::Sources(sources) => Ok(PyList::new(py, sources.into_iter().map(source_name))?.into_any()),
            Updated::Flag(flag) => Ok(flag.into_pyobject(py)?.to_owned().into_any()),
            Updated::Number(number) => Ok(number.into_pyobject(py)?),
            Updated::SetMany { names, stored } => {
                let errors = PyDict::new(py);
                for (name, stored) in names.into_iter().zip(stored) {
                    if let Err(error) = stored {
                        errors.set_item(name, client_error(py, &error).into_value(py))?;
                    }
                }
                Ok(errors.into_any())
            }
            Updated::DeletedMany { names, deleted } => {
                let failed =
                    names.iter().zip(&deleted).filter_map(|(name, deleted)| Some((name, deleted.as_ref().err()?)));
                let failed: Vec<(&Py<PyAny>, &ClientError)> = failed.collect();
                if let Some((name, first)) = failed.first() {
                    let (count, all) = (failed.len(), deleted.len());
                    let why = format!("{count} of {all} keys may not be deleted, the first of them {name}: {first}");
                    return Err(exception(py, error_name(first), why));
                }
                let dictionary = PyDict::new(py);
                for (name, was_there) in names.into_iter().zip(deleted) {
                    dictionary.set_item(name, was_there.is_ok_and(|was_there| was_there))?;
                }
                Ok(dictionary.into_any())
            }
        }
    }
}

/// The result of a call, or its error.
pub(crate) fn update_result<'py>(py: Python<'py>, updated: Result<Updated, TypedError>) -> PyResult<Bound<'py, PyAny>> {
    updated.map_err(|error| typed_error(py, &error))?.into_result(py)
}

/// A key as it is sent.
pub(crate) fn full_key(core: &ClientCore, key: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    checked_key(key.py(), Key::new(&core.prefix, key)?)
}

fn parse_store(
    core: &ClientCore,
    key: &Bound<'_, PyAny>,
    value: &Bound<'_, PyAny>,
    ttl: Option<f64>,
) -> PyResult<(Bytes, Content, i64)> {
    let (key, content) = encode_under(core, key, value)?;
    Ok((key, content, exptime(value.py(), "ttl", ttl, unix_s)?))
}

fn encode_under(core: &ClientCore, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<(Bytes, Content)> {
    let key = full_key(core, key)?;
    let content = core.values().encode(value).map_err(|error| name_key(value.py(), error, || key_text(&key)))?;
    Ok((key, content))
}

fn parse_delta(delta: &Bound<'_, PyAny>) -> PyResult<u64> {
    delta.extract().map_err(|_| {
        exception(delta.py(), "ConfigurationError", format!("a delta of {delta}; expected an int from 0 to 2**64 - 1"))
    })
}
