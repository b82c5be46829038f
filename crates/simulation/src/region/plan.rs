//! What a seed decides once for a run.

use super::guarantee::DisabledGuarantee;
use super::names::{ROUTERS_MAX, RouterName};

/// One run in this many has one fault at a time.
const SINGLE_FAULTS_ONE_IN: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpoolMode {
    Off,
    Large,
    /// So small that it overflows and servers are flushed.
    Small,
}

impl SpoolMode {
    fn random(rng: &mut fastrand::Rng) -> SpoolMode {
        match rng.u8(0..4) {
            0 | 1 => SpoolMode::Off,
            2 => SpoolMode::Large,
            _ => SpoolMode::Small,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RunPlan {
    /// Routers of each cluster.
    routers: usize,
    pub(super) spool_mode: SpoolMode,
    /// Whether no fault begins before the one before it has been repaired.
    pub(super) has_single_faults: bool,
    /// Whether half of the faults cut a router off from a server and then replace the router, by a crash.
    pub(super) favours_backlogs: bool,
}

impl RunPlan {
    /// Draws a plan in which `disabled` matters.
    pub(super) fn random(rng: &mut fastrand::Rng, disabled: DisabledGuarantee) -> RunPlan {
        use DisabledGuarantee::{Fence, Peers, Spool};
        let favours_backlogs = matches!(disabled, Fence | Spool);
        let (routers, spool_mode) = (rng.usize(1..=ROUTERS_MAX), SpoolMode::random(rng));
        RunPlan {
            routers: match disabled {
                // A peer would still fence the server, or forward the delete to it.
                Fence | Spool => 1,
                Peers => routers.max(2),
                _ => routers,
            },
            spool_mode: match (disabled, spool_mode) {
                (Fence | Peers, SpoolMode::Off) | (Spool, _) => SpoolMode::Large,
                _ => spool_mode,
            },
            has_single_faults: rng.u8(0..SINGLE_FAULTS_ONE_IN) == 0 && !favours_backlogs,
            favours_backlogs,
        }
    }

    /// The routers of a cluster.
    pub(super) fn routers(self, cluster: usize) -> impl Iterator<Item = RouterName> {
        (0..self.routers).map(move |index| RouterName { cluster, index })
    }
}
