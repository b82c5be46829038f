//! Where the keys of a commit come from: comments in its statements, or rows of an outbox or journal table.

mod sql_comment;

pub use sql_comment::keys_in;
