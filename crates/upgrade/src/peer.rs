//! The process at the other end of a Unix socket, as the kernel reports it (`SO_PEERCRED`).
//!
//! `unsafe`, because rustix assumes that the process id is not 0, but it is 0 for a process in another PID namespace,
//! as with containers that share a folder.
#![expect(unsafe_code, reason = "rustix cannot read the credentials of a process in another PID namespace")]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// The process that connected, or that listens there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// 0 if it is in another PID namespace.
    pub(crate) pid: i32,
    pub(crate) user: u32,
}

impl Peer {
    pub(crate) fn of(socket: &UnixStream) -> std::io::Result<Peer> {
        let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `bytes` bytes, which is the size of `credentials`.
        let outcome = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut credentials).cast(),
                &raw mut bytes,
            )
        };
        match outcome {
            0 => Ok(Peer { pid: credentials.pid, user: credentials.uid }),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    /// Whether the process may hand over to this one, or take over from it: it runs as root, as this process's own
    /// user, or as the user that this one is about to switch to.
    pub(crate) fn is_trusted(&self, target_user: Option<u32>) -> bool {
        self.user == 0 || self.user == rustix::process::geteuid().as_raw() || Some(self.user) == target_user
    }

    /// Waits until the process has exited, for at most `timeout`. Returns at once if its id is unknown. A process that
    /// has closed one of its sockets may not have closed the others yet.
    pub(crate) fn wait_for_exit(&self, timeout: &Timespec) {
        if let Some(pid) = Pid::from_raw(self.pid)
            && let Ok(process) = pidfd_open(pid, PidfdFlags::empty())
        {
            let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(timeout));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_socket_pair_belong_to_this_process() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        let peer = Peer::of(&one).expect("a Unix socket");
        let user = rustix::process::geteuid().as_raw();
        assert_eq!((peer.pid, peer.user), (std::process::id() as i32, user));
    }
}
