//! Routers that serve no gets before this pipeline reports to them that their cluster is up to date
//! (`--wait-for-invalidator`).
//!
//! ```text
//! router waits -> newest position in the log -> reached by the safe position -> router notified
//! ```
//!
//! Invariants:
//! * The position is looked up after the router has said that it waits, so it covers everything that was committed
//!   before the router's start. Each router is here once, with its present run.
//! * The log is read from before the look-up until the report. When reading stops, a failover may be under way: the
//!   newest position may be that of a server that has less, and what the caches hold of the former one may be about to
//!   be flushed. So positions of before are looked up again once the log is read.

use super::delivery::{Delivery, WaitingRouter};
use crate::Position;
use std::sync::Arc;

/// Numbers the times for which the log is read without a stop.
pub(super) type ReadingNumber = u64;

pub(super) struct WaitingRouters {
    delivery: Arc<dyn Delivery>,
    routers: Vec<(WaitingRouter, TargetPosition)>,
}

/// The position that a router waits for.
enum TargetPosition {
    Unknown,
    LookingUp,
    /// Looked up in this time of reading.
    Known(Position, ReadingNumber),
}

impl WaitingRouters {
    pub fn new(delivery: Arc<dyn Delivery>) -> WaitingRouters {
        WaitingRouters { delivery, routers: Vec::new() }
    }

    /// Adds a router, in place of an earlier run of it.
    pub fn add(&mut self, router: WaitingRouter) {
        self.routers.retain(|(other, _)| other.index != router.index);
        self.routers.push((router, TargetPosition::Unknown));
    }

    /// The routers whose position must be looked up, as the log is read since `reading`.
    pub fn begin_look_ups(&mut self, reading: ReadingNumber) -> Vec<WaitingRouter> {
        let mut begun = Vec::new();
        for (router, target) in &mut self.routers {
            match target {
                TargetPosition::Unknown => {}
                TargetPosition::Known(_, then) if *then != reading => {}
                TargetPosition::LookingUp | TargetPosition::Known(..) => continue,
            }
            *target = TargetPosition::LookingUp;
            begun.push(router.clone());
        }
        begun
    }

    /// Sets the position that a router waits for, which was looked up while the log was read since `reading`; `None` if
    /// the look-up failed, which the next probe repeats.
    pub fn set_target(&mut self, router: &WaitingRouter, target: Option<Position>, reading: ReadingNumber) {
        let Some(at) = self.routers.iter().position(|(other, _)| other == router) else { return };
        match target {
            Some(target) => self.routers[at].1 = TargetPosition::Known(target, reading),
            None => {
                self.routers.swap_remove(at);
                self.delivery.announce_again(router);
            }
        }
    }

    /// Removes and returns the routers whose position is reached, if it was looked up while the log was read since
    /// `reading`.
    pub fn remove_reached(
        &mut self,
        reading: ReadingNumber,
        is_reached: impl Fn(&Position) -> bool,
    ) -> Vec<WaitingRouter> {
        let is_reached = |(_, target): &mut (_, TargetPosition)| match target {
            TargetPosition::Known(target, then) => *then == reading && is_reached(target),
            TargetPosition::Unknown | TargetPosition::LookingUp => false,
        };
        self.routers.extract_if(.., is_reached).map(|(router, _)| router).collect()
    }
}
