//! Why a region cannot be had: nothing is changed in it then.

use crate::{OptionsError, RegionName};

/// Why a region cannot be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegionError {
    /// The store cannot be made, whatever the region.
    Options(OptionsError),
    /// Another process has it.
    Held {
        /// Its name.
        name: RegionName,
        /// Who has it; 0 for a process in another container.
        pid: i32,
    },
    /// The memory is mapped by a process that has no claim to it.
    Mapped {
        /// Its name.
        name: RegionName,
        /// The kernel's number of the segment.
        segment: i32,
        /// How many mappings there are.
        mappings: u64,
    },
    /// Another name leads to the same key.
    KeyTaken {
        /// The name that was asked for.
        name: RegionName,
        /// The name of the region that is there.
        other: String,
    },
    /// The segment with this key was not made by a store.
    Foreign {
        /// The name that was asked for.
        name: RegionName,
        /// The kernel's number of the segment.
        segment: i32,
    },
    /// Another user has made or owns what lies under its key, or may reach it: nobody knows who writes there.
    ForeignOwner {
        /// Its name.
        name: RegionName,
        /// What it is, and its kernel's number, as `ipcrm` takes them: `-m 5` or `-s 5`.
        what: String,
        /// The user whose it is.
        owner: u32,
        /// The user who has made it.
        maker: u32,
        /// What its owner, his group and others may do, as of a file.
        mode: u32,
    },
    /// Somebody has removed the segment while the store was using it: what was in it is lost.
    Removed {
        /// Its name.
        name: RegionName,
    },
    /// The system has refused.
    System {
        /// Its name.
        name: RegionName,
        /// What was to be done.
        doing: &'static str,
        /// What it said.
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
                write!(f, "region {name} would lie where region {other:?} does")
            }
            RegionError::Foreign { name, segment } => write!(
                f,
                "region {name} would lie in shared memory segment {segment}, which is another program's; \
                 if it is nobody's any more, `ipcrm -m {segment}` removes it"
            ),
            RegionError::ForeignOwner { name, what, owner, maker, mode } => write!(
                f,
                "region {name} is not this user's alone: what lies there was made by user {maker}, belongs to user {owner} \
                 and has mode {mode:03o}; if it is nobody's any more, `ipcrm {what}` removes it"
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
