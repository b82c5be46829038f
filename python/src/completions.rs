//! Replies on their way to an event loop. The engine's thread queues them and writes to an eventfd that the loop
//! watches; the loop's thread then completes the futures of all that have arrived. The engine's thread never takes the
//! GIL.

use crate::connection::Connection;
use crate::error::{name_key, typed_error};
use crate::key::key_text;
use crate::markers::source_name;
use crate::options::Settings;
use crate::positions::positions;
use crate::read::LoadFailed;
use crate::results::{Found, ReadValues, found_content, found_values, read_error};
use crate::updates::{Updated, update_result};
use crate::waiting::Inside;
use bytes::Bytes;
use lookaside_client::{Content, ReadFrom, TypedError, TypedReadError};
use lookaside_sync::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyList;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::sync::oneshot;

/// The values that a loader returned, and the future of what follows; dropped if it failed.
pub(crate) type Loaded = oneshot::Sender<(Vec<Content>, Py<PyAny>)>;

/// What a future becomes.
pub(crate) enum Reply {
    /// The value of a key, or the default.
    Value {
        key: Bytes,
        found: Found,
        default: Py<PyAny>,
    },
    /// A dictionary of values by the names of their keys.
    Values {
        found: Result<Vec<Found>, TypedError>,
        keys: Vec<Bytes>,
        names: Vec<Py<PyAny>>,
    },
    Updated(Result<Updated, TypedError>),
    /// The values of a read: a list of them, and the indexes of those that cannot be decoded.
    Read {
        values: Vec<Content>,
    },
    /// Values that the application must load for a read.
    ToLoad {
        missing: Vec<Bytes>,
        from: Option<ReadFrom>,
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

/// One event loop's end of the client.
pub(crate) struct Completions {
    /// Whose settings say what becomes of a reply.
    connection: Arc<Connection>,
    pub(crate) event_loop: Py<PyAny>,
    arrived: Mutex<Arrived>,
    eventfd: OwnedFd,
    /// Futures that are not completed yet, and loaders that run.
    outstanding: AtomicUsize,
}

#[derive(Default)]
struct Arrived {
    completions: Vec<Completion>,
    /// The event loop is closed: nothing will be completed.
    is_abandoned: bool,
}

impl Completions {
    pub(crate) fn new(connection: Arc<Connection>, event_loop: Py<PyAny>) -> io::Result<Completions> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Completions { connection, event_loop, arrived: Mutex::default(), eventfd, outstanding: AtomicUsize::new(0) })
    }

    fn settings(&self) -> &Settings {
        &self.connection.settings
    }

    /// A future that will be completed here.
    pub(crate) fn create_future<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let future = self.event_loop.bind(py).call_method0("create_future")?;
        self.outstanding.fetch_add(1, Relaxed);
        Ok(future)
    }

    /// The number of futures that are not completed yet, and of loaders that run.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding.load(Relaxed)
    }

    /// What the event loop watches.
    pub(crate) fn descriptor(&self) -> i32 {
        self.eventfd.as_raw_fd()
    }

    /// Completes futures together, soon. Once the event loop is closed, they are dropped, which releases their leases.
    pub(crate) fn push(&self, completions: impl IntoIterator<Item = (Py<PyAny>, Reply)>) {
        let was_empty = {
            let mut arrived = self.arrived.lock();
            if arrived.is_abandoned {
                return;
            }
            let was_empty = arrived.completions.is_empty();
            arrived.completions.extend(completions.into_iter().map(|(future, reply)| Completion { future, reply }));
            was_empty
        };
        if was_empty {
            // It can only fail if the counter overflows, and then it is readable.
            let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        }
    }

    /// Completes the futures of all that has arrived. Runs on the loop's thread.
    pub(crate) fn complete_arrived(self: &Arc<Self>, py: Python<'_>) {
        let _inside = Inside::enter(py);
        let _ = rustix::io::read(&self.eventfd, &mut [0; 8]);
        let arrived = mem::take(&mut self.arrived.lock().completions);
        for Completion { future, reply } in arrived {
            self.complete(future.bind(py), reply);
        }
    }

    /// Drops what has arrived and all that will: the event loop is closed. A read that waits for its loader holds the
    /// engine, so it would never end.
    pub(crate) fn abandon(&self) {
        let arrived = {
            let mut arrived = self.arrived.lock();
            arrived.is_abandoned = true;
            mem::take(&mut arrived.completions)
        };
        drop(arrived);
    }

    fn complete(self: &Arc<Self>, future: &Bound<'_, PyAny>, reply: Reply) {
        self.outstanding.fetch_sub(1, Relaxed);
        // The other futures must be completed all the same.
        if let Err(error) = self.try_complete(future, reply) {
            error.write_unraisable(future.py(), Some(future));
        }
    }

    fn try_complete(self: &Arc<Self>, future: &Bound<'_, PyAny>, reply: Reply) -> PyResult<()> {
        // The caller was cancelled. Dropped, the reply releases its leases.
        if future.call_method0("done")?.is_truthy()? {
            return Ok(());
        }
        match reply.into_result(future.py(), self) {
            Ok(value) => future.call_method1("set_result", (value,))?,
            Err(error) => future.call_method1("set_exception", (error,))?,
        };
        Ok(())
    }

    /// Fails the future of a call that was not sent.
    pub(crate) fn fail(&self, future: &Bound<'_, PyAny>, error: &PyErr) -> PyResult<()> {
        self.outstanding.fetch_sub(1, Relaxed);
        if !future.call_method0("done")?.is_truthy()? {
            future.call_method1("set_exception", (error.value(future.py()),))?;
        }
        Ok(())
    }
}

impl Reply {
    fn into_result<'py>(self, py: Python<'py>, completions: &Arc<Completions>) -> PyResult<Bound<'py, PyAny>> {
        let values = completions.settings().values;
        match self {
            Reply::Value { key, found, default } => {
                let content = found_content(found).map_err(|error| typed_error(py, &error));
                let value = content.and_then(|content| match content {
                    Some(content) => values.decode(py, &content),
                    None => Ok(default.into_bound(py)),
                });
                value.map_err(|error| name_key(py, error, || key_text(&key)))
            }
            Reply::Values { found, keys, names } => {
                let names = names.into_iter().map(|name| name.into_bound(py));
                let found = found.map_err(|error| typed_error(py, &error))?;
                Ok(found_values(py, values, names, &keys, found)?.into_any())
            }
            Reply::Updated(updated) => update_result(py, updated),
            Reply::Read { values: found } => {
                let ReadValues { values, undecodable } = ReadValues::decode(py, values, &found)?;
                Ok((PyList::new(py, values)?, undecodable).into_pyobject(py)?.into_any())
            }
            Reply::ToLoad { missing, from, keys, names, loaded } => {
                let wanted = positions(&missing, &keys).map(|index| names[index].clone_ref(py)).collect();
                let loaded = Mutex::new(Some((loaded, RunningLoad::new(completions.clone()))));
                let request =
                    LoadRequest { completions: completions.clone(), names: wanted, keys: missing, from, loaded };
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
    completions: Arc<Completions>,
    /// The keys as the application has named them.
    names: Vec<Py<PyAny>>,
    /// The same as they were sent.
    keys: Vec<Bytes>,
    /// The database to load them from; `None` without remote markers.
    from: Option<ReadFrom>,
    /// `None` once it was used.
    loaded: Mutex<Option<(Loaded, RunningLoad)>>,
}

/// A loader that runs: while there is one, the client is not closed.
struct RunningLoad(Arc<Completions>);

impl RunningLoad {
    fn new(completions: Arc<Completions>) -> RunningLoad {
        completions.outstanding.fetch_add(1, Relaxed);
        RunningLoad(completions)
    }
}

impl Drop for RunningLoad {
    fn drop(&mut self) {
        self.0.outstanding.fetch_sub(1, Relaxed);
    }
}

#[pymethods]
impl LoadRequest {
    /// The keys, as the application has named them.
    #[getter]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.names.iter().map(|name| name.bind(py)))
    }

    /// The name of the database to load them from; `None` without remote markers.
    #[getter]
    fn source(&self) -> Option<&'static str> {
        self.from.map(source_name)
    }

    /// Passes on the loaded values, in the order of the keys; returns the future of what follows.
    fn succeed<'py>(&self, values: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = values.py();
        let _inside = Inside::enter(py);
        let name = |index: usize| key_text(&self.keys[index]);
        let values = self.completions.settings().values.encode_loaded(values, self.keys.len(), name)?;
        let future = self.completions.create_future(py)?;
        if let Some((loaded, _running)) = self.loaded.lock().take() {
            let _ = loaded.send((values, future.clone().unbind()));
        }
        Ok(future)
    }

    /// Ends the read: the loader has failed.
    fn fail(&self) {
        self.loaded.lock().take();
    }
}
