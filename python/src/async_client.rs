//! The calls of `lookaside.AsyncClient`: a channel between one event loop and the engine's thread.
//!
//! The calls of one turn of the loop travel together: the first schedules `flush`, which runs when the turn has ended,
//! and sends all of them as one task. Their gets become one batch.

use crate::client_core::ClientCore;
use crate::completions::{Completions, Reply};
use crate::engine::Engine;
use crate::key::{Key, checked_key};
use crate::options::parse_timeout;
use crate::read::{Read, Step};
use crate::results::Found;
use crate::updates::{PreparedUpdate, Update};
use crate::waiting::Inside;
use bytes::Bytes;
use lookaside_client::TypedClient;
use lookaside_sync::Mutex;
use pyo3::prelude::*;
use std::mem;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Connects an event loop to a client. Those of its pools share what an event loop watches.
#[pyclass(frozen, module = "lookaside._lookaside")]
pub(crate) struct Channel {
    core: Py<ClientCore>,
    completions: Arc<Completions>,
    /// The calls of this turn of the loop.
    submitted: Arc<Mutex<Vec<Call>>>,
}

struct Call {
    core: Py<ClientCore>,
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
        let completions = Arc::new(Completions::new(core.get().connection.clone(), event_loop)?);
        Ok(Channel { core, completions, submitted: Arc::default() })
    }

    /// The same for another client with these connections.
    fn with_core(&self, core: Py<ClientCore>) -> Channel {
        Channel { core, completions: self.completions.clone(), submitted: self.submitted.clone() }
    }

    /// What the event loop must watch, to call `complete` when it is readable.
    fn fileno(&self) -> i32 {
        self.completions.descriptor()
    }

    #[getter]
    fn event_loop<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.completions.event_loop.bind(py)
    }

    /// The number of futures that are not completed yet, and of loaders that run.
    #[getter]
    fn outstanding(&self) -> usize {
        self.completions.outstanding()
    }

    fn complete(&self, py: Python<'_>) {
        self.completions.complete_arrived(py);
    }

    /// The event loop is closed.
    fn abandon(&self) {
        self.completions.abandon();
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

    /// Sends an update.
    fn update<'py>(
        slf: &Bound<'py, Self>,
        prepared: &PreparedUpdate,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Channel::submit(slf, timeout, Request::Update(prepared.take()?))
    }

    /// The future is a list of values with the indexes of those that cannot be decoded, or a `LoadRequest`.
    #[allow(clippy::too_many_arguments, reason = "Python's keyword arguments")]
    fn read<'py>(
        slf: &Bound<'py, Self>,
        keys: Vec<Bound<'py, PyAny>>,
        ttls: Vec<Option<f64>>,
        stale: bool,
        wait: f64,
        absent_ttl: f64,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, core) = (slf.py(), slf.get().core());
        let engine = core.connection.engine(py)?;
        let (full_keys, read) = core.start_read(py, &engine, &keys, &ttls, stale, wait, absent_ttl, timeout)?;
        let names = Arc::new(keys.into_iter().map(Bound::unbind).collect());
        Channel::submit(slf, None, Request::Read { read, keys: full_keys, names })
    }

    /// Sends the calls of the turn that has ended.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let _inside = Inside::enter(py);
        let calls = mem::take(&mut *self.submitted.lock());
        let connection = &self.core().connection;
        match connection.engine(py) {
            Ok(engine) => {
                let turn = Turn::new(&engine, calls);
                let runtime = engine.handle().clone();
                runtime.spawn(send(engine, self.completions.clone(), turn));
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
        self.core.get()
    }

    fn key(&self, key: &Bound<'_, PyAny>) -> PyResult<Bytes> {
        checked_key(key.py(), Key::new(&self.core().prefix, key)?)
    }

    fn submit<'py>(slf: &Bound<'py, Self>, timeout: Option<f64>, request: Request) -> PyResult<Bound<'py, PyAny>> {
        let (py, channel) = (slf.py(), slf.get());
        let _inside = Inside::enter(py);
        let timeout = timeout.map(|seconds| parse_timeout(py, "timeout", seconds)).transpose()?;
        let future = channel.completions.create_future(py)?;
        let call = Call { core: channel.core.clone_ref(py), future: future.clone().unbind(), timeout, request };
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

/// The calls of one turn, each with the client that makes and counts it.
#[derive(Default)]
struct Turn {
    /// Each a batch.
    gets: Vec<GetBatch>,
    others: Vec<(TypedClient, Py<PyAny>, Request)>,
}

/// Gets with the default deadline that are counted together.
struct GetBatch {
    statistics_id: usize,
    client: TypedClient,
    keys: Vec<Bytes>,
    waiting: Vec<(Py<PyAny>, Py<PyAny>)>,
}

/// A get with the default deadline.
struct PlainGet {
    core: Py<ClientCore>,
    key: Bytes,
    future: Py<PyAny>,
    default: Py<PyAny>,
}

impl PlainGet {
    fn statistics_id(&self) -> usize {
        self.core.get().statistics_id()
    }
}

impl Turn {
    fn new(engine: &Arc<Engine>, calls: Vec<Call>) -> Turn {
        let mut turn = Turn::default();
        let mut gets = Vec::new();
        for Call { core, future, timeout, request } in calls {
            match (timeout, request) {
                (None, Request::Get { key, default }) => gets.push(PlainGet { core, key, future, default }),
                (timeout, request) => turn.others.push((core.get().client(engine, timeout), future, request)),
            }
        }
        // A turn may have the gets of thousands of pages: each is compared with the batch before it, not with all.
        gets.sort_by_key(PlainGet::statistics_id);
        for get in gets {
            turn.add_get(engine, get);
        }
        turn
    }

    fn add_get(&mut self, engine: &Arc<Engine>, get: PlainGet) {
        let statistics_id = get.statistics_id();
        if self.gets.last().is_none_or(|batch| batch.statistics_id != statistics_id) {
            let client = get.core.get().client(engine, None);
            self.gets.push(GetBatch { statistics_id, client, keys: Vec::new(), waiting: Vec::new() });
        }
        let batch = self.gets.last_mut().expect("there is one");
        batch.keys.push(get.key);
        batch.waiting.push((get.future, get.default));
    }
}

/// Sends the calls of one turn. The engine lives until the last of them has its reply.
async fn send(engine: Arc<Engine>, completions: Arc<Completions>, turn: Turn) {
    for (client, future, request) in turn.others {
        let (engine, completions) = (engine.clone(), completions.clone());
        tokio::spawn(async move {
            send_alone(&client, &completions, future, request).await;
            drop(engine);
        });
    }
    let mut gets = turn.gets.into_iter();
    let last = gets.next_back();
    for batch in gets {
        let (engine, completions) = (engine.clone(), completions.clone());
        tokio::spawn(async move {
            batch.send(&completions).await;
            drop(engine);
        });
    }
    if let Some(batch) = last {
        batch.send(&completions).await;
    }
    drop(engine);
}

impl GetBatch {
    async fn send(self, completions: &Completions) {
        let found: Vec<Found> = match self.client.get_many(&self.keys).await {
            Ok(found) => found,
            Err(error) => self.keys.iter().map(|_| Err(error.clone())).collect(),
        };
        let reply = |(((future, default), found), key)| (future, Reply::Value { key, found, default });
        completions.push(self.waiting.into_iter().zip(found).zip(self.keys).map(reply));
    }
}

async fn send_alone(client: &TypedClient, completions: &Completions, future: Py<PyAny>, request: Request) {
    let reply = match request {
        Request::Get { key, default } => Reply::Value { found: client.get(&key).await, key, default },
        Request::GetMany { keys, names } => Reply::Values { found: client.get_many(&keys).await, keys, names },
        Request::Update(update) => Reply::Updated(update.send(client).await),
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
            Step::ToLoad { keys: missing, from } => {
                let (loaded, result) = oneshot::channel();
                let reply = Reply::ToLoad { missing, from, keys: keys.clone(), names: names.clone(), loaded };
                completions.push([(future, reply)]);
                // The loader has failed, or the caller was cancelled.
                let Ok((values, next)) = result.await else { return };
                read.load_succeeded(values);
                future = next;
            }
        }
    }
}
