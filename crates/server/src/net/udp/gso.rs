//! UDP segmentation offload: one send, many datagrams. Serves a get by UDP whose reply is longer than one datagram.
//!
//! The kernel traverses its network stack once for all datagrams of a reply, not once for each. Linux supports it since
//! 4.18. On other systems, and where the device or the path does not support it, datagrams are sent one by one.
#![allow(unsafe_code, reason = "rustix and socket2 do not know the option")]

use rustix::fd::{AsRawFd, OwnedFd};

/// Makes the kernel cut what is sent through `socket` into datagrams of `datagram_bytes`; 0 turns that off. Returns
/// whether the kernel supports it.
#[cfg(target_os = "linux")]
pub(crate) fn set_segment_size(socket: &OwnedFd, datagram_bytes: u16) -> bool {
    let value = libc::c_int::from(datagram_bytes);
    // SAFETY: the kernel reads one `c_int` from the pointer during the call, and `value` lives as long.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    result == 0
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn set_segment_size(_socket: &OwnedFd, _datagram_bytes: u16) -> bool {
    false
}
