//! Who is at the other end of a Unix socket, by the kernel's word.
//!
//! `unsafe`, because rustix takes the process id for one that is never 0, and it is 0 for a process in another PID namespace:
//! containers that share a folder.
#![allow(unsafe_code)]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// The process that connected, or that listens there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// 0 if this process may not know it.
    pub(crate) pid: i32,
    pub(crate) user: u32,
}

impl Peer {
    pub(crate) fn of(socket: &UnixStream) -> std::io::Result<Peer> {
        let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the kernel writes at most as many bytes as the length says, which is as many as there are.
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

    /// Waits until it has ended, if it can be known, but not for ever: whoever has closed one of its sockets may still be
    /// about to close the next.
    pub(crate) fn wait_for_end(&self, patience: &Timespec) {
        if let Some(pid) = Pid::from_raw(self.pid)
            && let Ok(process) = pidfd_open(pid, PidfdFlags::empty())
        {
            let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(patience));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_of_sockets_has_its_maker_at_both_ends() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        let peer = Peer::of(&one).expect("a Unix socket");
        let user = rustix::process::geteuid().as_raw();
        assert_eq!((peer.pid, peer.user), (std::process::id() as i32, user));
    }
}
