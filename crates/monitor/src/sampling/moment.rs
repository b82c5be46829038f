//! The monitor's own time.

use serde::{Deserialize, Serialize};
use std::{
    ops::{Add, Sub},
    time::Duration,
};

/// A time by the monitor's clock: milliseconds since a fixed moment. The clock never goes back, and goes on while the
/// monitor is restarted. It is not compared with the clocks of other machines, only runs at about their speed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment {
    /// Milliseconds.
    pub ms: u64,
}

impl Moment {
    /// This number of milliseconds earlier; the beginning of time if that is earlier still.
    pub fn minus_ms(self, ms: u64) -> Moment {
        Moment { ms: self.ms.saturating_sub(ms) }
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, after: Duration) -> Moment {
        Moment { ms: self.ms.saturating_add(after.as_millis() as u64) }
    }
}

impl Sub for Moment {
    type Output = Duration;

    /// The time since `earlier`; zero if that is later.
    fn sub(self, earlier: Moment) -> Duration {
        Duration::from_millis(self.ms.saturating_sub(earlier.ms))
    }
}
