//! The engine of a client, of this process. A forked child has none of its parent's threads, and shares its sockets: it
//! must not touch the parent's engine, and starts one of its own with its first call.

use crate::engine::{Driving, Engine};
use crate::error::exception;
use crate::options::Settings;
use crate::waiting::reset_in_child;
use lookaside_routing::Address;
use lookaside_sync::Mutex;
use pyo3::prelude::*;
use std::io;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// How often this process, or its ancestors, were forked.
static FORKS: AtomicU64 = AtomicU64::new(0);

extern "C" fn after_fork_in_child() {
    FORKS.fetch_add(1, Relaxed);
    reset_in_child();
}

/// Counts forks from now on, also those that Python does not know of: uWSGI forks its workers in C.
pub(crate) fn count_forks() -> io::Result<()> {
    // SAFETY: the handler writes to atomics, which a child of a process with threads may do. Python never unloads
    // modules.
    #[allow(unsafe_code)]
    let status = unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
    if status == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(status)) }
}

pub(crate) struct Connection {
    pub(crate) settings: Settings,
    driving: Driving,
    /// Whether an engine was started, in this process or an ancestor: then the configuration was read, and is valid.
    was_started: AtomicBool,
    /// Locked only with the GIL held, as in a fork, so that it is unlocked in a child. No code of Python runs under it:
    /// it may call this client, and lets other threads have the GIL, which then wait for the lock with it.
    slot: Mutex<Slot>,
}

struct Slot {
    /// The value of `FORKS` when the engine was started.
    forks: u64,
    /// `None` if it was not started in this process, or is closed.
    engine: Option<Arc<Engine>>,
    /// Those of the last engine: a child begins with its parent's, if the configuration names them.
    routers: Vec<Address>,
    is_closed: bool,
}

impl Connection {
    pub(crate) fn new(settings: Settings, driving: Driving) -> Connection {
        let slot = Slot { forks: FORKS.load(Relaxed), engine: None, routers: Vec::new(), is_closed: false };
        Connection { settings, driving, was_started: AtomicBool::new(false), slot: Mutex::new(slot) }
    }

    /// The engine, which is started if it was not in this process. Only the first one of the client waits for a
    /// configuration: a call in a forked child has a timeout, and goes through the routers until it is read.
    pub(crate) fn engine(&self, py: Python<'_>) -> PyResult<Arc<Engine>> {
        if let Some(engine) = self.started_engine(py)? {
            return Ok(engine);
        }
        // Without the lock, as other threads may take the GIL meanwhile. One of two engines is dropped then.
        let needs_configuration = self.settings.needs_configuration && !self.was_started.load(Relaxed);
        let routers = self.slot.lock().routers.clone();
        let started = Arc::new(Engine::start(py, &self.settings, routers, self.driving, needs_configuration)?);
        self.was_started.store(true, Relaxed);
        let engine = self.slot.lock().engine_or(&started);
        engine.map_err(|closed| closed.into_error(py))
    }

    /// Fails if the client is closed.
    pub(crate) fn check_open(&self, py: Python<'_>) -> PyResult<()> {
        self.started_engine(py).map(|_| ())
    }

    /// Ends the engine, after the calls that use it.
    pub(crate) fn close(&self) {
        let engine = self.slot.lock().close();
        drop(engine);
    }

    fn started_engine(&self, py: Python<'_>) -> PyResult<Option<Arc<Engine>>> {
        let engine = self.slot.lock().engine();
        engine.map_err(|closed| closed.into_error(py))
    }
}

/// The client is closed.
struct Closed;

impl Closed {
    /// Runs code of Python, which may be any: a finalizer, and other threads that take the GIL meanwhile.
    fn into_error(self, py: Python<'_>) -> PyErr {
        exception(py, "ClosedError", "the client is closed".to_owned())
    }
}

impl Slot {
    /// The engine of this process; `None` if it was not started.
    fn engine(&mut self) -> Result<Option<Arc<Engine>>, Closed> {
        self.leave_engine_of_parent();
        match self.is_closed {
            true => Err(Closed),
            false => Ok(self.engine.clone()),
        }
    }

    /// The engine of this process, `started` if there is none.
    fn engine_or(&mut self, started: &Arc<Engine>) -> Result<Arc<Engine>, Closed> {
        let engine = self.engine()?;
        Ok(engine.unwrap_or_else(|| {
            self.routers = started.routers().addresses();
            self.engine.insert(started.clone()).clone()
        }))
    }

    /// What it returns is to be dropped without the lock.
    #[must_use]
    fn close(&mut self) -> Option<Arc<Engine>> {
        self.leave_engine_of_parent();
        self.is_closed = true;
        self.engine.take()
    }

    fn leave_engine_of_parent(&mut self) {
        let forks = FORKS.load(Relaxed);
        if self.forks != forks {
            self.forks = forks;
            let engine = self.engine.take();
            // Another thread of the parent may have been replacing them at the fork.
            if let Some(routers) = engine.as_ref().and_then(|engine| engine.routers().try_addresses()) {
                self.routers = routers;
            }
            mem::forget(engine);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.leave_engine_of_parent();
    }
}
