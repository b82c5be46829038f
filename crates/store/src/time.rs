//! Time, as callers pass it: in milliseconds, never read from a clock here.

/// A point in time, in milliseconds since the Unix epoch. The caller's clock must not go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Now {
    /// Milliseconds since 1970-01-01T00:00:00Z.
    pub unix_ms: u64,
}

/// When an item expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Expiry {
    /// At this Unix second; the item is not shown from then on. 0 is long past.
    At {
        /// Seconds since the Unix epoch.
        unix_s: u32,
    },
    /// It does not expire.
    Never,
}

/// Exptimes up to this many seconds count from now; larger ones are Unix times (memcached's `protocol.txt`).
pub const RELATIVE_EXPTIME_MAX_S: i64 = 60 * 60 * 24 * 30;

impl Expiry {
    /// From memcached's `exptime`: 0 never, negative already past, up to 30 days from now, else a Unix time.
    pub fn from_exptime(exptime: i64, now: Now) -> Expiry {
        let now_s = (now.unix_ms / 1000) as i64;
        match exptime {
            0 => Expiry::Never,
            _ if exptime < 0 => Expiry::At { unix_s: 0 },
            _ if exptime <= RELATIVE_EXPTIME_MAX_S => Expiry::At { unix_s: clamp_s(now_s + exptime) },
            _ => Expiry::At { unix_s: clamp_s(exptime) },
        }
    }

    /// Whether an item with this expiry has expired at `now`.
    pub fn is_past(self, now: Now) -> bool {
        match self {
            Expiry::At { unix_s } => u64::from(unix_s) * 1000 <= now.unix_ms,
            Expiry::Never => false,
        }
    }
}

fn clamp_s(unix_s: i64) -> u32 {
    u32::try_from(unix_s).unwrap_or(u32::MAX)
}
