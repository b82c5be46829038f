//! The calls of `lookaside.AsyncClient`: a channel between one event loop and the engine's thread.
//!
//! The calls of one turn of the loop travel together: the first schedules `flush`, which runs when the turn has ended,
//! and sends all of them as one task. Their gets become one batch.

use crate::completions::{Completions, Reply};
use crate::connection::Connection;
use crate::engine::Engine;
use crate::key::{Key, checked_key};
use crate::options::{Settings, parse_timeout};
use crate::read::{Read, Step};
use crate::sync_client::ClientCore;
use crate::updates::Update;
use bytes::Bytes;
use lookaside_client::{Content, TypedError};
use lookaside_sync::Mutex;
use pyo3::prelude::*;
use std::mem;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Connects an event loop to the client.
#[pyclass(frozen, module = "lookaside._lookaside")]
pub(crate) struct Channel {
    completions: Arc<Completions>,
    /// The calls of this turn of the loop.
    submitted: Mutex<Vec<Call>>,
}

struct Call {
    future: Py<PyAny>,
    /// `None` for the default one.
    timeout: Option<Duration>,
    request: Request,
}

enum Request {
    Get { key: Bytes, default: Py<PyAny> },
    GetMany { keys: Vec<Bytes>, names: Vec<Py<PyAny>> },
    Update(Update),
    Read { read: Read, keys: Vec<Bytes>, names: Arc<Vec<Py<PyAny>>> },
}

#[pymethods]
impl Channel {
    #[new]
    fn new(core: Py<ClientCore>, event_loop: Py<PyAny>) -> PyResult<Channel> {
        let completions = Arc::new(Completions::new(core, event_loop)?);
        Ok(Channel { completions, submitted: Mutex::default() })
    }

    /// What the event loop must watch, to call `complete` when it is readable.
    fn fileno(&self) -> i32 {
        self.completions.descriptor()
    }

    #[getter]
    fn event_loop<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.completions.event_loop.bind(py)
    }

    /// The number of futures that are not completed yet.
    #[getter]
    fn outstanding(&self) -> usize {
        self.completions.outstanding()
    }

    fn complete(&self, py: Python<'_>) {
        self.completions.complete_arrived(py);
    }

    fn get<'py>(
        slf: &Bound<'py, Self>,
        key: &Bound<'py, PyAny>,
        default: Py<PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let key = slf.get().key(key)?;
        Channel::submit(slf, timeout, Request::Get { key, default })
    }

    fn get_many<'py>(
        slf: &Bound<'py, Self>,
        keys: &Bound<'py, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let names: Vec<Bound<'py, PyAny>> = keys.try_iter()?.collect::<PyResult<_>>()?;
        let keys = names.iter().map(|name| slf.get().key(name)).collect::<PyResult<_>>()?;
        let names = names.into_iter().map(Bound::unbind).collect();
        Channel::submit(slf, timeout, Request::GetMany { keys, names })
    }

    fn set<'py>(
        slf: &Bound<'py, Self>,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        ttl: Option<f64>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Channel::submit(slf, timeout, Request::Update(Update::set(slf.get().core(), key, value, ttl)?))
    }

    fn add<'py>(
        slf: &Bound<'py, Self>,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        ttl: Option<f64>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Channel::submit(slf, timeout, Request::Update(Update::add(slf.get().core(), key, value, ttl)?))
    }

    fn incr<'py>(
        slf: &Bound<'py, Self>,
        key: &Bound<'py, PyAny>,
        delta: &Bound<'py, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Channel::submit(slf, timeout, Request::Update(Update::incr(slf.get().core(), key, delta)?))
    }

    fn decr<'py>(
        slf: &Bound<'py, Self>,
        key: &Bound<'py, PyAny>,
        delta: &Bound<'py, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Channel::submit(slf, timeout, Request::Update(Update::decr(slf.get().core(), key, delta)?))
    }

    fn touch<'py>(
        slf: &Bound<'py, Self>,
        key: &Bound<'py, PyAny>,
        ttl: Option<f64>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Channel::submit(slf, timeout, Request::Update(Update::touch(slf.get().core(), key, ttl)?))
    }

    fn delete<'py>(
        slf: &Bound<'py, Self>,
        key: &Bound<'py, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Channel::submit(slf, timeout, Request::Update(Update::delete(slf.get().core(), key)?))
    }

    fn set_many<'py>(
        slf: &Bound<'py, Self>,
        mapping: &Bound<'py, PyAny>,
        ttl: Option<f64>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Channel::submit(slf, timeout, Request::Update(Update::set_many(slf.get().core(), mapping, ttl)?))
    }

    fn delete_many<'py>(
        slf: &Bound<'py, Self>,
        keys: &Bound<'py, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Channel::submit(slf, timeout, Request::Update(Update::delete_many(slf.get().core(), keys)?))
    }

    /// The future is a list of values, or a `LoadRequest`.
    #[allow(clippy::too_many_arguments, reason = "Python's keyword arguments")]
    fn read<'py>(
        slf: &Bound<'py, Self>,
        keys: Vec<Bound<'py, PyAny>>,
        ttl: Option<f64>,
        stale: bool,
        wait: f64,
        absent_ttl: f64,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, core) = (slf.py(), slf.get().core());
        let engine = core.connection.engine(py)?;
        let (full_keys, read) = core.start_read(py, &engine, &keys, ttl, stale, wait, absent_ttl, timeout)?;
        let names = Arc::new(keys.into_iter().map(Bound::unbind).collect());
        Channel::submit(slf, None, Request::Read { read, keys: full_keys, names })
    }

    /// Sends the calls of the turn that has ended.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let calls = mem::take(&mut *self.submitted.lock());
        let connection = &self.core().connection;
        match connection.engine(py) {
            Ok(engine) => {
                let (connection, completions) = (connection.clone(), self.completions.clone());
                let runtime = engine.handle().clone();
                runtime.spawn(send(engine, connection, completions, calls));
            }
            Err(error) => {
                for call in calls {
                    self.completions.fail(call.future.bind(py), &error)?;
                }
            }
        }
        Ok(())
    }
}

impl Channel {
    fn core(&self) -> &ClientCore {
        self.completions.core.get()
    }

    fn key(&self, key: &Bound<'_, PyAny>) -> PyResult<Bytes> {
        checked_key(key.py(), Key::new(&self.core().prefix, key)?)
    }

    fn submit<'py>(slf: &Bound<'py, Self>, timeout: Option<f64>, request: Request) -> PyResult<Bound<'py, PyAny>> {
        let (py, channel) = (slf.py(), slf.get());
        let timeout = timeout.map(|seconds| parse_timeout(py, seconds)).transpose()?;
        let future = channel.completions.create_future(py)?;
        let call = Call { future: future.clone().unbind(), timeout, request };
        let is_first = {
            let mut submitted = channel.submitted.lock();
            submitted.push(call);
            submitted.len() == 1
        };
        if is_first {
            channel.completions.event_loop.bind(py).call_method1("call_soon", (slf.getattr("flush")?,))?;
        }
        Ok(future)
    }
}

/// Sends the calls of one turn. The engine lives until the last of them has its reply.
async fn send(engine: Arc<Engine>, connection: Arc<Connection>, completions: Arc<Completions>, calls: Vec<Call>) {
    let (mut keys, mut waiting) = (Vec::new(), Vec::new());
    for call in calls {
        match call {
            Call { future, timeout: None, request: Request::Get { key, default } } => {
                keys.push(key);
                waiting.push((future, default));
            }
            call => {
                let (engine, connection, completions) = (engine.clone(), connection.clone(), completions.clone());
                tokio::spawn(async move { send_alone(&engine, &connection.settings, &completions, call).await });
            }
        }
    }
    if keys.is_empty() {
        return;
    }
    let client = engine.client(None, &connection.settings);
    let found: Vec<Result<Option<Content>, TypedError>> = match client.get_many(&keys).await {
        Ok(found) => found,
        Err(error) => keys.iter().map(|_| Err(error.clone())).collect(),
    };
    let reply = |((future, default), found)| (future, Reply::Value { found, default });
    completions.push(waiting.into_iter().zip(found).map(reply));
}

async fn send_alone(engine: &Engine, settings: &Settings, completions: &Completions, call: Call) {
    let Call { future, timeout, request } = call;
    let client = engine.client(timeout, settings);
    let reply = match request {
        Request::Get { key, default } => Reply::Value { found: client.get(&key).await, default },
        Request::GetMany { keys, names } => Reply::Values { found: client.get_many(&keys).await, names },
        Request::Update(update) => Reply::Updated(update.send(&client).await),
        Request::Read { read, keys, names } => return read_through(completions, future, read, keys, names).await,
    };
    completions.push([(future, reply)]);
}

async fn read_through(
    completions: &Completions,
    mut future: Py<PyAny>,
    mut read: Read,
    keys: Vec<Bytes>,
    names: Arc<Vec<Py<PyAny>>>,
) {
    loop {
        match read.next().await {
            Step::Done(values) => return completions.push([(future, Reply::Read { values })]),
            Step::Failed(error) => return completions.push([(future, Reply::ReadFailed(error))]),
            Step::ToLoad(missing) => {
                let (loaded, result) = oneshot::channel();
                let reply = Reply::ToLoad { missing, keys: keys.clone(), names: names.clone(), loaded };
                completions.push([(future, reply)]);
                // The loader has failed, or the caller was cancelled.
                let Ok((values, next)) = result.await else { return };
                read.load_succeeded(values);
                future = next;
            }
        }
    }
}
