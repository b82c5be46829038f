//! The host as routes need to know it.

use tokio::time::Instant;

/// A host's id and its wall clock.
#[derive(Clone, Copy, Debug)]
pub struct HostInfo {
    /// Distinguishes this host from others.
    pub id: u32,
    /// The wall clock at `at`, in seconds since 1970.
    pub unix_s: u64,
    /// When the wall clock was read.
    pub at: Instant,
}

impl HostInfo {
    /// The host named `name`, whose wall clock shows `unix_s` now.
    pub fn from_name(name: &str, unix_s: u64) -> HostInfo {
        // FNV-1a: any hash will do, as long as it is the same after every restart.
        let id = name.bytes().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        HostInfo { id, unix_s, at: Instant::now() }
    }

    /// The wall clock now, in seconds since 1970.
    pub fn unix_s_now(&self) -> u64 {
        self.unix_s + self.at.elapsed().as_secs()
    }
}
