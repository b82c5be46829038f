//! Irregularities of a commit log, as a source counts them.

use std::ops::{Add, Sub};

/// Irregularities of the log of MariaDB or MySQL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Anomalies {
    /// Transactions before whose end another one began; their keys were emitted.
    pub unfinished: u64,
    /// Statements or rows outside of any transaction; their keys were emitted.
    pub without_gtid: u64,
    /// Statements that change rows and are in the log without them (`binlog_format` of the session is STATEMENT or
    /// MIXED); keys that only rows name, if any, are LOST.
    pub without_rows: u64,
}

impl Anomalies {
    fn combine(self, other: Anomalies, combine: fn(u64, u64) -> u64) -> Anomalies {
        Anomalies {
            unfinished: combine(self.unfinished, other.unfinished),
            without_gtid: combine(self.without_gtid, other.without_gtid),
            without_rows: combine(self.without_rows, other.without_rows),
        }
    }
}

impl Add for Anomalies {
    type Output = Anomalies;

    fn add(self, other: Anomalies) -> Anomalies {
        self.combine(other, u64::add)
    }
}

impl Sub for Anomalies {
    type Output = Anomalies;

    /// What has been added since `other`.
    fn sub(self, other: Anomalies) -> Anomalies {
        self.combine(other, u64::sub)
    }
}
