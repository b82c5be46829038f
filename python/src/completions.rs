//! Replies on their way to an event loop. The engine's thread queues them and writes to an eventfd that the loop watches;
//! the loop's thread then completes the futures of all that have arrived. The engine's thread never takes the GIL.

use crate::async_client::Channel;
use crate::error::{client_error, typed_error};
use crate::read::LoadFailed;
use crate::sync_client::{ClientCore, found_values, name_of, read_error};
use bytes::Bytes;
use lookaside_client::{ClientError, Content, TypedError, TypedReadError};
use lookaside_sync::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyList;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use tokio::sync::oneshot;

/// The values that a loader returned, and the future of what follows; dropped if it failed.
pub(crate) type Loaded = oneshot::Sender<(Vec<Content>, Py<PyAny>)>;

/// What a future becomes.
pub(crate) enum Reply {
    /// A value, or the default.
    Value {
        found: Result<Option<Content>, TypedError>,
        default: Py<PyAny>,
    },
    /// A dictionary of values by the names of their keys.
    Values {
        found: Result<Vec<Result<Option<Content>, TypedError>>, TypedError>,
        names: Vec<Py<PyAny>>,
    },
    Stored(Result<(), TypedError>),
    Deleted(Result<bool, ClientError>),
    /// The values of a read.
    Read {
        values: Vec<Content>,
    },
    /// Values that the application must load for a read.
    ToLoad {
        missing: Vec<Bytes>,
        keys: Vec<Bytes>,
        names: Arc<Vec<Py<PyAny>>>,
        loaded: Loaded,
    },
    ReadFailed(TypedReadError<LoadFailed>),
}

struct Completion {
    future: Py<PyAny>,
    reply: Reply,
}

pub(crate) struct Completions {
    arrived: Mutex<Vec<Completion>>,
    eventfd: OwnedFd,
}

impl Completions {
    pub(crate) fn new() -> io::Result<Completions> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Completions { arrived: Mutex::default(), eventfd })
    }

    /// What the event loop watches.
    pub(crate) fn descriptor(&self) -> i32 {
        self.eventfd.as_raw_fd()
    }

    /// Completes futures together, soon.
    pub(crate) fn push(&self, completions: impl IntoIterator<Item = (Py<PyAny>, Reply)>) {
        let was_empty = {
            let mut arrived = self.arrived.lock();
            let was_empty = arrived.is_empty();
            arrived.extend(completions.into_iter().map(|(future, reply)| Completion { future, reply }));
            was_empty
        };
        if was_empty {
            // It can only fail if the counter overflows, and then it is readable.
            let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        }
    }

    /// Completes the futures of all that has arrived, and returns their number. Runs on the loop's thread.
    pub(crate) fn complete(&self, channel: &Bound<'_, Channel>) -> usize {
        let py = channel.py();
        let _ = rustix::io::read(&self.eventfd, &mut [0; 8]);
        let arrived = mem::take(&mut *self.arrived.lock());
        let completed = arrived.len();
        for Completion { future, reply } in arrived {
            let future = future.bind(py);
            // The others must be completed all the same.
            if let Err(error) = reply.complete(channel, future) {
                error.write_unraisable(py, Some(future));
            }
        }
        completed
    }
}

impl Reply {
    fn complete(self, channel: &Bound<'_, Channel>, future: &Bound<'_, PyAny>) -> PyResult<()> {
        // The caller was cancelled. Dropped, the reply releases its leases.
        if future.call_method0("done")?.is_truthy()? {
            return Ok(());
        }
        match self.into_result(channel) {
            Ok(value) => future.call_method1("set_result", (value,))?,
            Err(error) => future.call_method1("set_exception", (error,))?,
        };
        Ok(())
    }

    fn into_result<'py>(self, channel: &Bound<'py, Channel>) -> PyResult<Bound<'py, PyAny>> {
        let (py, core) = (channel.py(), &channel.get().core);
        let values = core.get().values();
        match self {
            Reply::Value { found, default } => match found.map_err(|error| typed_error(py, &error))? {
                Some(content) => values.decode(py, &content),
                None => Ok(default.into_bound(py)),
            },
            Reply::Values { found, names } => {
                let names = names.into_iter().map(|name| name.into_bound(py)).collect();
                Ok(found_values(py, values, names, found)?.into_any())
            }
            Reply::Stored(stored) => {
                stored.map_err(|error| typed_error(py, &error))?;
                Ok(py.None().into_bound(py))
            }
            Reply::Deleted(deleted) => {
                let was_there = deleted.map_err(|error| client_error(py, &error))?;
                Ok(was_there.into_pyobject(py)?.to_owned().into_any())
            }
            Reply::Read { values: found } => {
                let found = found.iter().map(|content| values.decode(py, content)).collect::<PyResult<Vec<_>>>()?;
                Ok(PyList::new(py, found)?.into_any())
            }
            Reply::ToLoad { missing, keys, names, loaded } => {
                let names: Vec<_> = names.iter().map(|name| name.bind(py).clone()).collect();
                let wanted = missing.iter().map(|key| name_of(key, &keys, &names).clone().unbind()).collect();
                let (core, channel) = (core.clone_ref(py), channel.clone().unbind());
                let request = LoadRequest { core, channel, keys: wanted, loaded: Mutex::new(Some(loaded)) };
                Ok(Bound::new(py, request)?.into_any())
            }
            Reply::ReadFailed(error) => Err(read_error(py, error)),
        }
    }
}

/// Keys whose values the application must load for a read. Dropped without values, it ends the read, which releases its
/// leases.
#[pyclass(frozen, module = "lookaside._lookaside")]
pub(crate) struct LoadRequest {
    core: Py<ClientCore>,
    channel: Py<Channel>,
    keys: Vec<Py<PyAny>>,
    /// `None` once it was used.
    loaded: Mutex<Option<Loaded>>,
}

#[pymethods]
impl LoadRequest {
    /// The keys, as the application has named them.
    #[getter]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.keys.iter().map(|key| key.bind(py)))
    }

    /// Passes on the loaded values, in the order of the keys; returns the future of what follows.
    fn succeed<'py>(&self, values: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = values.py();
        let values = self.core.get().encode_loaded(values, self.keys.len())?;
        let future = self.channel.get().create_future(py)?;
        if let Some(loaded) = self.loaded.lock().take() {
            let _ = loaded.send((values, future.clone().unbind()));
        }
        Ok(future)
    }

    /// Ends the read: the loader has failed.
    fn fail(&self) {
        self.loaded.lock().take();
    }
}
