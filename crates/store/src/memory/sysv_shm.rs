//! System V shared memory and semaphores (§6.4 of the paper): memory that outlives a process, and the claim of one
//! process to it. Serves the start and the end of a server that restarts warm, and no request.
//!
//! Beside `region.rs` this is the only file of the crate with `unsafe` in it: it calls the kernel, and what it hands out
//! is an [`Attachment`], which a `Region` reads and writes under that file's rules. These ask that nobody else writes.
//! Other processes of the same user could, as they could through a debugger; those that go by this file do not:
//!
//! * Memory or a semaphore that another user has made or owns, or that others than the owner may reach, is never used:
//!   what the kernel knows of it is looked at first ([`Rights`]). Who made it stays known, whatever is changed later.
//! * A claim is a semaphore's step from 0 to 1, taken in one `semop` that fails unless it finds 0: two processes never
//!   both hold it. A semaphore set is made with zeros, so making it needs no order.
//! * The kernel takes the step back when the process that made it ends, in whatever way (`SEM_UNDO`), after its memory
//!   is gone.
//! * Whoever attaches a segment holds the claim to its key and gives it back after detaching.
//!
//! Absent: what is in the memory (`superblock.rs`, `state.rs`).
#![allow(unsafe_code)]

use std::io::{Error, Result};
use std::ptr::NonNull;

/// Its owner alone may read and write.
const ACCESS_MODE: libc::c_int = 0o600;
/// Anybody else may do something.
const OTHERS_MODE: u32 = 0o077;
/// A semaphore that was removed while it was being taken is made anew so many times.
const CLAIM_ATTEMPTS_MAX: usize = 8;

/// Shared memory that exists, attached or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Its number, as `ipcs -m` shows it.
    pub id: libc::c_int,
}

/// What the kernel knows of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentStatus {
    pub bytes: usize,
    /// How many mappings of it there are.
    pub attachments: u64,
    pub rights: Rights,
}

/// Who may reach a segment or a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rights {
    /// Whose it is.
    pub owner: u32,
    /// Who made it, and could make it his own again.
    pub maker: u32,
    /// As of a file.
    pub mode: u32,
}

impl Rights {
    fn of(permissions: &libc::ipc_perm) -> Rights {
        let libc::ipc_perm { uid: owner, cuid: maker, mode, .. } = *permissions;
        #[allow(clippy::unnecessary_cast, reason = "its width is not the same everywhere")]
        let mode = mode as u32 & 0o777;
        Rights { owner, maker, mode }
    }

    /// Whether this process's user alone may reach it.
    pub fn are_ours_alone(&self) -> bool {
        // SAFETY: asks for a number.
        self.are_alone(unsafe { libc::geteuid() })
    }

    fn are_alone(&self, user: u32) -> bool {
        (self.owner, self.maker) == (user, user) && self.mode & OTHERS_MODE == 0
    }
}

impl Segment {
    /// The segment with this key, if there is one.
    pub fn find(key: i32) -> Result<Option<Segment>> {
        // SAFETY: no pointer is passed.
        match unsafe { libc::shmget(key, 0, ACCESS_MODE) } {
            -1 => match Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
                error => Err(error),
            },
            id => Ok(Some(Segment { id })),
        }
    }

    /// A new segment of zeros; fails if there is one with this key.
    pub fn create(key: i32, bytes: usize) -> Result<Segment> {
        Segment::create_with_mode(key, bytes, ACCESS_MODE)
    }

    pub(crate) fn create_with_mode(key: i32, bytes: usize, mode: libc::c_int) -> Result<Segment> {
        // SAFETY: no pointer is passed.
        let id = unsafe { libc::shmget(key, bytes, libc::IPC_CREAT | libc::IPC_EXCL | mode) };
        check(id).map(|id| Segment { id })
    }

    /// Whether the system would give so many bytes, beside what it has given.
    pub fn try_size(bytes: usize) -> Result<()> {
        Segment::create(libc::IPC_PRIVATE, bytes)?.remove()
    }

    /// Its size, who has it, and who may have it.
    pub fn status(&self) -> Result<SegmentStatus> {
        let mut status = std::mem::MaybeUninit::<libc::shmid_ds>::zeroed();
        // SAFETY: the kernel writes one `shmid_ds`, and there is room for one.
        check(unsafe { libc::shmctl(self.id, libc::IPC_STAT, status.as_mut_ptr()) })?;
        // SAFETY: all integers, zeroed at first and then filled in.
        let status = unsafe { status.assume_init() };
        let rights = Rights::of(&status.shm_perm);
        Ok(SegmentStatus { bytes: status.shm_segsz, attachments: status.shm_nattch, rights })
    }

    /// Maps it into this process. The caller holds the claim to its key.
    pub fn attach(&self) -> Result<Attachment> {
        let bytes = self.status()?.bytes;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists.
        let address = unsafe { libc::shmat(self.id, std::ptr::null(), 0) };
        if address.addr() == usize::MAX {
            return Err(Error::last_os_error());
        }
        let base = NonNull::new(address.cast::<u8>()).expect("the kernel maps nothing at address 0");
        Ok(Attachment { base, bytes })
    }

    /// Gives it back to the kernel as soon as nobody has it any more; its key is free at once.
    pub fn remove(&self) -> Result<()> {
        // SAFETY: this command takes no buffer. Mappings stay valid until they are given back.
        check(unsafe { libc::shmctl(self.id, libc::IPC_RMID, std::ptr::null_mut()) }).map(drop)
    }
}

/// A segment in this process's memory, until dropped.
#[derive(Debug)]
pub(crate) struct Attachment {
    base: NonNull<u8>,
    bytes: usize,
}

impl Attachment {
    /// Where it begins: at the beginning of a page.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and whoever was given its base has gone before it.
        unsafe { libc::shmdt(self.base.as_ptr().cast()) };
    }
}

/// The right to the segment of one key, until dropped or until the process ends.
#[derive(Debug)]
pub(crate) struct Claim {
    id: libc::c_int,
}

/// Why there is no claim.
#[derive(Debug)]
pub(crate) enum ClaimError {
    /// Another has it: the process with this id, or 0 for one in another container.
    Held {
        pid: i32,
    },
    /// The semaphore set `id` is not this user's alone.
    ForeignOwner {
        id: i32,
        rights: Rights,
    },
    System(Error),
}

impl Claim {
    /// Takes the claim if nobody has it.
    pub fn take(key: i32) -> std::result::Result<Claim, ClaimError> {
        let mut outcome = Err(ClaimError::System(Error::from_raw_os_error(libc::EIDRM)));
        for _ in 0..CLAIM_ATTEMPTS_MAX {
            // SAFETY: no pointer is passed.
            let id =
                check(unsafe { libc::semget(key, 1, libc::IPC_CREAT | ACCESS_MODE) }).map_err(ClaimError::System)?;
            match semaphore_rights(id) {
                Ok(rights) if rights.are_ours_alone() => {}
                Ok(rights) => return Err(ClaimError::ForeignOwner { id, rights }),
                Err(error) if is_gone(&error) => continue,
                Err(error) => return Err(ClaimError::System(error)),
            }
            let wait_for_zero = step(0, libc::IPC_NOWAIT);
            outcome = match operate(id, &mut [wait_for_zero, step(1, libc::IPC_NOWAIT | libc::SEM_UNDO)]) {
                Ok(()) => return Ok(Claim { id }),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return Err(ClaimError::Held { pid: last_user(id) }),
                    _ if is_gone(&error) => Err(ClaimError::System(error)),
                    _ => return Err(ClaimError::System(error)),
                },
            };
        }
        outcome
    }

    /// Gives the claim back and leaves nothing of it in the system.
    pub fn remove(self) -> Result<()> {
        // SAFETY: this command takes no further argument.
        let outcome = check(unsafe { libc::semctl(self.id, 0, libc::IPC_RMID) }).map(drop);
        std::mem::forget(self);
        outcome
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // What was to be undone at the end is undone with it. It can only fail if the semaphore has been removed.
        let _ = operate(self.id, &mut [step(-1, libc::IPC_NOWAIT | libc::SEM_UNDO)]);
    }
}

/// Whether whoever held a semaphore has removed it meanwhile.
fn is_gone(error: &Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIDRM | libc::EINVAL))
}

fn semaphore_rights(id: libc::c_int) -> Result<Rights> {
    let mut status = std::mem::MaybeUninit::<libc::semid_ds>::zeroed();
    // SAFETY: the kernel writes one `semid_ds`, and there is room for one.
    check(unsafe { libc::semctl(id, 0, libc::IPC_STAT, status.as_mut_ptr()) })?;
    // SAFETY: all integers, zeroed at first and then filled in.
    Ok(Rights::of(&unsafe { status.assume_init() }.sem_perm))
}

/// A semaphore that another may reach, for tests.
#[cfg(test)]
pub(crate) fn create_semaphore_with_mode(key: i32, mode: libc::c_int) -> Result<libc::c_int> {
    // SAFETY: no pointer is passed.
    check(unsafe { libc::semget(key, 1, libc::IPC_CREAT | libc::IPC_EXCL | mode) })
}

/// Removes what [`create_semaphore_with_mode`] has made.
#[cfg(test)]
pub(crate) fn remove_semaphore(id: libc::c_int) -> Result<()> {
    // SAFETY: this command takes no further argument.
    check(unsafe { libc::semctl(id, 0, libc::IPC_RMID) }).map(drop)
}

fn step(by: libc::c_short, flags: libc::c_int) -> libc::sembuf {
    libc::sembuf { sem_num: 0, sem_op: by, sem_flg: flags as libc::c_short }
}

/// All steps or none.
fn operate(id: libc::c_int, steps: &mut [libc::sembuf]) -> Result<()> {
    // SAFETY: the kernel reads as many steps as the slice has.
    check(unsafe { libc::semop(id, steps.as_mut_ptr(), steps.len()) }).map(drop)
}

/// The process that changed the semaphore last.
fn last_user(id: libc::c_int) -> i32 {
    // SAFETY: this command takes no further argument.
    unsafe { libc::semctl(id, 0, libc::GETPID) }.max(0)
}

fn check(outcome: libc::c_int) -> Result<libc::c_int> {
    if outcome == -1 { Err(Error::last_os_error()) } else { Ok(outcome) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_user_made_and_owns_and_shares_with_nobody_is_his() {
        let own = Rights { owner: 5, maker: 5, mode: 0o600 };
        assert!(own.are_alone(5));
        assert!(!own.are_alone(0), "not even root's");
        assert!(!Rights { owner: 6, ..own }.are_alone(5));
        assert!(!Rights { maker: 6, ..own }.are_alone(5));
        for mode in [0o666, 0o640, 0o620, 0o604, 0o602] {
            assert!(!Rights { mode, ..own }.are_alone(5), "{mode:o}");
        }
    }
}
