//! The clients' side: from bytes to batches, and from outcomes to bytes.
//!
//! | file | on the path of a request |
//! |---|---|
//! | `listen/`, `tls_accept` | accepts the connection |
//! | `session_lru` | the order in which sessions were last used, for the limit on connections |
//! | `users` | the users that may log in, if clients must |
//! | `session` | reads, and runs one batch after the other |
//! | `parse`, `metaget`, `bad_input` | bytes to a batch |
//! | `flow_control` | a batch in chunks, by the size of values |
//! | `reply`, `error_text` | outcomes to bytes |

mod bad_input;
pub(crate) mod buffer_pool;
pub(crate) mod context;
mod error_text;
pub(crate) mod flow_control;
pub(crate) mod limits;
pub(crate) mod listen;
pub(crate) mod metaget;
pub(crate) mod parse;
pub(crate) mod reply;
pub(crate) mod session;
pub(crate) mod session_lru;
pub(crate) mod tls_accept;
pub(crate) mod users;
