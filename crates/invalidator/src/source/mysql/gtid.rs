//! Positions: the transactions that have been read, in the notation of each kind of server.
//!
//! ```text
//! MariaDB  0-1-5,7-2-90                     the last of each domain: domain-server-sequence
//! MySQL    3e11...4562:1-5:8,...:tag:1-3    every transaction, as intervals per server (and tag)
//! ```
//!
//! A position before all transactions is written `none`, so that its text is never empty.

use super::{
    cursor::{Cursor, Malformed},
    settings::ServerKind,
};
use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
};

const NONE: &str = "none";

/// The longest tag of a MySQL GTID.
const TAG_BYTES_MAX: usize = 32;

/// A position in the log of either kind of server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GtidPosition {
    /// MariaDB's notation.
    Mariadb(GtidList),
    /// MySQL's notation.
    Mysql(GtidSet),
}

impl GtidPosition {
    /// The kind of server that has such positions.
    pub fn server_kind(&self) -> ServerKind {
        match self {
            GtidPosition::Mariadb(_) => ServerKind::Mariadb,
            GtidPosition::Mysql(_) => ServerKind::Mysql,
        }
    }

    /// Whether this contains all transactions of `other`. False unless both are of one kind of server.
    pub fn covers(&self, other: &GtidPosition) -> bool {
        match (self, other) {
            (GtidPosition::Mariadb(list), GtidPosition::Mariadb(other)) => list.covers(other),
            (GtidPosition::Mysql(set), GtidPosition::Mysql(other)) => set.covers(other),
            _ => false,
        }
    }

    /// Adds all transactions of `other`, which is of the same kind of server.
    pub fn add_all(&mut self, other: &GtidPosition) {
        match (self, other) {
            (GtidPosition::Mariadb(list), GtidPosition::Mariadb(other)) => list.add_all(other),
            (GtidPosition::Mysql(set), GtidPosition::Mysql(other)) => set.add_all(other),
            _ => {}
        }
    }

    /// Parses the text of a position of the same kind of server.
    pub fn parse_same_kind(&self, text: &str) -> Option<GtidPosition> {
        match self {
            GtidPosition::Mariadb(_) => GtidList::parse(text).map(GtidPosition::Mariadb),
            GtidPosition::Mysql(_) => GtidSet::parse(text).map(GtidPosition::Mysql),
        }
    }
}

impl fmt::Display for GtidPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GtidPosition::Mariadb(list) if list.domains.is_empty() => f.write_str(NONE),
            GtidPosition::Mysql(set) if set.intervals.is_empty() => f.write_str(NONE),
            GtidPosition::Mariadb(list) => list.fmt(f),
            GtidPosition::Mysql(set) => set.fmt(f),
        }
    }
}

/// Whether `position` contains all transactions of `other`. False unless both have the same notation.
pub fn covers(position: &str, other: &str) -> bool {
    match (GtidList::parse(position), GtidList::parse(other)) {
        (Some(position), Some(other)) => position.covers(&other),
        _ => GtidSet::parse(position).zip(GtidSet::parse(other)).is_some_and(|(set, other)| set.covers(&other)),
    }
}

/// How many transactions of `to` are not in `from`. `None` unless both have the same notation.
pub fn transactions_between(from: &str, to: &str) -> Option<u64> {
    if let (Some(from), Some(to)) = (GtidList::parse(from), GtidList::parse(to)) {
        let reached = |domain| from.domains.get(domain).map_or(0, |(_, sequence)| *sequence);
        let between = to.domains.iter().map(|(domain, (_, sequence))| sequence.saturating_sub(reached(domain)));
        return Some(between.fold(0, u64::saturating_add));
    }
    let (from, to) = (GtidSet::parse(from)?, GtidSet::parse(to)?);
    let mut all = from.clone();
    all.add_all(&to);
    Some(all.count().saturating_sub(from.count()))
}

/// MariaDB: the last transaction of each domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GtidList {
    domains: BTreeMap<u32, (u32, u64)>,
}

impl GtidList {
    /// Parses `0-1-5,7-2-90`; empty text and `none` give an empty list.
    pub fn parse(text: &str) -> Option<Self> {
        let mut list = GtidList::default();
        for gtid in parts(text) {
            let mut fields = gtid.trim().split('-');
            let domain = fields.next()?.parse().ok()?;
            let server = fields.next()?.parse().ok()?;
            let sequence = fields.next()?.parse().ok()?;
            if fields.next().is_some() || list.domains.insert(domain, (server, sequence)).is_some() {
                return None;
            }
        }
        Some(list)
    }

    /// Adds a transaction. The last one read from a log counts, whatever its number.
    pub fn add(&mut self, domain: u32, server: u32, sequence: u64) {
        self.domains.insert(domain, (server, sequence));
    }

    /// Advances each domain to where `other` is, if that is further.
    pub fn add_all(&mut self, other: &GtidList) {
        for (domain, &(server, sequence)) in &other.domains {
            if self.domains.get(domain).is_none_or(|&(_, reached)| reached < sequence) {
                self.domains.insert(*domain, (server, sequence));
            }
        }
    }

    /// The part of this that a server has in its log. `state` is its `gtid_binlog_state`: the last transaction of each
    /// domain and server. A promoted replica may lack the newest of its primary's, and have others with their numbers.
    pub fn known_part(&self, state: &str) -> GtidList {
        let mut known = GtidList::default();
        for single in parts(state).filter_map(GtidList::parse) {
            for (domain, (server, last)) in single.domains {
                if let Some(&(own, sequence)) = self.domains.get(&domain)
                    && own == server
                {
                    known.add(domain, server, sequence.min(last));
                }
            }
        }
        known
    }

    /// The domains that have a transaction.
    pub fn domains(&self) -> impl Iterator<Item = u32> {
        self.domains.keys().copied()
    }

    /// Whether the last transaction of some domain is by the same server in both.
    pub fn shares_origin(&self, other: &GtidList) -> bool {
        self.domains
            .iter()
            .any(|(domain, (server, _))| other.domains.get(domain).is_some_and(|(other, _)| other == server))
    }

    /// Whether this list has reached `other` in every domain, by sequence number.
    pub fn covers(&self, other: &GtidList) -> bool {
        other
            .domains
            .iter()
            .all(|(domain, (_, sequence))| self.domains.get(domain).is_some_and(|(_, reached)| reached >= sequence))
    }
}

impl fmt::Display for GtidList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (domain, (server, sequence))) in self.domains.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{domain}-{server}-{sequence}")?;
        }
        Ok(())
    }
}

/// The source of transactions: a server's UUID and a tag, which is usually empty.
pub type Origin = ([u8; 16], String);

/// MySQL: all transactions, as closed intervals, sorted and disjoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GtidSet {
    intervals: BTreeMap<Origin, Vec<(u64, u64)>>,
}

impl GtidSet {
    /// Parses `uuid:1-5:8,uuid:tag:1-3`; empty text and `none` give an empty set.
    pub fn parse(text: &str) -> Option<Self> {
        let mut set = GtidSet::default();
        for part in parts(text) {
            let mut fields = part.trim().split(':');
            let uuid = parse_uuid(fields.next()?)?;
            let mut tag = String::new();
            for field in fields.map(str::trim) {
                if field.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
                    tag = Some(field).filter(|tag| tag.len() <= TAG_BYTES_MAX)?.to_ascii_lowercase();
                    continue;
                }
                let (first, last) = field.split_once('-').unwrap_or((field, field));
                let (first, last) = (first.parse().ok()?, last.parse().ok()?);
                if first == 0 || first > last {
                    return None;
                }
                set.add_interval((uuid, tag.clone()), first, last);
            }
        }
        Some(set)
    }

    /// Adds a transaction.
    pub fn add(&mut self, origin: Origin, number: u64) {
        self.add_interval(origin, number, number);
    }

    /// Whether both have a transaction of the same server.
    pub fn shares_origin(&self, other: &GtidSet) -> bool {
        let has = |uuid: &[u8; 16]| self.intervals.keys().any(|(own, _)| own == uuid);
        other.intervals.keys().any(|(uuid, _)| has(uuid))
    }

    /// Adds all transactions of `other`.
    pub fn add_all(&mut self, other: &GtidSet) {
        for (origin, intervals) in &other.intervals {
            for &(first, last) in intervals {
                self.add_interval(origin.clone(), first, last);
            }
        }
    }

    fn add_interval(&mut self, origin: Origin, first: u64, last: u64) {
        let intervals = self.intervals.entry(origin).or_default();
        // Merge all intervals that touch or overlap the new one. Usually the last one grows by one.
        let from = intervals.partition_point(|&(_, end)| end.saturating_add(1) < first);
        let until = intervals.partition_point(|&(start, _)| start <= last.saturating_add(1));
        let joined = intervals[from..until]
            .iter()
            .fold((first, last), |(first, last), &(start, end)| (first.min(start), last.max(end)));
        intervals.splice(from..until, [joined]);
    }

    fn count(&self) -> u64 {
        self.intervals.values().flatten().fold(0, |sum: u64, (first, last)| sum.saturating_add(last - first + 1))
    }

    /// Whether this set has all transactions of `other`.
    pub fn covers(&self, other: &GtidSet) -> bool {
        let has = |origin: &Origin, (first, last): (u64, u64)| {
            let intervals = self.intervals.get(origin).map_or(&[][..], Vec::as_slice);
            intervals.iter().any(|&(start, end)| start <= first && last <= end)
        };
        other.intervals.iter().all(|(origin, parts)| parts.iter().all(|&part| has(origin, part)))
    }

    /// Whether any transaction has a tag. Such sets need servers from 8.3 on, and another wire format.
    pub fn has_tags(&self) -> bool {
        self.intervals.keys().any(|(_, tag)| !tag.is_empty())
    }

    /// The wire format of the set in a dump command.
    ///
    /// ```text
    /// untagged  | origins: 8 |                       each: | uuid: 16 |                         | intervals: 8 | first: 8, end: 8 | ...
    /// tagged    | 1: 1 | origins: 6 | 1: 1 |         each: | uuid: 16 | tag: length, characters | intervals: 8 | first: 8, end: 8 | ...
    /// ```
    pub fn encode(&self) -> Vec<u8> {
        let tagged = self.has_tags();
        let origins = self.intervals.len() as u64;
        let mut bytes = match tagged {
            false => origins.to_le_bytes().to_vec(),
            true => (1 << 56 | origins << 8 | 1_u64).to_le_bytes().to_vec(),
        };
        for ((uuid, tag), intervals) in &self.intervals {
            bytes.extend_from_slice(uuid);
            if tagged {
                // A varlen integer of one byte: the value above one zero bit.
                bytes.push((tag.len() as u8) << 1);
                bytes.extend_from_slice(tag.as_bytes());
            }
            bytes.extend_from_slice(&(intervals.len() as u64).to_le_bytes());
            for (first, last) in intervals {
                bytes.extend_from_slice(&first.to_le_bytes());
                bytes.extend_from_slice(&last.saturating_add(1).to_le_bytes());
            }
        }
        bytes
    }
}

impl fmt::Display for GtidSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, ((uuid, tag), intervals)) in self.intervals.iter().enumerate() {
            let mut text = String::with_capacity(64);
            for (index, byte) in uuid.iter().enumerate() {
                let dash = if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" };
                write!(text, "{dash}{byte:02x}")?;
            }
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{text}")?;
            if !tag.is_empty() {
                write!(f, ":{tag}")?;
            }
            for (first, last) in intervals {
                match first == last {
                    true => write!(f, ":{first}")?,
                    false => write!(f, ":{first}-{last}")?,
                }
            }
        }
        Ok(())
    }
}

/// Parses a tagged GTID event: fields in MySQL's own serialization. Only the first four are read: flags, UUID, number,
/// tag.
pub fn read_tagged(mut cursor: Cursor<'_>) -> Result<(Origin, u64), Malformed> {
    // | version: varlen | size: varlen | last field that must be known: varlen | field id: varlen, field | ...
    for _ in 0..3 {
        varlen(&mut cursor)?;
    }
    let (mut uuid, mut number, mut tag) = ([0; 16], 0, String::new());
    for expected in 0..4 {
        if varlen(&mut cursor)? != expected {
            return Err(Malformed("a tagged transaction number"));
        }
        match expected {
            0 => {
                varlen(&mut cursor)?;
            }
            1 => {
                for byte in &mut uuid {
                    *byte = u8::try_from(varlen(&mut cursor)?).map_err(|_| Malformed("a server's UUID"))?;
                }
            }
            // A signed number with its sign in the lowest bit.
            2 => number = varlen(&mut cursor)? >> 1,
            _ => {
                let length = usize::try_from(varlen(&mut cursor)?).unwrap_or(usize::MAX);
                if length > TAG_BYTES_MAX {
                    return Err(Malformed("a transaction's tag"));
                }
                tag = String::from_utf8_lossy(cursor.read_slice(length)?).into_owned();
            }
        }
    }
    Ok(((uuid, tag), number))
}

/// MySQL's integer of variable length: as many low one bits as bytes follow, a zero bit, then the value.
fn varlen(cursor: &mut Cursor<'_>) -> Result<u64, Malformed> {
    let first = cursor.u8()?;
    let more = first.trailing_ones() as usize;
    let high = cursor.uint(more)?;
    Ok(match more {
        8 => high,
        7 => high,
        _ => u64::from(first) >> (more + 1) | high << (7 - more),
    })
}

/// Whether `text` is a position that no transaction is before.
pub fn is_empty(text: &str) -> bool {
    parts(text).next().is_none()
}

fn parts(text: &str) -> impl Iterator<Item = &str> {
    let text = text.trim();
    text.split(',').filter(move |_| !text.is_empty() && text != NONE)
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.trim().bytes().filter(|&byte| byte != b'-').collect();
    let mut uuid = [0; 16];
    if digits.len() != 32 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    for (byte, pair) in uuid.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(uuid)
}

#[cfg(test)]
mod tests {
    use super::{GtidList, GtidPosition, GtidSet, covers, transactions_between};

    const UUID: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562";

    #[test]
    fn positions_round_trip() {
        for text in ["none", "0-1-5", "0-1-5,7-2-18446744073709551615"] {
            assert_eq!(GtidPosition::Mariadb(GtidList::parse(text).expect(text)).to_string(), text);
        }
        for text in ["none", &format!("{UUID}:1-5:8"), &format!("{UUID}:1,{UUID}:blue:2-3")] {
            assert_eq!(GtidPosition::Mysql(GtidSet::parse(text).expect(text)).to_string(), text);
        }
    }

    #[test]
    fn transactions_between_positions_are_counted() {
        let other = "3e11fa47-71ca-11e1-9e33-c80aa9429563";
        let (set, newer) = (format!("{UUID}:1-5:8"), format!("{UUID}:1-10,{other}:1-3"));
        for (from, to, count) in [
            ("none", "none", Some(0)),
            ("0-1-5,1-1-7", "0-2-8,7-2-90", Some(93)),
            ("0-1-5", "0-1-3", Some(0)),
            (&set, &newer, Some(7)),
            (&newer, &set, Some(0)),
            ("none", &format!("{UUID}:1-18446744073709551615,{other}:1-9"), Some(u64::MAX)),
            ("0-1-5", &set, None),
        ] {
            assert_eq!(transactions_between(from, to), count, "{from} {to}");
        }
    }

    #[test]
    fn invalid_positions_are_refused() {
        for text in ["0-1", "0-1-5-6", "0-1-x", "0-1-5,0-2-6", ",", "0-1-5,"] {
            assert_eq!(GtidList::parse(text), None, "{text}");
        }
        for text in ["x:1", &format!("{UUID}:5-1"), &format!("{UUID}:0"), &format!("{UUID}:1-"), "3e11:1"] {
            assert_eq!(GtidSet::parse(text), None, "{text}");
        }
    }

    #[test]
    fn intervals_grow_and_merge() {
        let mut set = GtidSet::parse(&format!("{UUID}:1-3:7:9-10")).expect("a set");
        let origin = set.intervals.keys().next().expect("one").clone();
        set.add(origin.clone(), 4);
        assert_eq!(set.to_string(), format!("{UUID}:1-4:7:9-10"));
        set.add(origin.clone(), 8);
        assert_eq!(set.to_string(), format!("{UUID}:1-4:7-10"));
        set.add_interval(origin.clone(), 2, 20);
        assert_eq!(set.to_string(), format!("{UUID}:1-20"));
        set.add(origin, 22);
        assert_eq!(set.to_string(), format!("{UUID}:1-20:22"));
    }

    #[test]
    fn positions_of_one_notation_are_compared() {
        assert!(covers("0-1-5,1-1-9", "0-1-5") && covers("0-1-5", "none") && covers("none", ""));
        assert!(!covers("none", "0-1-1") && !covers("0-1-5", "nonsense"));
        let set = |intervals: &str| format!("{UUID}:{intervals}");
        assert!(covers(&set("1-20"), &set("3-7:9")) && covers(&set("1-20"), "none"));
        assert!(!covers(&set("1-4:6-20"), &set("3-7")) && !covers(&set("1-20"), &set("tag:1")));
        assert!(!covers("none", &set("1")) && !covers("0-1-5", &set("1")));
    }

    /// After a failover the numbers of one that the new primary lacks belong to others.
    #[test]
    fn the_known_part_of_a_list_ends_where_two_servers_part() {
        let list = |text| GtidList::parse(text).expect("a list");
        for (state, known) in
            [("0-1-70,0-2-50,7-3-9", "0-1-60,7-3-9"), ("0-1-54,0-2-58", "0-1-54"), ("0-2-70", "none"), ("", "none")]
        {
            assert_eq!(list("0-1-60,7-3-9").known_part(state), list(known), "{state}");
        }
    }

    #[test]
    fn lists_are_merged_by_domain() {
        let list = |text| GtidList::parse(text).expect("a list");
        let mut merged = list("0-1-5,1-1-9");
        merged.add_all(&list("0-2-7,1-2-8,2-1-1"));
        assert_eq!(merged, list("0-2-7,1-1-9,2-1-1"));
    }

    #[test]
    fn lists_are_compared_by_domain() {
        let list = |text| GtidList::parse(text).expect("a list");
        assert!(list("0-1-5,1-1-9").covers(&list("0-2-5")));
        assert!(!list("0-1-5,1-1-9").covers(&list("0-1-6")));
        assert!(!list("0-1-5").covers(&list("1-1-1")));
        assert!(list("none").covers(&list("none")));
    }
}
