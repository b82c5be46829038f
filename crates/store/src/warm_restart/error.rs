//! Why a region cannot be attached or removed. It is not changed then.

use crate::{OptionsError, RegionName};

/// Why a region cannot be attached or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegionError {
    /// The options are invalid.
    Options(OptionsError),
    /// Another process holds it.
    Held {
        /// Its name.
        name: RegionName,
        /// The holder's process id; 0: a process in another container.
        pid: i32,
    },
    /// The memory is mapped by a process that does not hold its lock.
    Mapped {
        /// Its name.
        name: RegionName,
        /// The identifier of the segment.
        segment: i32,
        /// The number of mappings.
        mappings: u64,
    },
    /// Another name has the same key.
    KeyTaken {
        /// The requested name.
        name: RegionName,
        /// The name of the existing region.
        other: String,
    },
    /// The segment with this key was not made by a store.
    Foreign {
        /// The requested name.
        name: RegionName,
        /// The identifier of the segment.
        segment: i32,
    },
    /// The segment or semaphore with its key was created or is owned by another user, or other users may access it.
    ForeignOwner {
        /// Its name.
        name: RegionName,
        /// Its kind and identifier, as options of `ipcrm`: `-m 5` or `-s 5`.
        what: String,
        /// The user id of its owner.
        owner: u32,
        /// The user id of its creator.
        creator: u32,
        /// Its access mode, as a file's.
        mode: u32,
    },
    /// The segment was removed while the store used it: its contents are lost.
    Removed {
        /// Its name.
        name: RegionName,
    },
    /// A system call failed.
    System {
        /// Its name.
        name: RegionName,
        /// The operation.
        doing: &'static str,
        /// The system's error.
        reason: String,
    },
}

impl std::error::Error for RegionError {}

impl std::fmt::Display for RegionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RegionError::Options(error) => error.fmt(f),
            RegionError::Held { name, pid: 0 } => {
                write!(f, "region {name} is held by a process of another container")
            }
            RegionError::Held { name, pid } => write!(f, "region {name} is held by process {pid}"),
            RegionError::Mapped { name, segment, mappings } => write!(
                f,
                "region {name} (shared memory segment {segment}) is mapped {mappings} times by processes that do not hold it"
            ),
            RegionError::KeyTaken { name, other } => {
                write!(f, "region {name} has the same System V key as region {other:?}: choose another name")
            }
            RegionError::Foreign { name, segment } => write!(
                f,
                "region {name} has the key of shared memory segment {segment}, which belongs to another program; \
                 if it is no longer used, `ipcrm -m {segment}` removes it"
            ),
            RegionError::ForeignOwner { name, what, owner, creator, mode } => write!(
                f,
                "region {name} is not private to this user: it was created by user {creator}, belongs to user {owner} \
                 and has mode {mode:03o}; if it is no longer used, `ipcrm {what}` removes it"
            ),
            RegionError::Removed { name } => {
                write!(f, "region {name} was removed while it was in use")
            }
            RegionError::System { name, doing, reason } => {
                write!(f, "region {name}: cannot {doing}: {reason}")
            }
        }
    }
}
