//! Which segments the spool gives up: those that no cluster needs, the oldest ones beyond its limit, and all of a
//! former run whose commits have been delivered without it.

use super::{SavedStart, Spool, State, position::SpoolPosition, segments::Segments};
use std::io;

impl Spool {
    /// Forgets what an earlier run left, if every cluster has saved a position behind its end since, as it has in a run
    /// with a standby, which does not use the files. The log has been confirmed beyond the end then. A loss is not
    /// forgotten.
    pub fn discard_if_passed(&self, saved: &[SavedStart]) -> io::Result<()> {
        let is_orphan = self.is_orphan();
        let numbers: Vec<u64> = {
            let mut state = self.state.lock();
            let clusters = state.held.len();
            let is_passed = |segments: &Segments| {
                let is_behind = |saved: &SavedStart| {
                    let position = SpoolPosition::parse(&saved.position);
                    saved.log_identity == segments.log_identity && segments.end.is_before(&position, &*self.log)
                };
                !is_orphan && saved.len() == clusters && saved.iter().all(is_behind)
            };
            let Some(passed) = state.segments.take_if(|segments| is_passed(segments)) else { return Ok(()) };
            state.uncopied = None;
            passed.list.iter().map(|segment| segment.number).collect()
        };
        tracing::info!("the spool of before is not used: every cluster has saved a later position");
        numbers.into_iter().try_for_each(|number| self.files.remove(number))?;
        // What follows does not continue it: a replay would begin there, and find that commits are missing.
        self.files.remove_retired()
    }

    /// Removes the segments that no cluster needs, and the oldest ones beyond the limit.
    pub(super) fn remove_segments(&self) {
        while let Some(number) = self.drop_oldest() {
            if let Err(error) = self.files.retire(number) {
                tracing::warn!(%error, "an old segment of the spool was not removed; the next start removes it");
            }
        }
        self.report();
    }

    fn drop_oldest(&self) -> Option<u64> {
        let mut state = self.state.lock();
        let State { segments, held, .. } = &mut *state;
        let segments = segments.as_mut().filter(|segments| segments.list.len() > 1)?;
        let needed_by: Vec<_> = held
            .iter()
            .filter(|(_, held)| segments.needs_oldest(held.as_ref(), &*self.log))
            .map(|(cluster, _)| cluster.as_str())
            .collect();
        if !needed_by.is_empty() {
            if segments.bytes() <= self.bytes_max {
                return None;
            }
            let (clusters, bytes_max) = (needed_by.join(" "), self.bytes_max);
            self.statistics.discarded_segments.add(1);
            tracing::error!(
                clusters,
                bytes_max,
                "the spool is full: its oldest commits were removed, and these clusters have lost their position"
            );
        }
        segments.list.pop_front().map(|oldest| oldest.number)
    }
}
