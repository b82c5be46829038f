//! Routers that serve no gets before this pipeline reports to them that their cluster is up to date
//! (`--wait-for-invalidator`).
//!
//! ```text
//! router waits -> newest position in the log -> reached by the safe position -> router notified
//! ```
//!
//! Invariant: the position is looked up after the router has said that it waits, so it covers everything that was
//! committed before the router's start. Each router is here once, with its present run.

use super::delivery::{Delivery, WaitingRouter};
use crate::Position;
use std::sync::Arc;

pub(super) struct WaitingRouters {
    delivery: Arc<dyn Delivery>,
    /// `None` while the position is looked up.
    routers: Vec<(WaitingRouter, Option<Position>)>,
}

impl WaitingRouters {
    pub fn new(delivery: Arc<dyn Delivery>) -> WaitingRouters {
        WaitingRouters { delivery, routers: Vec::new() }
    }

    /// Adds a router, in place of an earlier run of it.
    pub fn add(&mut self, router: WaitingRouter) {
        self.routers.retain(|(other, _)| other.index != router.index);
        self.routers.push((router, None));
    }

    /// Sets the position that a router waits for; `None` if the look-up failed, which the next probe repeats.
    pub fn set_target(&mut self, router: &WaitingRouter, target: Option<Position>) {
        let Some(at) = self.routers.iter().position(|(other, _)| other == router) else { return };
        match target {
            Some(target) => self.routers[at].1 = Some(target),
            None => {
                self.routers.swap_remove(at);
                self.delivery.announce_again(router);
            }
        }
    }

    /// Removes and returns the routers whose position is reached.
    pub fn remove_reached(&mut self, is_reached: impl Fn(&Position) -> bool) -> Vec<WaitingRouter> {
        let is_reached = |(_, target): &mut (_, Option<Position>)| target.as_ref().is_some_and(&is_reached);
        self.routers.extract_if(.., is_reached).map(|(router, _)| router).collect()
    }
}
