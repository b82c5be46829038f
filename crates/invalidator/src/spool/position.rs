//! Positions in a spool: a position of the log and the epoch that it belongs to.
//!
//! After a loss the log may begin with smaller positions than it had before: a promoted standby had received less. So
//! the spool counts its losses, and a position of an earlier epoch is before all positions of a later one. It is
//! written `16/B374D848` in epoch 0, and `2:16/B374D848` after two losses.

use crate::{CommitLog, Position};

/// A place in the spool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SpoolPosition {
    /// How many losses came before.
    pub epoch: u64,
    /// The position in the log.
    pub position: Position,
}

impl SpoolPosition {
    pub fn new(epoch: u64, position: &Position) -> SpoolPosition {
        SpoolPosition { epoch, position: position.clone() }
    }

    /// Parses the text of a saved position, or a position of the log, which is of epoch 0.
    pub fn parse(text: &Position) -> SpoolPosition {
        match split_epoch(text) {
            Some((epoch, position)) => SpoolPosition { epoch, position: Position(position.into()) },
            None => SpoolPosition { epoch: 0, position: text.clone() },
        }
    }

    /// Whether the text begins with an epoch.
    pub fn has_epoch(text: &Position) -> bool {
        split_epoch(text).is_some()
    }

    /// As pipelines save it.
    pub fn text(&self) -> Position {
        match self.epoch {
            0 => self.position.clone(),
            epoch => Position(format!("{epoch}:{}", self.position.0)),
        }
    }

    /// Whether everything up to `other` is up to here, too.
    pub fn covers(&self, other: &SpoolPosition, log: &dyn CommitLog) -> bool {
        self.epoch > other.epoch || (self.epoch == other.epoch && log.covers(&self.position, &other.position))
    }

    /// Whether this is strictly before `other`.
    pub fn is_before(&self, other: &SpoolPosition, log: &dyn CommitLog) -> bool {
        !self.covers(other, log)
    }
}

/// The epoch at the begin of a text and the rest of it; `None` if there is none.
fn split_epoch(text: &Position) -> Option<(u64, &str)> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (epoch, position) = text.0.split_once(':').filter(|(epoch, _)| is_number(epoch))?;
    Some((epoch.parse().ok()?, position))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_as_it_is_written() {
        for (epoch, text) in [(0, "16/B374D848"), (2, "2:16/B374D848"), (0, "x:1"), (0, ":1"), (0, "+1:1")] {
            let parsed = SpoolPosition::parse(&Position(text.into()));
            assert_eq!((parsed.epoch, parsed.text().0.as_str()), (epoch, text));
        }
    }
}
