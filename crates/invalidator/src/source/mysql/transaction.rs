//! From events to commits: what a transaction named, and when it is over. Events in, commits out; no sockets.
//!
//! | what the log shows | what becomes of the keys |
//! |---|---|
//! | statements, inserted outbox rows | collected, each once a transaction |
//! | end of the transaction | handed out, at its position |
//! | XA PREPARE | held under the transaction's name |
//! | XA COMMIT | the held keys are handed out |
//! | XA ROLLBACK | the held keys are dropped |
//!
//! A transaction that was rolled back never reaches the log, nor what was undone by ROLLBACK TO SAVEPOINT.
//!
//! Invariants:
//! * While keys are held for a prepared transaction, the position handed out stays before its XA PREPARE: after a
//!   restart it is read again. A prepared transaction that nobody ends therefore holds the position back; commits
//!   behind it are still handed out.
//! * A transaction of over [`KEYS_OF_COMMIT_MAX`] keys is handed out in parts. All but the last carry the position
//!   before it, so a restart in between reads all of it again: a delete too often, never one too few.

use super::{
    event::{self, Body, Event},
    gtid::{GtidSet, Origin, Progress},
    rows::{self, Columns, Present, TableMap},
};
use crate::{Commit, Position, SourceError, keys};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// The most keys of one [`Commit`]; a larger transaction becomes several.
pub const KEYS_OF_COMMIT_MAX: usize = 10_000;

/// The most keys held for prepared transactions. Over it the source stops and says so: dropping keys would lose
/// deletes, and handing them out before the commit would let readers fill the cache with the old value again.
pub const KEYS_HELD_MAX: usize = 1_000_000;

/// The most prepared transactions held: each keeps a copy of the position.
const TRANSACTIONS_HELD_MAX: usize = 10_000;

/// The most outbox tables known at once. The log describes a table anew in each statement.
const TABLES_MAX: usize = 1_000;

/// Puts events together.
pub struct Assembler {
    outbox_table: Vec<u8>,
    has_checksum: bool,
    /// All whole transactions up to here have been read.
    read: Progress,
    /// Where the log stands.
    end: LogEnd,
    awaited: Awaited,
    finished: u64,
    open: Option<Open>,
    held: Vec<Held>,
    ready: VecDeque<Commit>,
    rejected: u64,
}

/// What readers must see before the keys that were handed out may be deleted. Each kind of server has its own way to
/// say it; the other one's stays empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Awaited {
    /// MariaDB: the end of the last transaction in the log.
    pub end: Option<LogEnd>,
    /// MySQL: the transactions.
    pub gtids: GtidSet,
    /// MariaDB: prepared transactions that the log shows committed. A snapshot's place in the log says nothing of
    /// them: they are committed in the log first and in the tables after, outside of the order that snapshots keep.
    pub xids: Vec<String>,
}

impl Awaited {
    /// Waits for `later` too.
    pub fn add(&mut self, later: Awaited) {
        self.end = later.end.or(self.end.take());
        self.gtids.add_all(&later.gtids);
        self.xids.extend(later.xids);
    }
}

/// A place in the log, by file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogEnd {
    /// The file's name; empty before the first event.
    pub file: String,
    /// An offset in it. Grows over 2^32 although events count modulo that.
    pub offset: u64,
    /// Whether the offset is before the end of the transaction: it must be passed, not just reached.
    pub is_inside: bool,
}

/// A transaction whose end was not read yet.
struct Open {
    gtid: Gtid,
    /// Whether it is one event, without an end of its own.
    is_standalone: bool,
    is_begun: bool,
    committed_us: Option<u64>,
    keys: Vec<Vec<u8>>,
    known: BTreeSet<Vec<u8>>,
    outbox: BTreeMap<u64, Columns>,
    is_xa: bool,
}

enum Gtid {
    Mariadb { domain: u32, server: u32, sequence: u64 },
    Mysql { origin: Origin, number: u64 },
}

struct Held {
    xid: String,
    keys: Vec<Vec<u8>>,
    before: Progress,
}

impl Assembler {
    /// Begins after `read`. `has_checksum` is how the server sends its first event.
    pub fn new(outbox_table: &str, read: Progress, has_checksum: bool) -> Self {
        Assembler {
            outbox_table: outbox_table.as_bytes().to_ascii_lowercase(),
            has_checksum,
            read,
            end: LogEnd::default(),
            awaited: Awaited::default(),
            finished: 0,
            open: None,
            held: Vec::new(),
            ready: VecDeque::new(),
            rejected: 0,
        }
    }

    /// Where to go on after a restart: all before is handed out or names no key.
    pub fn resume(&self) -> &Progress {
        self.held.first().map_or(&self.read, |held| &held.before)
    }

    /// How many transactions were read to their end: when it has grown, [`Assembler::resume`] may have.
    pub fn finished(&self) -> u64 {
        self.finished
    }

    /// What readers must see before the keys handed out so far may be deleted. The gate clears it when they do.
    pub fn awaited(&mut self) -> &mut Awaited {
        &mut self.awaited
    }

    /// Keys that were named but cannot be keys, since the beginning.
    pub fn rejected(&self) -> u64 {
        self.rejected
    }

    /// Commits in order, as they became complete.
    pub fn ready(&mut self) -> &mut VecDeque<Commit> {
        &mut self.ready
    }

    /// Takes in one event, which was received at `seen_at`.
    pub fn take(&mut self, bytes: &[u8], seen_at: SystemTime) -> Result<(), SourceError> {
        let event = Event::read(bytes, self.has_checksum)?;
        // Events that belong to no transaction may carry ends from anywhere.
        if !event.is_artificial && !matches!(event.body, Body::Other | Body::Format { .. } | Body::Rotate { .. }) {
            self.end.advance(event.end);
        }
        self.take_event(event, seen_at)
    }

    fn take_event(&mut self, event: Event<'_>, seen_at: SystemTime) -> Result<(), SourceError> {
        let time_s = event.time_s;
        match event.body {
            Body::MariadbGtid { domain, sequence, flags } => {
                let gtid = Gtid::Mariadb { domain, server: event.server_id, sequence };
                let mut open = Open::new(gtid, None);
                open.is_standalone = flags & event::STANDALONE != 0;
                open.is_begun = !open.is_standalone;
                open.is_xa = flags & event::PREPARED_XA != 0;
                self.open = Some(open);
            }
            Body::MysqlGtid { origin, number, committed_us } => {
                self.open = Some(Open::new(Gtid::Mysql { origin, number }, committed_us));
            }
            Body::Anonymous => {
                return Err(SourceError::Unusable {
                    why: "the log has a transaction without a GTID: set gtid_mode=ON and start from after it".into(),
                });
            }
            Body::Statement(sql) => self.take_sql(sql, time_s, seen_at)?,
            Body::Query(sql) => self.take_query(&sql, time_s, seen_at)?,
            Body::TableMap(body) => self.take_table(body)?,
            Body::WriteRows { body, has_extra, is_compressed } => {
                self.take_rows(body, has_extra, is_compressed, time_s, seen_at)?;
            }
            Body::Xid => self.finish(time_s, seen_at),
            Body::XaPrepare { is_committed: true, .. } => self.finish(time_s, seen_at),
            Body::XaPrepare { xid, is_committed: false } => self.hold(xid)?,
            Body::Rotate { file, offset } => {
                self.end = LogEnd {
                    file: String::from_utf8_lossy(file).trim_end_matches('\0').into(),
                    offset,
                    is_inside: false,
                };
            }
            Body::Format { has_checksum } => self.has_checksum = has_checksum,
            Body::Transaction(events) => self.take_transaction(&events, seen_at)?,
            Body::Incident => {
                return Err(SourceError::PositionLost {
                    position: Position(self.resume().to_string()),
                    why: "the server says that it lost a part of its log (an incident event)".into(),
                });
            }
            Body::Other => {}
        }
        Ok(())
    }

    /// The events of a compressed transaction have no checksums and no places of their own.
    fn take_transaction(&mut self, mut events: &[u8], seen_at: SystemTime) -> Result<(), SourceError> {
        while !events.is_empty() {
            let (bytes, rest) = events.split_at(event::length_of(events)?);
            events = rest;
            let event = Event::read(bytes, false)?;
            // One payload within another is nothing that a server sends, and would let it grow without end.
            if !matches!(event.body, Body::Transaction(_)) {
                self.take_event(event, seen_at)?;
            }
        }
        Ok(())
    }

    fn take_sql(&mut self, sql: &[u8], time_s: u32, seen_at: SystemTime) -> Result<(), SourceError> {
        let mut found = Vec::new();
        keys::keys_in(sql, &mut found, &mut self.rejected);
        for key in found {
            self.add_key(key, time_s, seen_at)?;
        }
        Ok(())
    }

    fn take_query(&mut self, sql: &[u8], time_s: u32, seen_at: SystemTime) -> Result<(), SourceError> {
        let text = sql.trim_ascii();
        let is = |word: &[u8]| text.eq_ignore_ascii_case(word);
        let after = |words: &[u8]| {
            let (head, rest) = text.split_at_checked(words.len())?;
            head.eq_ignore_ascii_case(words).then(|| String::from_utf8_lossy(rest).trim().to_ascii_lowercase())
        };
        if is(b"BEGIN") || after(b"XA START ").is_some() {
            if let Some(open) = &mut self.open {
                open.is_begun = true;
                open.is_xa |= !is(b"BEGIN");
            }
        } else if is(b"COMMIT") || is(b"ROLLBACK") {
            // A ROLLBACK in the log means that tables without transactions were changed: their changes stay.
            self.finish(time_s, seen_at);
        } else if let Some(xid) = after(b"XA COMMIT ") {
            self.release(xid.trim_end_matches(" one phase"), time_s, seen_at);
        } else if let Some(xid) = after(b"XA ROLLBACK ") {
            self.held.retain(|held| held.xid != xid);
            self.finish(time_s, seen_at);
        } else {
            self.take_sql(sql, time_s, seen_at)?;
            if self.open.as_ref().is_some_and(|open| open.is_standalone || !open.is_begun) {
                self.finish(time_s, seen_at);
            }
        }
        Ok(())
    }

    fn take_table(&mut self, body: &[u8]) -> Result<(), SourceError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let table = TableMap::read(body)?;
        if !table.name.eq_ignore_ascii_case(&self.outbox_table) {
            open.outbox.remove(&table.table_id);
            return Ok(());
        }
        let (table_id, columns) = (table.table_id, table.columns()?);
        if !columns.first_is_bytes() {
            return Err(SourceError::Unusable {
                why: format!(
                    "the first column of table {} holds the key and must be VARBINARY, VARCHAR, CHAR, BINARY, TEXT or \
                     BLOB, not compressed",
                    String::from_utf8_lossy(&self.outbox_table)
                ),
            });
        }
        if open.outbox.len() < TABLES_MAX || open.outbox.contains_key(&table_id) {
            open.outbox.insert(table_id, columns);
            return Ok(());
        }
        Err(SourceError::Unusable { why: format!("one transaction inserts into over {TABLES_MAX} outbox tables") })
    }

    fn take_rows(
        &mut self,
        body: &[u8],
        has_extra: bool,
        is_compressed: bool,
        time_s: u32,
        seen_at: SystemTime,
    ) -> Result<(), SourceError> {
        let Some(open) = &self.open else { return Ok(()) };
        let (head, mut cursor) = rows::rows_head(body)?;
        let mut found = Vec::new();
        if let Some(columns) = open.outbox.get(&head.table_id) {
            let present = Present::read(&mut cursor, has_extra)?;
            let inflated = if is_compressed { event::inflate(cursor.rest())? } else { Vec::new() };
            let rows = if is_compressed { &inflated } else { cursor.rest() };
            columns.first_of_each(&present, rows, |key| {
                keys::accept(key.unwrap_or_default(), &mut found, &mut self.rejected);
            })?;
        }
        let ends = open.is_standalone && head.flags & rows::STATEMENT_END != 0;
        for key in found {
            self.add_key(key, time_s, seen_at)?;
        }
        if ends {
            self.finish(time_s, seen_at);
        }
        Ok(())
    }

    fn add_key(&mut self, key: Vec<u8>, time_s: u32, seen_at: SystemTime) -> Result<(), SourceError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        if open.known.insert(key.clone()) {
            open.keys.push(key);
        }
        if open.is_xa {
            let held: usize = self.held.iter().map(|held| held.keys.len()).sum();
            if held + open.keys.len() > KEYS_HELD_MAX {
                return Err(too_many_held());
            }
        } else if open.keys.len() == KEYS_OF_COMMIT_MAX {
            let part = std::mem::take(&mut open.keys);
            open.known.clear();
            let committed_at = committed_at(open.committed_us, time_s, seen_at);
            self.awaited.end = Some(LogEnd { is_inside: true, ..self.end.clone() });
            open.gtid.await_in(&mut self.awaited.gtids);
            let position = Position(self.resume().to_string());
            self.ready.push_back(Commit { position, keys: part, committed_at });
        }
        Ok(())
    }

    /// The open transaction is committed.
    fn finish(&mut self, time_s: u32, seen_at: SystemTime) {
        if let Some(mut open) = self.open.take() {
            let keys = std::mem::take(&mut open.keys);
            self.hand_out(open, keys, time_s, seen_at);
        }
    }

    /// `open` makes `keys` stale, and readers are about to see that.
    fn hand_out(&mut self, open: Open, keys: Vec<Vec<u8>>, time_s: u32, seen_at: SystemTime) {
        let before = Position(self.resume().to_string());
        self.hand_out_from(before, open, keys, time_s, seen_at);
    }

    /// As `hand_out`; all parts but the last carry `before`.
    fn hand_out_from(&mut self, before: Position, open: Open, keys: Vec<Vec<u8>>, time_s: u32, seen_at: SystemTime) {
        let committed_at = committed_at(open.committed_us, time_s, seen_at);
        open.gtid.add_to(&mut self.read);
        self.finished += 1;
        if keys.is_empty() {
            return;
        }
        self.awaited.end = Some(self.end.clone());
        open.gtid.await_in(&mut self.awaited.gtids);
        let mut parts = keys.chunks(KEYS_OF_COMMIT_MAX).peekable();
        while let Some(part) = parts.next() {
            let position = match parts.peek() {
                Some(_) => before.clone(),
                None => Position(self.resume().to_string()),
            };
            self.ready.push_back(Commit { position, keys: part.to_vec(), committed_at });
        }
    }

    /// The open transaction is prepared.
    fn hold(&mut self, xid: String) -> Result<(), SourceError> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let before = self.read.clone();
        open.gtid.add_to(&mut self.read);
        self.finished += 1;
        if !open.keys.is_empty() {
            self.held.push(Held { xid, keys: open.keys, before });
        }
        if self.held.len() > TRANSACTIONS_HELD_MAX {
            return Err(too_many_held());
        }
        Ok(())
    }

    /// A prepared transaction is committed.
    fn release(&mut self, xid: &str, time_s: u32, seen_at: SystemTime) {
        let Some(open) = self.open.take() else { return };
        let Some(at) = self.held.iter().position(|held| held.xid == xid) else {
            // It named no key, or was prepared before the position that we were told to begin at.
            tracing::info!(xid, "a prepared transaction is committed of which no key is known");
            return self.hand_out(open, Vec::new(), time_s, seen_at);
        };
        // Taken before the keys leave `held`: until the last part of them the position stays before the XA PREPARE.
        let before = Position(self.resume().to_string());
        let held = self.held.remove(at);
        if matches!(open.gtid, Gtid::Mariadb { .. }) {
            self.awaited.xids.push(held.xid);
        }
        self.hand_out_from(before, open, held.keys, time_s, seen_at);
    }
}

impl Open {
    fn new(gtid: Gtid, committed_us: Option<u64>) -> Self {
        Open {
            gtid,
            is_standalone: false,
            is_begun: false,
            committed_us,
            keys: Vec::new(),
            known: BTreeSet::new(),
            outbox: BTreeMap::new(),
            is_xa: false,
        }
    }
}

impl Gtid {
    fn await_in(&self, awaited: &mut GtidSet) {
        if let Gtid::Mysql { origin, number } = self {
            awaited.add(origin.clone(), *number);
        }
    }

    fn add_to(&self, progress: &mut Progress) {
        match (self, progress) {
            (&Gtid::Mariadb { domain, server, sequence }, Progress::Mariadb(list)) => {
                list.add(domain, server, sequence);
            }
            (Gtid::Mysql { origin, number }, Progress::Mysql(set)) => set.add(origin.clone(), *number),
            // A server of one kind with a log of the other: replicas across kinds do not keep foreign numbers.
            _ => {}
        }
    }
}

impl LogEnd {
    fn advance(&mut self, end: u32) {
        if end == 0 {
            return;
        }
        let high = self.offset & !0xffff_ffff;
        let next = high | u64::from(end);
        // Offsets only grow within a file: a smaller one has passed 2^32.
        self.offset = if next < self.offset { next + (1 << 32) } else { next };
    }
}

/// When a transaction was committed: what the server says, where it says it. Otherwise the log knows only the whole
/// second, so this is the moment at which we saw the event, or the end of that second when it was seen later. Latency
/// measured from it is too short by up to a second when the log is read late, and never too long by the rounding.
fn committed_at(committed_us: Option<u64>, time_s: u32, seen_at: SystemTime) -> SystemTime {
    match committed_us {
        Some(us) => UNIX_EPOCH + Duration::from_micros(us),
        None => seen_at.min(UNIX_EPOCH + Duration::from_micros(u64::from(time_s) * 1_000_000 + 999_999)),
    }
}

fn too_many_held() -> SourceError {
    SourceError::Unusable {
        why: format!(
            "prepared transactions hold over {KEYS_HELD_MAX} keys, or too many wait: commit or roll back what XA RECOVER \
             lists, then start again"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::{Assembler, LogEnd};
    use crate::source::mysql::gtid::{GtidList, Progress};
    use proptest::prelude::*;
    use std::time::UNIX_EPOCH;

    fn assembler(has_checksum: bool) -> Assembler {
        Assembler::new("lookaside_outbox", Progress::Mariadb(GtidList::default()), has_checksum)
    }

    fn event(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(19 + body.len()).expect("a short event");
        let mut bytes = vec![1, 0, 0, 0, kind, 1, 0, 0, 0];
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&[100, 0, 0, 0, 0, 0]);
        bytes.extend_from_slice(body);
        bytes
    }

    /// A transaction of MariaDB that inserts one row into the outbox.
    fn outbox_transaction() -> Vec<Vec<u8>> {
        let mut table = vec![7, 0, 0, 0, 0, 0, 0, 0, 3];
        table.extend_from_slice(b"app\0\x10lookaside_outbox\0\x02\x0f\x03\x02\xfa\0\x03");
        vec![
            event(162, &[9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0]),
            event(160, b"INSERT INTO lookaside_outbox VALUES ('out', 1) /* lookaside: said */"),
            event(19, &table),
            event(23, b"\x07\0\0\0\0\0\x01\0\x02\x03\0\x03out\x01\0\0\0"),
            event(16, &[0; 8]),
        ]
    }

    #[test]
    fn a_transaction_is_put_together() {
        let mut assembler = assembler(false);
        for bytes in outbox_transaction() {
            assert!(assembler.ready().is_empty(), "nothing before the end");
            assembler.take(&bytes, UNIX_EPOCH).expect("good events");
        }
        let commit = assembler.ready().pop_front().expect("a commit");
        assert_eq!(commit.keys, [b"said".to_vec(), b"out".to_vec()]);
        assert_eq!(commit.position.0, "0-1-9");
    }

    #[test]
    fn offsets_grow_over_4_gib() {
        let mut end = LogEnd { offset: 0xffff_fff0, ..LogEnd::default() };
        end.advance(0);
        assert_eq!(end.offset, 0xffff_fff0, "not said is not changed");
        end.advance(0x10);
        assert_eq!(end.offset, 0x1_0000_0010);
        end.advance(0x20);
        assert_eq!(end.offset, 0x1_0000_0020);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Whatever a server sends, there is an answer and not a panic.
        #[test]
        fn no_bytes_make_it_panic(
            events in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 0..80)), 0..8),
            has_checksum: bool,
        ) {
            let mut assembler = assembler(has_checksum);
            for (kind, body) in events {
                let _ = assembler.take(&event(kind, &body), UNIX_EPOCH);
                let _ = assembler.take(&body, UNIX_EPOCH);
            }
        }

        /// Good events with some bytes changed or cut off get further in than noise does.
        #[test]
        fn no_damage_makes_it_panic(
            changes in prop::collection::vec((0_usize..5, any::<prop::sample::Index>(), any::<u8>()), 1..4),
            cut in (0_usize..5, any::<prop::sample::Index>()),
        ) {
            let mut events = outbox_transaction();
            for (which, at, byte) in changes {
                let at = at.index(events[which].len());
                events[which][at] = byte;
            }
            let length = cut.1.index(events[cut.0].len()) + 1;
            events[cut.0].truncate(length);
            let mut assembler = assembler(false);
            for bytes in events {
                let _ = assembler.take(&bytes, UNIX_EPOCH);
            }
        }
    }
}
