//! How a thread of Python waits for the runtime: without the GIL, so that other threads run, and so that a signal ends
//! the wait. Serves all calls that block.
//!
//! A signal's handler is Python code, which Python runs in its main thread once that holds the GIL and looks. So a wait
//! looks every [`SIGNALS_INTERVAL`]: Ctrl-C ends a call that waits for a server or for another client's load.
//!
//! **The end of the interpreter.** Up to 3.13, Python ends a daemon thread that takes the GIL then by an exception of C
//! that no frame of Rust may catch, which aborts the process. A call takes it when its wait ends, and again wherever it
//! runs Python code: a value is decoded, an event loop is given a call. So once the last handler of `atexit` has run
//! ([`End`]), no thread begins a call or comes back from a wait, and those that are inside of one leave it first:
//!
//! ```text
//!  a thread    INSIDE += 1    ENDING? then sleep forever, without the GIL    takes the GIL, leaves the call    INSIDE -= 1
//!  End         ENDING         wait, without the GIL, until INSIDE is 0
//! ```

use pyo3::prelude::*;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering::SeqCst};
use std::thread::{self, ThreadId};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// How long a signal may wait for its handler.
const SIGNALS_INTERVAL: Duration = Duration::from_millis(50);
/// How often the end looks again, and how many times at most.
const INSIDE_INTERVAL: Duration = Duration::from_millis(1);
const INSIDE_LOOKS_MAX: usize = 1_000;

/// Threads that are inside a call, and have the GIL or will take it.
static INSIDE: AtomicIsize = AtomicIsize::new(0);
/// The thread that ends the interpreter.
static ENDING: OnceLock<ThreadId> = OnceLock::new();

thread_local! {
    /// How many calls of this thread are inside of one another: Python code in a call may make another one.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// A call that this thread is inside of.
pub(crate) struct Inside {
    of_one_thread: PhantomData<*const ()>,
}

impl Inside {
    /// Does not return if the interpreter ends.
    pub(crate) fn enter(py: Python<'_>) -> Inside {
        if DEPTH.replace(DEPTH.get() + 1) == 0 {
            count_inside(py);
        }
        Inside { of_one_thread: PhantomData }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        if DEPTH.get() == 0 {
            INSIDE.fetch_sub(1, SeqCst);
        }
    }
}

/// Runs code of the application that may take long: the end does not wait for it.
pub(crate) fn outside<T>(py: Python<'_>, code: impl FnOnce() -> T) -> T {
    let depth = DEPTH.replace(0);
    if depth > 0 {
        INSIDE.fetch_sub(1, SeqCst);
    }
    let result = code();
    if depth > 0 {
        count_inside(py);
    }
    DEPTH.set(depth);
    result
}

/// No thread of the parent runs in a forked child.
pub(crate) fn reset_in_child() {
    INSIDE.store(0, SeqCst);
}

fn count_inside(py: Python<'_>) {
    INSIDE.fetch_add(1, SeqCst);
    if is_ending() {
        py.detach(stop);
    }
}

/// Whether another thread ends the interpreter.
fn is_ending() -> bool {
    ENDING.get().is_some_and(|ending| *ending != thread::current().id())
}

fn stop() {
    INSIDE.fetch_sub(1, SeqCst);
    loop {
        thread::park();
    }
}

/// Drives the runtime until `call` is ready. An error is that of a signal's handler, `KeyboardInterrupt` say; then the
/// call is dropped inside the runtime, where it releases its leases.
pub(crate) fn wait<T: Send>(py: Python<'_>, runtime: &Runtime, call: impl Future<Output = T> + Send) -> PyResult<T> {
    let _inside = Inside::enter(py);
    let mut call = Box::pin(call);
    loop {
        let waited = py.detach(|| {
            INSIDE.fetch_sub(1, SeqCst);
            let waited = runtime.block_on(async { timeout(SIGNALS_INTERVAL, call.as_mut()).await });
            INSIDE.fetch_add(1, SeqCst);
            if is_ending() {
                stop();
            }
            waited
        });
        if let Ok(ready) = waited {
            return Ok(ready);
        }
        if let Err(error) = py.check_signals() {
            let _inside = runtime.enter();
            drop(call);
            return Err(error);
        }
    }
}

/// A handler of `atexit`, which alone has it. Python calls its handlers in the order of their registration, backwards,
/// and drops them when the last has returned, without another thread running before it ends the interpreter. So other
/// handlers may wait for threads that use the cache, whichever was registered first.
#[pyclass(frozen, module = "lookaside._lookaside")]
#[derive(Default)]
pub(crate) struct End {
    /// A child of multiprocessing drops the handlers of its parent uncalled, and goes on.
    is_called: AtomicBool,
}

#[pymethods]
impl End {
    fn __call__(&self) {
        self.is_called.store(true, SeqCst);
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if self.is_called.load(SeqCst) {
            let _ = ENDING.set(thread::current().id());
            Python::attach(|py| py.detach(wait_until_none_is_inside));
        }
    }
}

fn wait_until_none_is_inside() {
    for _ in 0..INSIDE_LOOKS_MAX {
        if INSIDE.load(SeqCst) <= 0 {
            break;
        }
        thread::sleep(INSIDE_INTERVAL);
    }
}
