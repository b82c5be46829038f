//! What a standby has seen of the record, and whether that went back.
//!
//! With asynchronous replication a promoted replica may lack the last renewals, and so the commits after them. The
//! active invalidator had read those commits and deleted their keys, and readers have filled them again, with values
//! that the database no longer has. If it lives, it finds out: its position is not in the log. If it died together with
//! the database, nothing but a standby shows that there was more: it has seen a record with a larger counter.

use super::record::{ElectionRecord, RecordVersion, SharedState};

/// The newest record that was seen.
#[derive(Debug, Default)]
pub(super) struct SeenRecord {
    /// `None` if there was none.
    newest: Option<ElectionRecord>,
    /// The older record that took its place, whose holder has not renewed since; without a holder if there was none.
    /// `None` if the record has not gone back.
    went_back_to: Option<RecordVersion>,
}

impl SeenRecord {
    /// Compares the record with the one that was seen before.
    pub fn observe(&mut self, found: Option<&ElectionRecord>) {
        let Some(newest) = &self.newest else {
            self.newest = found.cloned();
            return;
        };
        let version = found.map(|found| found.version.clone()).unwrap_or_default();
        match &self.went_back_to {
            None if version.counter < newest.version.counter => {
                tracing::error!(
                    counter = version.counter,
                    seen = newest.version.counter,
                    "the shared state went back: the database has lost its newest commits, as a replica has that was \
                     promoted and had received less. Unless the active invalidator lives, all positions are lost"
                );
                self.went_back_to = Some(version);
            }
            // The holder that had renewed later lives: it knows what it has read.
            Some(before)
                if *before != version
                    && before.holder == version.holder
                    && version.holder == newest.version.holder
                    && !version.holder.is_empty() =>
            {
                self.went_back_to = None;
                self.newest = found.cloned();
            }
            None => self.newest = found.cloned(),
            Some(_) => {}
        }
    }

    /// What the next record is to have if it replaces `found`: its counter, and its state.
    pub fn next(&self, found: Option<&ElectionRecord>) -> (u64, SharedState) {
        let found = found.cloned().unwrap_or_default();
        let mut state = found.state;
        let newest = self.newest.as_ref().filter(|_| self.went_back_to.is_some());
        if let Some(newest) = newest {
            for (cluster, position) in &newest.state.positions {
                state.positions.entry(cluster.clone()).or_insert_with(|| position.clone());
            }
            state.losses = state.losses.max(newest.state.losses);
            state.lost = state.positions.keys().cloned().collect();
        }
        let counter = newest.map_or(0, |newest| newest.version.counter).max(found.version.counter);
        (counter + 1, state)
    }

    /// `record` was stored: it has what is to be known of those before.
    pub fn replace(&mut self, record: ElectionRecord) {
        *self = SeenRecord { newest: Some(record), went_back_to: None };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Position, pipeline::positions::SavedPosition};

    fn record(holder: &str, counter: u64) -> ElectionRecord {
        let position = Position(counter.to_string());
        let saved = SavedPosition { log_identity: "log".into(), position, prepared: None };
        let state = SharedState { positions: [("one".to_owned(), saved)].into(), ..SharedState::default() };
        ElectionRecord { version: RecordVersion { holder: holder.into(), counter }, state, ..ElectionRecord::default() }
    }

    /// How many clusters have lost their position if the last of `records` is replaced.
    fn lost(records: &[(&str, u64)]) -> usize {
        let mut seen = SeenRecord::default();
        let records: Vec<_> = records.iter().map(|(holder, counter)| record(holder, *counter)).collect();
        records.iter().for_each(|record| seen.observe(Some(record)));
        seen.next(records.last()).1.lost.len()
    }

    #[test]
    fn an_older_record_is_a_loss_unless_its_holder_lives() {
        assert_eq!(lost(&[("a", 3), ("a", 4), ("b", 5), ("", 6)]), 0);
        assert_eq!(lost(&[("a", 3), ("a", 2)]), 1);
        assert_eq!(lost(&[("a", 3), ("a", 2), ("a", 2)]), 1, "it is not renewed");
        assert_eq!(lost(&[("a", 3), ("a", 2), ("a", 3), ("a", 4)]), 0, "it lives");
        assert_eq!(lost(&[("b", 5), ("a", 2), ("a", 3), ("a", 9)]), 1, "it knows nothing of what b has read");
        assert_eq!(lost(&[("a", 3), ("a", 2), ("b", 3), ("b", 9)]), 1, "as above");
    }

    #[test]
    fn a_record_that_is_gone_leaves_its_positions() {
        let mut seen = SeenRecord::default();
        seen.observe(Some(&record("a", 3)));
        seen.observe(None);
        let (counter, state) = seen.next(None);
        assert_eq!((counter, state.lost.len(), &state.positions), (4, 1, &record("a", 3).state.positions));
        let version = RecordVersion { holder: "b".into(), counter };
        seen.replace(ElectionRecord { version, state, ..ElectionRecord::default() });
        assert!(seen.next(None).1.lost.is_empty(), "once");
    }
}
