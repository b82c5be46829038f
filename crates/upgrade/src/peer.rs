//! The process at the other end of a Unix socket, as the kernel reports it (`SO_PEERCRED`).
//!
//! `unsafe`, because rustix assumes that the process id is not 0, but it is 0 for a process in another PID namespace,
//! as with containers that share a folder.
#![expect(unsafe_code, reason = "rustix cannot read the credentials of a process in another PID namespace")]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::os::fd::{AsRawFd, OwnedFd};
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

    /// A descriptor of the process, which never refers to another one. `None` if its id is unknown, or if it has
    /// exited.
    pub(crate) fn open_process(&self) -> Option<OwnedFd> {
        pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()
    }

    /// Waits until the process has exited, for at most `timeout`. Returns at once if its id is unknown. A process that
    /// has closed one of its sockets may not have closed the others yet.
    pub(crate) fn wait_for_exit(&self, timeout: &Timespec) {
        if let Some(process) = self.open_process() {
            wait_for_exit(&process, timeout);
        }
    }
}

/// Ends a process, also one that is stopped (SIGSTOP), and waits until it has released what it held. False if it cannot
/// be signalled, or has not exited after `timeout`.
pub(crate) fn kill(process: &OwnedFd, timeout: &Timespec) -> bool {
    pidfd_send_signal(process, Signal::KILL).is_ok() && wait_for_exit(process, timeout)
}

fn wait_for_exit(process: &OwnedFd, timeout: &Timespec) -> bool {
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(timeout)).is_ok_and(|ready| ready > 0)
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

    #[test]
    fn a_stopped_process_is_ended() {
        let mut child = std::process::Command::new("/bin/sleep").arg("60").spawn().expect("it exists");
        let process = Peer { pid: child.id() as i32, user: 0 }.open_process().expect("it runs");
        pidfd_send_signal(&process, Signal::STOP).expect("it is a child");
        assert!(kill(&process, &Timespec { tv_sec: 10, tv_nsec: 0 }));
        assert!(!child.wait().expect("it has exited").success());
        assert!(Peer { pid: 0, user: 0 }.open_process().is_none(), "a process in another PID namespace");
    }
}
