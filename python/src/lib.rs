//! The extension module `lookaside._lookaside`: what the Python package cannot do in Python. Serves every call of
//! `lookaside.Client` and `lookaside.AsyncClient`, which are in `python/lookaside/`.
//!
//! ```text
//!  Client       the calling thread: encode, release the GIL, drive the runtime until the reply is there, decode
//!               (sync_client, engine)                      no other thread takes part in a call
//!
//!  AsyncClient  the event loop's thread                    the engine's thread, which never takes the GIL
//!               calls of one turn of the loop ---one task--> one batch of gets, other requests
//!               futures get their results     <--eventfd---  replies          (async_client, completions)
//! ```
//!
//! * `client_core` is what both clients share, `sync_client` its calls.
//! * `engine` holds a runtime and the Rust client on it, and decides which thread drives it.
//! * `waiting` lets a thread of Python wait for it, until a signal comes.
//! * `connection` builds the engine, and builds another one in a forked child.
//! * `updates` has the requests that change what is cached, for both clients.
//! * `markers` has the remote markers of a client in a replica region.
//! * `codec` turns Python objects into values and back; `read` is a read-through whose loader runs outside the runtime.

mod async_client;
mod client_core;
mod codec;
mod completions;
mod connection;
mod direct_options;
mod engine;
mod error;
mod key;
mod markers;
mod options;
mod positions;
mod read;
mod results;
mod statistics;
mod sync_client;
mod updates;
mod waiting;

use pyo3::prelude::*;

#[pymodule]
fn _lookaside(module: &Bound<'_, PyModule>) -> PyResult<()> {
    connection::count_forks()?;
    module.add_class::<client_core::ClientCore>()?;
    module.add_class::<async_client::Channel>()?;
    module.add_class::<completions::LoadRequest>()?;
    module.add_class::<updates::PreparedUpdate>()?;
    module.add_class::<markers::WriteCore>()?;
    module.py().import("atexit")?.call_method1("register", (waiting::End::default(),))?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
