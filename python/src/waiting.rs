//! How a thread of Python waits for the runtime: without the GIL, so that other threads run, and so that a signal ends
//! the wait. Serves all calls that block.
//!
//! A signal's handler is Python code, which Python runs in its main thread once that holds the GIL and looks. So a wait
//! looks every [`SIGNALS_INTERVAL`]: Ctrl-C ends a call that waits for a server or for another client's load.
//!
//! **The end of the interpreter.** Up to 3.13, Python ends a daemon thread that takes the GIL then by an exception of C
//! that no frame of Rust may catch, which aborts the process. So after [`end_waits`], which Python calls before, no other
//! thread comes back from its wait:
//!
//! ```text
//!  a thread    RETURNING += 1    ENDING? then sleep forever    takes the GIL    RETURNING -= 1
//!  end_waits   ENDING            wait, without the GIL, until RETURNING is 0
//! ```

use pyo3::prelude::*;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread::{self, ThreadId};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// How long a signal may wait for its handler.
const SIGNALS_INTERVAL: Duration = Duration::from_millis(50);
/// How often `end_waits` looks again, and how many times at most.
const RETURNING_INTERVAL: Duration = Duration::from_millis(1);
const RETURNING_LOOKS_MAX: usize = 1_000;

/// Threads that will take the GIL.
static RETURNING: AtomicUsize = AtomicUsize::new(0);
/// The thread that ends the interpreter.
static ENDING: OnceLock<ThreadId> = OnceLock::new();

/// Drives the runtime until `call` is ready. An error is that of a signal's handler, `KeyboardInterrupt` say; then the
/// call is dropped inside the runtime, where it releases its leases.
pub(crate) fn wait<T: Send>(py: Python<'_>, runtime: &Runtime, call: impl Future<Output = T> + Send) -> PyResult<T> {
    let mut call = Box::pin(call);
    loop {
        let waited = py.detach(|| {
            let waited = runtime.block_on(async { timeout(SIGNALS_INTERVAL, call.as_mut()).await });
            begin_return();
            waited
        });
        RETURNING.fetch_sub(1, SeqCst);
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

/// Does not return if the interpreter ends.
fn begin_return() {
    RETURNING.fetch_add(1, SeqCst);
    if ENDING.get().is_some_and(|ending| *ending != thread::current().id()) {
        RETURNING.fetch_sub(1, SeqCst);
        loop {
            thread::park();
        }
    }
}

/// Python calls it before the interpreter ends (`atexit`).
#[pyfunction]
pub(crate) fn end_waits(py: Python<'_>) {
    let _ = ENDING.set(thread::current().id());
    py.detach(|| {
        for _ in 0..RETURNING_LOOKS_MAX {
            if RETURNING.load(SeqCst) == 0 {
                break;
            }
            thread::sleep(RETURNING_INTERVAL);
        }
    });
}
