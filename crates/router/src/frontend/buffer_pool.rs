//! A pool of read and write buffers. A session borrows one only while it is active (§3.1: thousands of client
//! connections become a few to the servers, and most are idle at any time).
//!
//! A session that has to wait for its client returns its buffers, and acquires others when bytes have arrived. The pool
//! is a stack: a thread works in the same few kilobytes for all its clients, and allocates nothing for a request.
//!
//! A session with half a command or with unwritten replies keeps its buffers.

use bytes::BytesMut;
use lookaside_sync::Mutex;

/// Buffers in the pool. More exist only while more batches than this are being routed at once.
pub(crate) const POOLED_BUFFERS_MAX: usize = 64;

/// The largest allocation of an input buffer in the pool, in bytes. One that a background request still uses may be
/// larger; it is not kept the next time.
pub(crate) const POOLED_INPUT_BYTES_MAX: usize = 64 << 10;

/// A read and a write buffer. Both are empty while they are in the pool.
#[derive(Debug, Default)]
pub(crate) struct SessionBuffers {
    pub(crate) input: BytesMut,
    pub(crate) out: Vec<u8>,
}

/// The unused buffers of one thread.
#[derive(Debug, Default)]
pub(crate) struct BufferPool {
    pooled: Mutex<Vec<SessionBuffers>>,
}

impl BufferPool {
    /// The buffers that were released last, or new ones without capacity.
    pub(crate) fn acquire(&self) -> SessionBuffers {
        self.pooled.lock().pop().unwrap_or_default()
    }

    /// Keeps buffers for the next session, unless they are large or the pool is full.
    pub(crate) fn release(&self, mut buffers: SessionBuffers) {
        assert!(buffers.input.is_empty() && buffers.out.is_empty(), "no session may see another's bytes");
        // `capacity` leaves out the bytes that were read from the front. They are reclaimed here instead of by the next
        // session, which would need them; unless a request still uses them.
        let _ = buffers.input.try_reclaim(buffers.input.capacity() + 1);
        let mut pooled = self.pooled.lock();
        if pooled.len() < POOLED_BUFFERS_MAX && buffers.input.capacity() <= POOLED_INPUT_BYTES_MAX {
            pooled.push(buffers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffers(bytes: usize) -> SessionBuffers {
        SessionBuffers { input: BytesMut::with_capacity(bytes), out: Vec::with_capacity(bytes) }
    }

    #[test]
    fn last_released_is_acquired_first_and_the_pool_is_bounded() {
        let pool = BufferPool::default();
        pool.release(buffers(100));
        pool.release(buffers(200));
        pool.release(buffers(POOLED_INPUT_BYTES_MAX + 1));
        assert_eq!(
            [pool.acquire(), pool.acquire(), pool.acquire()].map(|buffers| buffers.out.capacity()),
            [200, 100, 0]
        );
        assert!(pool.pooled.lock().is_empty());
        (0..POOLED_BUFFERS_MAX + 5).for_each(|_| pool.release(buffers(1)));
        assert_eq!(pool.pooled.lock().len(), POOLED_BUFFERS_MAX);
    }

    /// `capacity` does not count what was read from the front: after a request of a megabyte it is small.
    #[test]
    fn a_large_allocation_is_not_kept_although_it_has_been_read() {
        for is_shared in [false, true] {
            let mut input = BytesMut::zeroed(1 << 20);
            let request = input.split_to((1 << 20) - 100);
            input.clear();
            assert!(input.capacity() <= 100);
            if !is_shared {
                drop(request);
                let pool = BufferPool::default();
                pool.release(SessionBuffers { input, out: Vec::new() });
                assert!(pool.pooled.lock().is_empty());
                continue;
            }
            let pool = BufferPool::default();
            pool.release(SessionBuffers { input, out: Vec::new() });
            drop(request);
            let later = pool.acquire();
            pool.release(later);
            assert!(pool.pooled.lock().is_empty(), "at the latest when it is released again");
        }
    }
}
