//! Values that seem wrong and wait to be read again.

use super::{comparison::Comparand, queries::Query};
use std::collections::VecDeque;
use tokio::time::Instant;

/// The most suspects at a time.
const SUSPECTS_MAX: usize = 10_000;
/// The most bytes of them at a time, but for the last one.
const BYTES_MAX: usize = 64 << 20;

/// A value that may be wrong.
pub struct Suspect<'a> {
    /// The query of its key.
    pub query: &'a Query,
    /// The values of the key's placeholders.
    pub values: Vec<String>,
    pub key: &'a [u8],
    /// The index of the cluster that has it.
    pub cluster: usize,
    /// What was read at first.
    pub seen: Comparand,
    /// When it is to be read again.
    pub due_at: Instant,
}

/// The suspects, in the order in which they are due. A caller that finds it full reads the first one again, when that
/// is due, before it compares further keys.
#[derive(Default)]
pub struct Suspects<'a> {
    queue: VecDeque<Suspect<'a>>,
    bytes: usize,
}

impl<'a> Suspects<'a> {
    /// Adds one, which is due after all others.
    pub fn push(&mut self, suspect: Suspect<'a>) {
        self.bytes += suspect.seen.bytes();
        self.queue.push_back(suspect);
    }

    /// The first one, if it is due, or if there is no space for another one.
    pub fn pop_due(&mut self, now: Instant) -> Option<Suspect<'a>> {
        let is_due = self.queue.front()?.due_at <= now;
        if is_due || self.is_full() { self.pop() } else { None }
    }

    /// The first one.
    pub fn pop(&mut self) -> Option<Suspect<'a>> {
        let suspect = self.queue.pop_front()?;
        self.bytes -= suspect.seen.bytes();
        Some(suspect)
    }

    fn is_full(&self) -> bool {
        self.queue.len() >= SUSPECTS_MAX || self.bytes >= BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::{cached_value::CachedValue, comparison::CachedItem, queries::Queries};
    use std::time::Duration;

    const FILE: &str = "[[query]]\nkey = 'user:{id}'\nsql = 'SELECT name FROM users WHERE id = {id}'";

    fn suspect(query: &Query, value_bytes: usize, due_at: Instant) -> Suspect<'_> {
        let row = Some(vec![("name".to_owned(), Some("ada".to_owned()))]);
        let value = CachedValue::Text(vec![0; value_bytes].into());
        let cached = Some(CachedItem { cas: 1, value });
        let seen = Comparand { before: row.clone(), cached, after: row };
        Suspect { query, values: Vec::new(), key: b"user:1", cluster: 0, seen, due_at }
    }

    /// How many suspects of a size there are when no further key is compared, none of which is due.
    fn held(value_bytes: usize) -> usize {
        let queries = Queries::parse(FILE).expect("valid");
        let query = queries.iter().next().expect("it has one");
        let (now, mut suspects) = (Instant::now(), Suspects::default());
        (1..=2 * SUSPECTS_MAX)
            .find(|_| {
                suspects.push(suspect(query, value_bytes, now + Duration::from_secs(3_600)));
                suspects.pop_due(now).is_some()
            })
            .expect("the number is bounded")
    }

    /// A cluster whose values are all wrong filled the memory of the audit with them.
    #[test]
    fn suspects_are_bounded_by_number_and_bytes() {
        assert_eq!(held(10), SUSPECTS_MAX);
        assert_eq!(held(16 << 20), 4);
        assert_eq!(held(100 << 20), 1);
    }

    #[test]
    fn a_suspect_is_read_again_when_it_is_due() {
        let queries = Queries::parse(FILE).expect("valid");
        let query = queries.iter().next().expect("it has one");
        let (now, mut suspects) = (Instant::now(), Suspects::default());
        assert!(suspects.pop_due(now).is_none());
        suspects.push(suspect(query, 1, now + Duration::from_secs(1)));
        assert!(suspects.pop_due(now).is_none());
        assert!(suspects.pop_due(now + Duration::from_secs(1)).is_some());
        assert!(suspects.pop().is_none() && suspects.bytes == 0);
    }
}
