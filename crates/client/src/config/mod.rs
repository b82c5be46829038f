//! The routing configuration of a process that routes for itself: where it is, how it is watched, and how two of them
//! are compared. No request passes here. `routing` parses it, and the router validates it with its command line.

mod etcd;
mod file;
mod identity;
mod source;
mod watcher;

pub use etcd::{EtcdError, EtcdLocation, EtcdRecord, EtcdUser, EtcdValue, without_user};
pub use file::{
    DEBOUNCE, FILE_BYTES_MAX, FileWatcher, POLL_INTERVAL, StableReadLimit, UnstableFile, read_config_file, read_stable,
};
pub use identity::ConfigId;
pub use source::Source;
pub use watcher::ConfigWatcher;
