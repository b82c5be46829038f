//! What a pipeline says of deletes that are not acknowledged: in its state at once, in the log seldom.
//!
//! ```text
//! fine -> retrying -> blocked     each step is logged once; only what is fine again begins anew
//!   ^________|___________|
//! ```
//!
//! Trouble that comes and goes costs a line every [`PACE`], not one each time. What is logged late is what holds then.

use std::time::Duration;
use tokio::time::Instant;

/// The same kind of line is logged at most so often.
pub(crate) const PACE: Duration = Duration::from_secs(5);

/// Lets a kind of line through now and then.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    last: Option<Instant>,
}

impl Pace {
    /// Whether a line may be logged; if so, it is taken for logged.
    pub fn allows(&mut self, now: Instant) -> bool {
        let allowed = self.next().is_none_or(|next| next <= now);
        if allowed {
            self.last = Some(now);
        }
        allowed
    }

    /// From when on a line may be logged; None means always.
    pub fn next(&self) -> Option<Instant> {
        self.last.map(|last| last + PACE)
    }
}

/// How deletes fare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Condition {
    /// None fails.
    #[default]
    Fine,
    /// Some keys fail, and are tried again; the others go on.
    Retrying,
    /// So many fail that reading waits.
    Blocked,
}

/// Follows the condition, and says what of it is to be logged.
#[derive(Debug, Default)]
pub(crate) struct Herald {
    now: Condition,
    told: Condition,
    pace: Pace,
}

impl Herald {
    /// What holds now. Returns it when it is to be logged.
    pub fn tell(&mut self, condition: Condition, now: Instant) -> Option<Condition> {
        self.now = condition;
        let due = self.has_news() && self.pace.allows(now);
        due.then(|| {
            self.told = condition;
            condition
        })
    }

    /// When there will be something to log, if nothing changes.
    pub fn next(&self) -> Option<Instant> {
        self.pace.next().filter(|_| self.has_news())
    }

    fn has_news(&self) -> bool {
        self.now > self.told || (self.now == Condition::Fine && self.told != Condition::Fine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn trouble_that_comes_and_goes_is_told_seldom_and_its_end_always() {
        let (mut herald, begun) = (Herald::default(), Instant::now());
        assert_eq!(herald.tell(Condition::Fine, begun), None);
        let mut told = Vec::new();
        for step in 0..200 {
            let now = begun + Duration::from_millis(100) * step;
            let condition = if step % 2 == 0 { Condition::Retrying } else { Condition::Fine };
            told.extend(herald.tell(condition, now));
        }
        let (fine, retrying) = (Condition::Fine, Condition::Retrying);
        assert_eq!(told, [retrying, fine, retrying, fine], "a line every five seconds of twenty");
        assert_eq!(herald.tell(Condition::Retrying, begun + PACE * 10), Some(retrying));
        assert_eq!(herald.tell(Condition::Fine, begun + PACE * 10), None, "not yet");
        assert_eq!(herald.next(), Some(begun + PACE * 11));
        assert_eq!(herald.tell(Condition::Fine, begun + PACE * 11), Some(fine));
        assert_eq!((herald.tell(Condition::Fine, begun + PACE * 20), herald.next()), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_bound_that_is_reached_is_told_once() {
        let (mut herald, begun) = (Herald::default(), Instant::now());
        let conditions = [Condition::Retrying, Condition::Blocked, Condition::Retrying, Condition::Blocked];
        let told = (0..).zip(conditions).filter_map(|(n, condition)| herald.tell(condition, begun + PACE * n));
        assert_eq!(told.collect::<Vec<_>>(), [Condition::Retrying, Condition::Blocked]);
    }
}
