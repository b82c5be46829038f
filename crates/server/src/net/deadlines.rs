//! Bounds the time until a client is known: for its TLS handshake, and for its login. A client that never finishes
//! would keep a place among `-c` connections from those that may connect.

use std::collections::{BTreeSet, VecDeque};

/// More deadlines than this are kept only if there are half as many connections.
const DEADLINES_KEPT: usize = 128;

/// The connections of a worker whose clients may not be known yet, in the order in which they began.
#[derive(Debug, Default)]
pub(crate) struct ConnectionDeadlines(VecDeque<ConnectionDeadline>);

#[derive(Clone, Copy, Debug)]
struct ConnectionDeadline {
    /// Its index among the worker's connections. It may belong to another connection by now.
    connection: usize,
    began_s: u32,
}

impl ConnectionDeadlines {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a connection that begins at `now_s`, which never decreases from call to call. The worker has at most
    /// `connections` of them. A connection that had this index before is forgotten if many have come and gone: clients
    /// that connect and disconnect without end must not use up memory.
    pub(crate) fn push(&mut self, connection: usize, now_s: u32, connections: usize) {
        if self.0.len() >= (2 * connections).max(DEADLINES_KEPT) {
            self.remove_superseded();
        }
        self.0.push_back(ConnectionDeadline { connection, began_s: now_s });
    }

    /// The next connection that began before `before_s`; `None` if there is no further one.
    pub(crate) fn pop_overdue(&mut self, before_s: u32) -> Option<usize> {
        self.0.pop_front_if(|deadline| deadline.began_s < before_s).map(|deadline| deadline.connection)
    }

    fn remove_superseded(&mut self) {
        let mut seen = BTreeSet::new();
        let newest_first = self.0.drain(..).rev().filter(|deadline| seen.insert(deadline.connection));
        let mut kept: Vec<_> = newest_first.collect();
        kept.reverse();
        self.0 = kept.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_overdue_in_the_order_of_their_start() {
        let mut deadlines = ConnectionDeadlines::default();
        for (connection, now_s) in [(3, 10), (1, 10), (2, 12)] {
            deadlines.push(connection, now_s, 4);
        }
        assert_eq!(deadlines.pop_overdue(10), None);
        let overdue: Vec<usize> = std::iter::from_fn(|| deadlines.pop_overdue(11)).collect();
        assert_eq!((overdue, deadlines.is_empty()), (vec![3, 1], false));
        assert_eq!((deadlines.pop_overdue(13), deadlines.is_empty()), (Some(2), true));
    }

    /// Each connection left its deadline behind: 50,000 a second, for 30 seconds, or for an hour.
    #[test]
    fn connections_that_come_and_go_take_no_memory() {
        let (mut deadlines, connections) = (ConnectionDeadlines::default(), 100);
        for number in 0..100_000 {
            deadlines.push(number % connections, number as u32 / 1_000, connections);
            assert!(deadlines.0.len() <= 2 * connections);
        }
        let overdue: BTreeSet<usize> = std::iter::from_fn(|| deadlines.pop_overdue(u32::MAX)).collect();
        assert_eq!(overdue.len(), connections, "the last of each index stays");
    }
}
