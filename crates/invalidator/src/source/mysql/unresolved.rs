//! Transactions that were prepared (XA) before reading began: whose commit is a loss, and what a later process must know of
//! them.
//!
//! Their keys are in a part of the log that is not read. So their names are saved beside each position, and the next reader
//! takes the XA COMMIT of one of them for a loss, although the server does not list it any more.
//!
//! ```text
//! start from the present -> XA RECOVER -> unresolved ---- saved position: unresolved there ----> next reader
//!                                           |  XA ROLLBACK, or its XA PREPARE: resolved from there on
//!                                           |  XA COMMIT, or XA PREPARE of another one of the name: a loss
//!                                           |  neither in the log, nor listed by the server: a loss
//! ```
//!
//! Invariants:
//! * The commit of a transaction that is neither held nor known by name is a loss, unless it was read before, or came
//!   before reading counted ([`counted_commits`](super::counted_commits)). So each position has with it how far the log
//!   was read, beyond the position itself while prepared transactions hold that back.
//! * What is saved with a position holds there: a name that is resolved behind the position is still saved with it, since a
//!   restart reads the end of that transaction again.
//! * Behind a position that does not say how far the log was read, only those count that are known by name. If the
//!   server does not list the transactions, any whose XA PREPARE was not read may be one of them.
//! * The commits that came before reading counted are the same for each source that reads on from there, on the same
//!   server: another one may complete a commit later, or have another one with its GTID.

use super::{
    counted_commits::CountedCommits,
    gtid::{self, GtidPosition},
    open_transaction::Gtid,
};
use crate::{Position, source::UnresolvedPrepared};
use lookaside_sync::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

/// How many starts are remembered. Only those after the oldest position that is not saved yet are needed.
const STARTS_MAX: usize = 100;

/// What was unresolved at each position, for the one reader of a log that saves positions.
#[derive(Default)]
pub struct UnresolvedHistory {
    /// Newest first.
    starts: VecDeque<ReadingStart>,
    /// Whether an older one was dropped, for their number.
    is_truncated: bool,
    /// Why the server last refused to list prepared transactions; `None` if it did not.
    refusal: Option<String>,
    /// The last start from the present; `None` if no later source needs it.
    present: Option<PresentStart>,
    /// How far the log was read; `None` if that is not known.
    read_until: Option<Position>,
}

/// A start from the present.
struct PresentStart {
    /// The identity of the server.
    server: String,
    /// Where reading starts.
    start: Position,
    counted: CountedCommits,
}

/// From a position on, transactions that were prepared before it are known, or known to be unknown.
struct ReadingStart {
    position: Position,
    unresolved: UnresolvedPrepared,
    /// From where on some of them are resolved.
    resolved: BTreeMap<String, Position>,
}

impl UnresolvedHistory {
    /// From `position` on these are unresolved, until more is read.
    pub fn begin_at(&mut self, position: &Position, unresolved: UnresolvedPrepared) {
        if self.at(position).as_ref() == Some(&unresolved) {
            return;
        }
        self.is_truncated |= self.starts.len() == STARTS_MAX;
        self.starts.truncate(STARTS_MAX - 1);
        let (position, resolved) = (position.clone(), BTreeMap::new());
        self.starts.push_front(ReadingStart { position, unresolved, resolved });
    }

    /// What is unresolved at `position`; `None` if no reader has begun there or before.
    pub fn at(&self, position: &Position) -> Option<UnresolvedPrepared> {
        let covers = |other: &Position| gtid::covers(&position.0, &other.0);
        let Some(start) = self.starts.iter().find(|start| covers(&start.position)) else {
            return self.is_truncated.then_some(UnresolvedPrepared::Unknown);
        };
        let UnresolvedPrepared::Named(names) = &start.unresolved else { return Some(UnresolvedPrepared::Unknown) };
        let is_resolved = |xid: &String| start.resolved.get(xid).is_some_and(covers);
        Some(UnresolvedPrepared::Named(names.iter().filter(|xid| !is_resolved(xid)).cloned().collect()))
    }

    /// The log is read again from `position` on, maybe that of another server, which has other transactions behind it.
    pub fn rewind(&mut self, position: &Position) {
        let covers = |other: &Position| gtid::covers(&position.0, &other.0);
        self.starts.retain(|start| covers(&start.position));
        for start in &mut self.starts {
            start.resolved.retain(|_, from| covers(from));
        }
        self.present.take_if(|present| !covers(&present.start));
    }

    /// Records a start from the present. `server` is the server's identity, `start` is where reading starts, and
    /// `counted` has the commits that came before reading counted; `None` if they are not known.
    pub fn record_start(&mut self, server: &str, start: &Position, counted: Option<CountedCommits>) {
        let (server, start) = (server.to_owned(), start.clone());
        self.present = counted.map(|counted| PresentStart { server, start, counted });
    }

    /// The commits that came before reading counted, for a source that reads `server` from `position` on; `None` if
    /// they are not known. A start on another server, or a later one, is forgotten.
    pub fn counted(&mut self, server: &str, position: &Position) -> Option<CountedCommits> {
        self.present.take_if(|present| present.server != server || !gtid::covers(&position.0, &present.start.0));
        self.present.as_ref().map(|present| present.counted.clone())
    }

    /// How far the log was read; `None` if that is not known.
    pub fn read_until(&self) -> Option<&Position> {
        self.read_until.as_ref()
    }

    /// The log was read up to here; `None` if that is not known.
    pub fn set_read_until(&mut self, read_until: Option<Position>) {
        self.read_until = read_until;
    }

    /// Notes whether the server lists prepared transactions: why it refuses to, or `None`. Returns whether that is a refusal
    /// for another reason than before.
    pub fn note_refusal(&mut self, refusal: Option<&str>) -> bool {
        let is_new = refusal.is_some() && self.refusal.as_deref() != refusal;
        self.refusal = refusal.map(str::to_owned);
        is_new
    }

    fn resolve(&mut self, xid: &str, position: &Position) {
        for start in &mut self.starts {
            if start.has(xid) && gtid::covers(&position.0, &start.position.0) {
                start.resolved.entry(xid.to_owned()).or_insert_with(|| position.clone());
            }
        }
    }
}

impl ReadingStart {
    fn has(&self, xid: &str) -> bool {
        matches!(&self.unresolved, UnresolvedPrepared::Named(names) if names.contains(xid))
    }
}

/// The prepared transactions that a server listed.
pub struct PreparedList {
    /// Their names.
    pub names: BTreeSet<String>,
    /// The end of the log after that: a transaction that is not listed is prepared behind it, or resolved before it.
    pub end: GtidPosition,
}

/// What is unresolved while a log is read.
pub struct UnresolvedTransactions {
    history: Arc<Mutex<UnresolvedHistory>>,
    unresolved: UnresolvedPrepared,
    /// What the server listed when reading began; `None` if it did not, or if the log has been read up to then.
    listed: Option<PreparedList>,
    /// Where an earlier source had read up to; `None` if that is not known.
    read_until: Option<GtidPosition>,
    /// `None` if none came before reading counted.
    counted: Option<CountedCommits>,
}

impl UnresolvedTransactions {
    /// Begins with these.
    pub fn new(
        history: Arc<Mutex<UnresolvedHistory>>,
        unresolved: UnresolvedPrepared,
        listed: Option<PreparedList>,
    ) -> UnresolvedTransactions {
        UnresolvedTransactions { history, unresolved, listed, read_until: None, counted: None }
    }

    /// The log was read up to here before.
    pub fn with_read_until(self, read_until: Option<GtidPosition>) -> UnresolvedTransactions {
        UnresolvedTransactions { read_until, ..self }
    }

    /// These commits came before reading counted.
    pub fn with_counted(self, counted: Option<CountedCommits>) -> UnresolvedTransactions {
        UnresolvedTransactions { counted, ..self }
    }

    /// Where an earlier source had read up to; `None` if that is not known.
    pub fn read_until(&self) -> Option<Position> {
        self.read_until.as_ref().map(|position| Position(position.to_string()))
    }

    /// The log is `read` up to there, for the positions that are saved from now on.
    pub fn record_read_until(&self, read: &GtidPosition) {
        let Some(mut read_until) = self.read_until.clone() else { return };
        read_until.add_all(read);
        self.history.lock().set_read_until(Some(Position(read_until.to_string())));
    }

    /// Whether the keys of `xid`, whose XA PREPARE was not read and which `gtid` commits after `read`, were never sent.
    pub fn may_include(&self, xid: &str, read: &GtidPosition, gtid: &Gtid) -> bool {
        let is_named = matches!(&self.unresolved, UnresolvedPrepared::Named(names) if names.contains(xid));
        if is_named || self.counted.as_ref().is_some_and(|counted| counted.include(xid, read, gtid)) {
            return is_named;
        }
        // The GTID itself: commits may complete in another order than the log has them.
        self.read_until.as_ref().map_or(self.is_unknown(), |until| !gtid.is_between(read, until))
    }

    /// Whether the XA PREPARE `gtid` of `xid`, which is read after `read`, is that of another transaction of this name than
    /// the one that is unresolved: then that one has ended, and the log does not show how. What an earlier source had read,
    /// or what was prepared until the transactions were listed, is the same one.
    pub fn is_prepared_again(&self, xid: &str, read: &GtidPosition, gtid: &Gtid) -> bool {
        let UnresolvedPrepared::Named(names) = &self.unresolved else { return false };
        let is_after = |end: &GtidPosition| !gtid.is_between(read, end);
        names.contains(xid)
            && self.read_until.as_ref().is_some_and(is_after)
            && self.counted.as_ref().is_none_or(|counted| is_after(&counted.end))
    }

    /// Those of the position up to which the log is read.
    pub fn present(&self) -> &UnresolvedPrepared {
        &self.unresolved
    }

    /// Whether it is not known which transactions they are.
    pub fn is_unknown(&self) -> bool {
        self.unresolved == UnresolvedPrepared::Unknown
    }

    /// The former transaction `xid` is resolved at `position`, or it was one whose XA PREPARE is read there.
    pub fn resolve(&mut self, xid: &str, position: &GtidPosition) {
        let is_listed = self.listed.as_mut().is_some_and(|listed| listed.names.remove(xid));
        let is_named = match &mut self.unresolved {
            UnresolvedPrepared::Named(names) => names.remove(xid),
            UnresolvedPrepared::Unknown => false,
        };
        if is_listed || is_named {
            self.history.lock().resolve(xid, &Position(position.to_string()));
        }
    }

    /// Compares with the list of the server, once the log is `read` up to it. Returns those that are neither unresolved nor
    /// were resolved in the log.
    pub fn check_list(&mut self, read: &GtidPosition) -> BTreeSet<String> {
        let Some(listed) = self.listed.take_if(|listed| read.covers(&listed.end)) else { return BTreeSet::new() };
        if let UnresolvedPrepared::Named(names) = &self.unresolved {
            return names.difference(&listed.names).cloned().collect();
        }
        self.unresolved = UnresolvedPrepared::from_names(listed.names);
        self.history.lock().begin_at(&Position(read.to_string()), self.unresolved.clone());
        BTreeSet::new()
    }
}

impl Default for UnresolvedTransactions {
    /// Every transaction was prepared after reading began.
    fn default() -> Self {
        UnresolvedTransactions::new(Arc::default(), UnresolvedPrepared::none(), None)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::gtid::{GtidList, GtidSet},
        *,
    };
    use UnresolvedPrepared::Unknown;

    fn position(sequence: u64) -> Position {
        Position(format!("0-1-{sequence}"))
    }

    fn read(sequence: u64) -> GtidPosition {
        GtidPosition::Mariadb(GtidList::parse(&position(sequence).0).expect("a position"))
    }

    fn gtid(sequence: u64) -> Gtid {
        Gtid::Mariadb { domain: 0, server: 1, sequence }
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(ToString::to_string).collect()
    }

    fn named(of: &[&str]) -> UnresolvedPrepared {
        UnresolvedPrepared::Named(names(of))
    }

    fn history(start: UnresolvedPrepared) -> Arc<Mutex<UnresolvedHistory>> {
        let history = Arc::<Mutex<UnresolvedHistory>>::default();
        history.lock().begin_at(&position(10), start);
        history
    }

    #[test]
    fn a_name_is_saved_with_the_positions_before_its_end() {
        let history = history(named(&["a", "b"]));
        let mut reader = UnresolvedTransactions::new(history.clone(), named(&["a", "b"]), None);
        reader.resolve("a", &read(20));
        reader.resolve("never prepared", &read(21));
        let at = |sequence| history.lock().at(&position(sequence));
        assert_eq!((at(9), at(10), at(19)), (None, Some(named(&["a", "b"])), Some(named(&["a", "b"]))));
        assert_eq!((at(20), reader.may_include("a", &read(20), &gtid(21))), (Some(named(&["b"])), false));
    }

    /// The promoted replica may lack the XA ROLLBACK that its primary had, and have other commits with these numbers.
    #[test]
    fn what_was_read_behind_the_position_of_a_restart_does_not_count() {
        let history = history(named(&["a", "b"]));
        let mut reader = UnresolvedTransactions::new(history.clone(), named(&["a", "b"]), None);
        reader.resolve("a", &read(20));
        reader.resolve("b", &read(30));
        history.lock().begin_at(&position(31), Unknown);
        history.lock().rewind(&position(25));
        assert_eq!(history.lock().at(&position(40)), Some(named(&["b"])));
    }

    #[test]
    fn a_later_start_counts_from_its_position_on() {
        let history = history(named(&["a"]));
        history.lock().begin_at(&position(50), named(&["c"]));
        let at = |sequence| history.lock().at(&position(sequence));
        assert_eq!((at(49), at(50)), (Some(named(&["a"])), Some(named(&["c"]))), "the first one may be read again");
        for start in 51..200 {
            history.lock().begin_at(&position(start), named(&[&start.to_string()]));
        }
        assert_eq!(history.lock().starts.len(), STARTS_MAX);
        assert_eq!(history.lock().at(&position(49)), Some(Unknown), "it was dropped");
    }

    #[test]
    fn an_end_that_the_log_does_not_have_is_found() {
        let listed = |listed: &[&str]| Some(PreparedList { names: names(listed), end: read(30) });
        let of = |list| UnresolvedTransactions::new(history(named(&["a", "b", "c"])), named(&["a", "b", "c"]), list);
        let mut reader = of(listed(&["a"]));
        reader.resolve("b", &read(20));
        assert_eq!(reader.check_list(&read(29)), names(&[]), "the rest may still end it");
        assert_eq!(reader.check_list(&read(30)), names(&["c"]));
        assert_eq!(reader.check_list(&read(31)), names(&[]), "once");
        assert_eq!(of(None).check_list(&read(31)), names(&[]), "without a list that is not known");
    }

    #[test]
    fn a_list_ends_the_time_in_which_all_are_unknown() {
        let history = history(Unknown);
        let list = PreparedList { names: names(&["old", "new"]), end: read(30) };
        let mut reader = UnresolvedTransactions::new(history.clone(), Unknown, Some(list));
        reader.resolve("new", &read(20));
        let includes = |reader: &UnresolvedTransactions, xid| reader.may_include(xid, &read(30), &gtid(31));
        assert_eq!((reader.check_list(&read(29)), includes(&reader, "any")), (names(&[]), true));
        assert_eq!(reader.check_list(&read(30)), names(&[]));
        assert!(includes(&reader, "old") && !includes(&reader, "any") && !includes(&reader, "new"));
        let at = |sequence| history.lock().at(&position(sequence));
        assert_eq!((at(29), at(30)), (Some(Unknown), Some(named(&["old"]))));
    }

    /// The last position was held back: a transaction that was prepared before it had ended behind it.
    #[test]
    fn a_commit_of_no_list_is_a_loss_unless_it_was_read() {
        let until =
            |until| UnresolvedTransactions::new(history(named(&["a"])), named(&["a"]), None).with_read_until(until);
        let reader = until(Some(read(12)));
        let may_include = |xid, number| reader.may_include(xid, &read(number - 1), &gtid(number));
        assert!(may_include("a", 12) && !may_include("any", 12) && may_include("any", 13));
        assert!(reader.may_include("any", &read(11), &Gtid::Missing));
        assert!(!until(None).may_include("any", &read(12), &gtid(13)), "where the log was read to is not known");
    }

    #[test]
    fn where_the_log_was_read_to_only_advances() {
        let history = history(UnresolvedPrepared::none());
        let reader = UnresolvedTransactions::new(history.clone(), UnresolvedPrepared::none(), None);
        reader.record_read_until(&read(30));
        assert_eq!(history.lock().read_until(), None, "it is not known where an earlier source had read to");
        let reader = reader.with_read_until(Some(read(12)));
        for (until, recorded) in [(11, 12), (13, 13)] {
            reader.record_read_until(&read(until));
            assert_eq!(history.lock().read_until(), Some(&position(recorded)));
        }
    }

    /// Under a load of XA transactions each start would be a loss.
    #[test]
    fn what_came_before_reading_counted_is_no_loss() {
        for unresolved in [Unknown, named(&["late"])] {
            let reader = UnresolvedTransactions::new(history(unresolved.clone()), unresolved, None);
            let counted = CountedCommits { end: read(12), incomplete: names(&["incomplete"]) };
            let reader = reader.with_read_until(Some(read(10))).with_counted(Some(counted));
            let may_include = |xid, number| reader.may_include(xid, &read(number - 1), &gtid(number));
            assert!(!may_include("any", 12) && may_include("any", 13) && may_include("incomplete", 12));
            assert_eq!(may_include("late", 12), !reader.is_unknown(), "it was prepared at the end of the wait");
        }
    }

    /// The log has it before another one that was complete. Readers saw the old rows when the cluster was flushed.
    #[test]
    fn a_commit_that_was_not_complete_at_the_end_of_the_wait_may_be_a_loss() {
        const SERVER: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562";
        let of =
            |numbers: &str| GtidPosition::Mysql(GtidSet::parse(&format!("{SERVER}:{numbers}")).expect("a position"));
        let origin = (0x3e11_fa47_71ca_11e1_9e33_c80a_a942_9562_u128.to_be_bytes(), String::new());
        let gtid = |number| Gtid::Mysql { origin: origin.clone(), number };
        let counted = CountedCommits { end: of("1-5:7"), incomplete: BTreeSet::new() };
        let reader = UnresolvedTransactions::new(history(Unknown), Unknown, None).with_counted(Some(counted));
        let may_include = |read, number| reader.may_include("any", &of(read), &gtid(number));
        assert!(!may_include("1-4", 5) && may_include("1-5", 6) && !may_include("1-6", 7) && may_include("1-7", 8));
        assert!(reader.may_include("any", &of("1-4"), &Gtid::Missing));
    }

    /// Under a load of short transactions one loss caused the next: the source after the flush is not the one that has
    /// waited.
    #[test]
    fn a_start_counts_for_each_source_from_there_on() {
        let counted = CountedCommits { end: read(12), incomplete: BTreeSet::new() };
        let mut history = UnresolvedHistory::default();
        history.record_start("server", &position(10), Some(counted.clone()));
        for at in [10, 15] {
            history.rewind(&position(at));
            assert_eq!(history.counted("server", &position(at)), Some(counted.clone()));
        }
        history.rewind(&position(9));
        assert_eq!(history.counted("server", &position(10)), None, "it was read from before");
        history.record_start("server", &position(10), Some(counted.clone()));
        assert_eq!(history.counted("promoted", &position(10)), None, "it may complete them later");
        assert_eq!(history.counted("server", &position(10)), None, "it may be a copy of that one");
        history.record_start("server", &position(10), Some(counted));
        history.record_start("server", &position(20), None);
        assert_eq!(history.counted("server", &position(20)), None, "those of a later start are not known");
    }

    #[test]
    fn a_refusal_is_new_when_its_reason_is() {
        let mut history = UnresolvedHistory::default();
        let refusals = [(Some("a"), true), (Some("a"), false), (Some("b"), true), (None, false), (Some("b"), true)];
        for (refusal, is_new) in refusals {
            assert_eq!(history.note_refusal(refusal), is_new, "{refusal:?}");
        }
    }
}
