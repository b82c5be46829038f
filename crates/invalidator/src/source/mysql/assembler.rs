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
//! What a log should not show is taken for the better: keys that would be lost are handed out, counted and warned of
//! ([`Anomalies`]). A delete too many is harmless.
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
    visibility_target::{Awaited, LogEnd},
    xa::{Prepared, Unknown},
};
use crate::{Commit, Position, SourceError, keys};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// The most keys of one [`Commit`]; a larger transaction becomes several.
pub const KEYS_OF_COMMIT_MAX: usize = 10_000;

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
    prepared: Prepared,
    ready: VecDeque<Commit>,
    rejected: u64,
    anomalies: Anomalies,
}

/// What the log showed that it should not show, in numbers of transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Anomalies {
    /// The next one began before their end; their keys were handed out.
    pub unfinished: u64,
    /// Statements or rows stood outside of any; their keys were handed out.
    pub unnumbered: u64,
    /// XA COMMIT of a transaction whose XA PREPARE was not read: keys that it may have named are LOST.
    pub unknown_xids: u64,
}

impl std::ops::Add for Anomalies {
    type Output = Anomalies;

    fn add(self, other: Anomalies) -> Anomalies {
        Anomalies {
            unfinished: self.unfinished + other.unfinished,
            unnumbered: self.unnumbered + other.unnumbered,
            unknown_xids: self.unknown_xids + other.unknown_xids,
        }
    }
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
    Mariadb {
        domain: u32,
        server: u32,
        sequence: u64,
    },
    Mysql {
        origin: Origin,
        number: u64,
    },
    /// The log did not say.
    Missing,
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
            prepared: Prepared::default(),
            ready: VecDeque::new(),
            rejected: 0,
            anomalies: Anomalies::default(),
        }
    }

    /// Where to go on after a restart: all before is handed out or names no key.
    pub fn resume(&self) -> &Progress {
        self.prepared.resume().unwrap_or(&self.read)
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

    /// What the log should not have shown, since the beginning.
    pub fn anomalies(&self) -> Anomalies {
        self.anomalies
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
                self.begin(open, time_s, seen_at);
            }
            Body::MysqlGtid { origin, number, committed_us } => {
                self.begin(Open::new(Gtid::Mysql { origin, number }, committed_us), time_s, seen_at);
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
                self.leave_file(time_s, seen_at);
                self.end = LogEnd {
                    file: String::from_utf8_lossy(file).trim_end_matches('\0').into(),
                    offset,
                    is_inside: false,
                };
            }
            Body::Format { has_checksum } => {
                self.leave_file(time_s, seen_at);
                self.has_checksum = has_checksum;
            }
            Body::Transaction(events) => self.take_transaction(&events, seen_at)?,
            Body::Incident => {
                return Err(SourceError::PositionLost {
                    position: Position(self.resume().to_string()),
                    why: "the server says that it lost a part of its log (an incident event)".into(),
                });
            }
            Body::Other => {}
        }
        // Nothing ends what never began.
        if let Some(open) = self.open.take_if(|open| open.is_unnumbered()) {
            self.note_unnumbered(&open);
            let outbox = open.outbox.clone();
            self.give_up(open, time_s, seen_at);
            self.open = Some(Open { outbox, ..Open::new(Gtid::Missing, None) });
        }
        Ok(())
    }

    fn note_unnumbered(&mut self, open: &Open) {
        tracing::warn!(keys = open.keys.len(), "the log names keys outside of any transaction; they are deleted");
        self.anomalies.unnumbered += 1;
    }

    fn begin(&mut self, open: Open, time_s: u32, seen_at: SystemTime) {
        if let Some(left) = self.open.take().filter(|left| !left.keys.is_empty()) {
            tracing::warn!(
                keys = left.keys.len(),
                "a transaction begins in the log before the end of another, which may be committed; its keys are deleted"
            );
            self.anomalies.unfinished += 1;
            // Where transactions are waited for by number: the one behind it in the log.
            open.gtid.await_in(&mut self.awaited.gtids);
            self.give_up(left, time_s, seen_at);
        }
        self.open = Some(open);
    }

    /// No transaction goes over the end of a file. A server that was killed may leave one without an end, and rolls it
    /// back when it starts again; but tables without transactions keep what was changed.
    fn leave_file(&mut self, time_s: u32, seen_at: SystemTime) {
        if let Some(left) = self.open.take().filter(|left| !left.keys.is_empty()) {
            tracing::info!(
                keys = left.keys.len(),
                "a file of the log ends inside of a transaction; its keys are deleted"
            );
            self.give_up(left, time_s, seen_at);
        }
    }

    /// Hands out the keys of a transaction that has no end. It does not count as read, and readers may never see it:
    /// what is waited for is the place in the log.
    fn give_up(&mut self, left: Open, time_s: u32, seen_at: SystemTime) {
        let committed_at = committed_at(left.committed_us, time_s, seen_at);
        self.awaited.end = Some(LogEnd { is_inside: true, ..self.end.clone() });
        let position = Position(self.resume().to_string());
        for keys in left.keys.chunks(KEYS_OF_COMMIT_MAX) {
            self.ready.push_back(Commit { position: position.clone(), keys: keys.to_vec(), committed_at });
        }
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
            self.prepared.roll_back(&xid);
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
        let table = TableMap::read(body)?;
        if !table.name.eq_ignore_ascii_case(&self.outbox_table) {
            if let Some(open) = &mut self.open {
                open.outbox.remove(&table.table_id);
            }
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
        let open = self.open.get_or_insert_with(|| Open::new(Gtid::Missing, None));
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
        let open = self.open.get_or_insert_with(|| Open::new(Gtid::Missing, None));
        if open.known.insert(key.clone()) {
            open.keys.push(key);
        }
        if open.is_xa {
            self.prepared.check_room(open.keys.len())?;
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
            if open.is_unnumbered() {
                self.note_unnumbered(&open);
            }
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
        self.prepared.hold(xid, open.keys, before)
    }

    /// A prepared transaction is committed.
    fn release(&mut self, xid: &str, time_s: u32, seen_at: SystemTime) {
        let open = self.open.take().unwrap_or_else(|| Open::new(Gtid::Missing, None));
        // Taken before the keys leave `prepared`: until the last part of them the position stays before the XA PREPARE.
        let before = Position(self.resume().to_string());
        let held = match self.prepared.commit(xid) {
            Ok(held) => held,
            Err(Unknown) => {
                tracing::warn!(
                    xid,
                    "a prepared transaction is committed whose XA PREPARE was not read: unless it was read before a \
                     restart, the keys that it named ARE NOT DELETED"
                );
                self.anomalies.unknown_xids += 1;
                None
            }
        };
        let keys = match held {
            Some(held) => {
                if !matches!(open.gtid, Gtid::Mysql { .. }) {
                    self.awaited.xids.push(held.xid);
                }
                held.keys
            }
            None => Vec::new(),
        };
        self.hand_out_from(before, open, keys, time_s, seen_at);
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

    /// Says whether it names keys and the log never said which transaction it is.
    fn is_unnumbered(&self) -> bool {
        matches!(self.gtid, Gtid::Missing) && !self.keys.is_empty()
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

/// When a transaction was committed: what the server says, where it says it. Otherwise the log knows only the whole
/// second, so this is the moment at which we saw the event, or the end of that second when it was seen later. Latency
/// measured from it is too short by up to a second when the log is read late, and never too long by the rounding.
fn committed_at(committed_us: Option<u64>, time_s: u32, seen_at: SystemTime) -> SystemTime {
    match committed_us {
        Some(us) => UNIX_EPOCH + Duration::from_micros(us),
        None => seen_at.min(UNIX_EPOCH + Duration::from_micros(u64::from(time_s) * 1_000_000 + 999_999)),
    }
}

#[cfg(test)]
mod tests;
