//! Bounds the time of TLS handshakes: whether a client may connect is known only after its handshake, and one that never
//! finishes it would keep a place among `-c` connections from those that may.

use std::collections::VecDeque;

/// The handshakes of a worker that may be unfinished, in the order in which they began.
#[derive(Debug, Default)]
pub(crate) struct HandshakeDeadlines(VecDeque<Handshake>);

#[derive(Clone, Copy, Debug)]
struct Handshake {
    /// Its index among the worker's connections. It may belong to another connection by now.
    connection: usize,
    began_s: u32,
}

impl HandshakeDeadlines {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a handshake that begins at `now_s`, which never decreases from call to call.
    pub(crate) fn push(&mut self, connection: usize, now_s: u32) {
        self.0.push_back(Handshake { connection, began_s: now_s });
    }

    /// The connection of the next handshake that began before `before_s`; `None` if there is no further one.
    pub(crate) fn pop_overdue(&mut self, before_s: u32) -> Option<usize> {
        self.0.pop_front_if(|handshake| handshake.began_s < before_s).map(|handshake| handshake.connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_are_overdue_in_the_order_of_their_start() {
        let mut deadlines = HandshakeDeadlines::default();
        for (connection, now_s) in [(3, 10), (1, 10), (2, 12)] {
            deadlines.push(connection, now_s);
        }
        assert_eq!(deadlines.pop_overdue(10), None);
        let overdue: Vec<usize> = std::iter::from_fn(|| deadlines.pop_overdue(11)).collect();
        assert_eq!((overdue, deadlines.is_empty()), (vec![3, 1], false));
        assert_eq!((deadlines.pop_overdue(13), deadlines.is_empty()), (Some(2), true));
    }
}
