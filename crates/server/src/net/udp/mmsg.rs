//! Receives and sends many datagrams with one call to the kernel (§3.1 of the paper: gets by UDP arrive by the dozen
//! when a web server requests a page's keys).
//!
//! ```text
//!   buffer   | datagram 0 ........ | gap | datagram 1 ........ | gap | ...     64 KiB each: the largest UDP datagram
//! ```
//!
//! Invariants: memory is bounded by [`DATAGRAMS_PER_CALL`] of the largest datagrams, and the pages of a slot are
//! touched only once a datagram as long has arrived in it. The gap spreads the starts of slots over the sets of the
//! processor's caches: at a power of two they would all share a few sets.
//!
//! nix has these calls, but allocates its lists for each of them.
#![expect(unsafe_code, reason = "rustix has no recvmmsg and sendmmsg")]

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use socket2::{SockAddr, SockAddrStorage};
use std::mem::MaybeUninit;

/// At most this many datagrams are received or sent with one call.
pub(super) const DATAGRAMS_PER_CALL: usize = 32;

/// The largest request, in bytes: no UDP datagram is larger.
const REQUEST_BYTES_MAX: usize = 64 << 10;

/// An odd number of cache lines, about the length of a request for two dozen keys.
const GAP_BYTES: usize = 11 * 64;

const SLOT_BYTES: usize = REQUEST_BYTES_MAX + GAP_BYTES;

/// The datagrams that the last call received, with their senders.
pub(super) struct RecvBatch {
    buffer: Vec<u8>,
    received: Vec<Datagram>,
}

struct Datagram {
    bytes: usize,
    client: SockAddr,
}

impl RecvBatch {
    pub(super) fn new() -> RecvBatch {
        let buffer = vec![0; DATAGRAMS_PER_CALL * SLOT_BYTES];
        RecvBatch { buffer, received: Vec::with_capacity(DATAGRAMS_PER_CALL) }
    }

    pub(super) fn len(&self) -> usize {
        self.received.len()
    }

    pub(super) fn datagram(&self, number: usize) -> &[u8] {
        &self.buffer[number * SLOT_BYTES..][..self.received[number].bytes]
    }

    pub(super) fn client(&self, number: usize) -> &SockAddr {
        &self.received[number].client
    }

    /// Replaces the datagrams by those that wait at `socket`. Does not block.
    pub(super) fn receive(&mut self, socket: &OwnedFd) -> Result<(), Errno> {
        self.received.clear();
        let mut storages = [const { MaybeUninit::<SockAddrStorage>::zeroed() }; DATAGRAMS_PER_CALL];
        let mut iovecs = [EMPTY_IOVEC; DATAGRAMS_PER_CALL];
        let mut headers = [EMPTY_HEADER; DATAGRAMS_PER_CALL];
        let buffers = self.buffer.chunks_exact_mut(SLOT_BYTES);
        for (((header, iovec), storage), buffer) in headers.iter_mut().zip(&mut iovecs).zip(&mut storages).zip(buffers)
        {
            *iovec = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: REQUEST_BYTES_MAX };
            header.msg_hdr.msg_name = storage.as_mut_ptr().cast();
            header.msg_hdr.msg_namelen = size_of::<SockAddrStorage>() as libc::socklen_t;
            header.msg_hdr.msg_iov = iovec;
            header.msg_hdr.msg_iovlen = 1;
        }
        let headers_pointer = headers.as_mut_ptr();
        let (flags, no_timeout) = (libc::MSG_DONTWAIT as _, std::ptr::null_mut());
        // SAFETY: the list has as many headers as the call gets, and each of them points to one place in `buffer` and
        // one address storage, distinct and with their true lengths; all of it outlives the call and is touched by
        // nothing else meanwhile.
        let result = unsafe {
            libc::recvmmsg(socket.as_raw_fd(), headers_pointer, DATAGRAMS_PER_CALL as libc::c_uint, flags, no_timeout)
        };
        let count = usize::try_from(result).map_err(|_| last_error())?;
        for (header, storage) in headers.iter().zip(storages).take(count) {
            // SAFETY: zeroed bytes are a valid storage, and the kernel has put the sender's address there, of the
            // length that it has put into the header.
            let client = unsafe { SockAddr::new(storage.assume_init(), header.msg_hdr.msg_namelen) };
            self.received.push(Datagram { bytes: header.msg_len as usize, client });
        }
        Ok(())
    }
}

/// Sends bursts to their clients, as many as fit into one call. Returns the number of bytes that the kernel has taken,
/// always of whole bursts. An error is that of the first burst.
pub(super) fn send<'a>(
    socket: &OwnedFd,
    bursts: impl Iterator<Item = (&'a [u8], &'a SockAddr)>,
) -> Result<usize, Errno> {
    let mut iovecs = [EMPTY_IOVEC; DATAGRAMS_PER_CALL];
    let mut headers = [EMPTY_HEADER; DATAGRAMS_PER_CALL];
    let mut count = 0;
    for ((header, iovec), (burst, client)) in headers.iter_mut().zip(&mut iovecs).zip(bursts) {
        *iovec = libc::iovec { iov_base: burst.as_ptr().cast_mut().cast(), iov_len: burst.len() };
        header.msg_hdr.msg_name = client.as_ptr().cast_mut().cast();
        header.msg_hdr.msg_namelen = client.len();
        header.msg_hdr.msg_iov = iovec;
        header.msg_hdr.msg_iovlen = 1;
        count += 1;
    }
    let (headers_pointer, flags) = (headers.as_mut_ptr(), libc::MSG_DONTWAIT as _);
    // SAFETY: the first `count` headers point to bursts and addresses that outlive the call, with their true lengths;
    // the kernel only reads these, and writes `msg_len` of the headers.
    let result = unsafe { libc::sendmmsg(socket.as_raw_fd(), headers_pointer, count, flags) };
    let sent = usize::try_from(result).map_err(|_| last_error())?;
    Ok(headers[..sent].iter().map(|header| header.msg_len as usize).sum())
}

const EMPTY_IOVEC: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

// SAFETY: null pointers and lengths of 0 are a valid header without parts.
const EMPTY_HEADER: libc::mmsghdr = unsafe { std::mem::zeroed() };

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
