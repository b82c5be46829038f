//! System V shared memory and semaphores (§6.4 of the paper): memory that outlives a process, and a lock that
//! gives one process exclusive use of it. Serves the start and the end of a server that restarts warm, and no request.
//!
//! Beside `region.rs` this is the only file of the crate with `unsafe`: it calls the kernel, and returns an
//! [`Attachment`], which a `Region` reads and writes under that file's rules. These require that no other process
//! writes. Other processes of the same user could, as they could through a debugger; those that use this file do not:
//!
//! * Memory or a semaphore that another user created or owns, or that other users may access, is never used: its
//!   [`Permissions`] are checked first. The kernel remembers the creator, whatever is changed later.
//! * The lock is a semaphore's step from 0 to 1, in one `semop` that fails unless it finds 0: two processes never both
//!   hold it. A semaphore set is created with zeros, so creating it needs no order.
//! * The kernel undoes the step when the process ends, in whatever way (`SEM_UNDO`), after its memory is gone.
//! * A process that attaches a segment holds the lock of its key, and releases it after detaching.
#![expect(unsafe_code, reason = "System V calls have no safe wrapper")]

use std::io::{Error, Result};
use std::ptr::NonNull;

/// Only the owner may read and write.
const ACCESS_MODE: libc::c_int = 0o600;
/// The bits that give access to others.
const OTHERS_MODE: u32 = 0o077;
/// How often a semaphore that is removed meanwhile is created again.
const LOCK_ATTEMPTS_MAX: usize = 8;

/// A shared memory segment, attached or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Its identifier, as `ipcs -m` shows it.
    pub id: libc::c_int,
}

/// The status of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentStatus {
    pub bytes: usize,
    /// The number of its mappings.
    pub attachments: u64,
    pub permissions: Permissions,
}

/// The owner and access mode of a segment or a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Permissions {
    /// The user id of the owner.
    pub owner: u32,
    /// The user id of the creator, who can become the owner again.
    pub creator: u32,
    /// As a file's mode.
    pub mode: u32,
}

impl Permissions {
    fn from_ipc_perm(permissions: &libc::ipc_perm) -> Permissions {
        let libc::ipc_perm { uid: owner, cuid: creator, mode, .. } = *permissions;
        #[allow(clippy::unnecessary_cast, reason = "its width is not the same everywhere")]
        let mode = mode as u32 & 0o777;
        Permissions { owner, creator, mode }
    }

    /// Whether only this process's user may access it.
    pub fn is_private_to_user(&self) -> bool {
        // SAFETY: geteuid takes no argument and cannot fail.
        self.is_private_to(unsafe { libc::geteuid() })
    }

    fn is_private_to(&self, user: u32) -> bool {
        (self.owner, self.creator) == (user, user) && self.mode & OTHERS_MODE == 0
    }
}

impl Segment {
    /// The segment with this key; `None` if it does not exist.
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

    /// A new segment of zeros; fails if one with this key exists.
    pub fn create(key: i32, bytes: usize) -> Result<Segment> {
        Segment::create_with_mode(key, bytes, ACCESS_MODE)
    }

    pub(crate) fn create_with_mode(key: i32, bytes: usize, mode: libc::c_int) -> Result<Segment> {
        // SAFETY: no pointer is passed.
        let id = unsafe { libc::shmget(key, bytes, libc::IPC_CREAT | libc::IPC_EXCL | mode) };
        check(id).map(|id| Segment { id })
    }

    /// Fails if the system cannot give this many more bytes.
    pub fn try_size(bytes: usize) -> Result<()> {
        Segment::create(libc::IPC_PRIVATE, bytes)?.remove()
    }

    /// The segment's size, mappings and permissions.
    pub fn status(&self) -> Result<SegmentStatus> {
        let mut status = std::mem::MaybeUninit::<libc::shmid_ds>::zeroed();
        // SAFETY: the kernel writes one `shmid_ds`, and the buffer holds one.
        check(unsafe { libc::shmctl(self.id, libc::IPC_STAT, status.as_mut_ptr()) })?;
        // SAFETY: all integers, zeroed at first and then filled in.
        let status = unsafe { status.assume_init() };
        let permissions = Permissions::from_ipc_perm(&status.shm_perm);
        Ok(SegmentStatus { bytes: status.shm_segsz, attachments: status.shm_nattch, permissions })
    }

    /// Maps it into this process. The caller holds the lock of its key.
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

    /// Removes it: the kernel frees it with its last mapping; its key is free at once.
    pub fn remove(&self) -> Result<()> {
        // SAFETY: this command takes no buffer. Mappings stay valid until they are detached.
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
    /// Its address: the start of a page.
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
        // SAFETY: the mapping is this value's own, and every user of its base was dropped before it.
        unsafe { libc::shmdt(self.base.as_ptr().cast()) };
    }
}

/// The lock of the segment with one key, held until dropped or until the process ends.
#[derive(Debug)]
pub(crate) struct ShmLock {
    id: libc::c_int,
}

/// Why the lock could not be acquired.
#[derive(Debug)]
pub(crate) enum ShmLockError {
    /// The process with this id holds it; 0: one in another container.
    Held {
        pid: i32,
    },
    /// The semaphore set `id` is not private to this user.
    ForeignOwner {
        id: i32,
        permissions: Permissions,
    },
    System(Error),
}

impl ShmLock {
    /// Acquires the lock; fails if another process holds it.
    pub fn acquire(key: i32) -> std::result::Result<ShmLock, ShmLockError> {
        let mut outcome = Err(ShmLockError::System(Error::from_raw_os_error(libc::EIDRM)));
        for _ in 0..LOCK_ATTEMPTS_MAX {
            // SAFETY: no pointer is passed.
            let id =
                check(unsafe { libc::semget(key, 1, libc::IPC_CREAT | ACCESS_MODE) }).map_err(ShmLockError::System)?;
            match semaphore_permissions(id) {
                Ok(permissions) if permissions.is_private_to_user() => {}
                Ok(permissions) => return Err(ShmLockError::ForeignOwner { id, permissions }),
                Err(error) if is_gone(&error) => continue,
                Err(error) => return Err(ShmLockError::System(error)),
            }
            let wait_for_zero = semaphore_step(0, libc::IPC_NOWAIT);
            outcome = match operate(id, &mut [wait_for_zero, semaphore_step(1, libc::IPC_NOWAIT | libc::SEM_UNDO)]) {
                Ok(()) => return Ok(ShmLock { id }),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return Err(ShmLockError::Held { pid: last_changed_by(id) }),
                    _ if is_gone(&error) => Err(ShmLockError::System(error)),
                    _ => return Err(ShmLockError::System(error)),
                },
            };
        }
        outcome
    }

    /// Releases the lock and removes its semaphore.
    pub fn remove(self) -> Result<()> {
        // SAFETY: this command takes no further argument.
        let outcome = check(unsafe { libc::semctl(self.id, 0, libc::IPC_RMID) }).map(drop);
        std::mem::forget(self);
        outcome
    }
}

impl Drop for ShmLock {
    fn drop(&mut self) {
        // This also clears the undo entry. It can only fail if the semaphore was removed.
        let _ = operate(self.id, &mut [semaphore_step(-1, libc::IPC_NOWAIT | libc::SEM_UNDO)]);
    }
}

/// Whether the holder of a semaphore has removed it meanwhile.
fn is_gone(error: &Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIDRM | libc::EINVAL))
}

fn semaphore_permissions(id: libc::c_int) -> Result<Permissions> {
    let mut status = std::mem::MaybeUninit::<libc::semid_ds>::zeroed();
    // SAFETY: the kernel writes one `semid_ds`, and the buffer holds one.
    check(unsafe { libc::semctl(id, 0, libc::IPC_STAT, status.as_mut_ptr()) })?;
    // SAFETY: all integers, zeroed at first and then filled in.
    Ok(Permissions::from_ipc_perm(&unsafe { status.assume_init() }.sem_perm))
}

/// A semaphore with a mode of the caller's choice, for tests.
#[cfg(test)]
pub(crate) fn create_semaphore_with_mode(key: i32, mode: libc::c_int) -> Result<libc::c_int> {
    // SAFETY: no pointer is passed.
    check(unsafe { libc::semget(key, 1, libc::IPC_CREAT | libc::IPC_EXCL | mode) })
}

/// Removes the semaphore of [`create_semaphore_with_mode`].
#[cfg(test)]
pub(crate) fn remove_semaphore(id: libc::c_int) -> Result<()> {
    // SAFETY: this command takes no further argument.
    check(unsafe { libc::semctl(id, 0, libc::IPC_RMID) }).map(drop)
}

fn semaphore_step(by: libc::c_short, flags: libc::c_int) -> libc::sembuf {
    libc::sembuf { sem_num: 0, sem_op: by, sem_flg: flags as libc::c_short }
}

/// All steps or none.
fn operate(id: libc::c_int, steps: &mut [libc::sembuf]) -> Result<()> {
    // SAFETY: the kernel reads as many steps as the slice has.
    check(unsafe { libc::semop(id, steps.as_mut_ptr(), steps.len()) }).map(drop)
}

fn last_changed_by(id: libc::c_int) -> i32 {
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
    fn a_segment_is_private_to_its_creator_and_owner_if_no_other_has_access() {
        let own = Permissions { owner: 5, creator: 5, mode: 0o600 };
        assert!(own.is_private_to(5));
        assert!(!own.is_private_to(0), "not even root's");
        assert!(!Permissions { owner: 6, ..own }.is_private_to(5));
        assert!(!Permissions { creator: 6, ..own }.is_private_to(5));
        for mode in [0o666, 0o640, 0o620, 0o604, 0o602] {
            assert!(!Permissions { mode, ..own }.is_private_to(5), "{mode:o}");
        }
    }
}
