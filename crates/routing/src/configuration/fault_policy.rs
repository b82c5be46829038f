//! What a pool does about dead servers, beyond failing over: spares that take their places (§3.3 of the paper), and a bound
//! on how many are taken for dead. No request passes here.

use super::{
    error::ConfigurationError,
    json_cursor::Keys,
    pool::{Lineage, read_server},
    transport::{PoolAccess, Transport},
};
use crate::Address;

/// The most spares of a pool: every delete of the pool goes to each of them.
const SPARES_MAX: usize = 16;
/// A minute: the gutter is good for that.
const SPARE_AFTER_MS: u64 = 60_000;
/// A day: a longer time is a slip of the unit.
const SPARE_AFTER_MS_MAX: i64 = 86_400_000;

/// How many servers of a pool may be taken out at a time (mcrouter's `tko_tracker`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TkoLimit {
    /// When so many are out, no further one is taken out.
    pub enter: usize,
    /// Until no more than so many are.
    pub exit: usize,
}

const TKO_TRACKER: Keys = Keys {
    known: &[
        "num_tko_threshold_upper",
        "num_tko_threshold_lower",
        "percent_tko_threshold_upper",
        "percent_tko_threshold_lower",
    ],
    ignored: &[],
    refused: &[],
};

/// What a pool says of spares.
pub(super) struct Spared {
    pub(super) spares: Vec<Address>,
    /// Of each spare.
    pub(super) transport: Vec<Transport>,
    pub(super) after_ms: u64,
}

/// The spares of a pool of `servers`, and how long a server must be dead before one takes its place.
pub(super) fn spares(
    pool: &Lineage<'_>,
    servers: &[Address],
    pool_access: &PoolAccess,
) -> Result<Spared, ConfigurationError> {
    let after = pool.get("spare_after_ms");
    let after_ms = match &after {
        Some(after) => after.integer("milliseconds", 1, SPARE_AFTER_MS_MAX)? as u64,
        None => SPARE_AFTER_MS,
    };
    let mut spared = Spared { spares: Vec::new(), transport: Vec::new(), after_ms };
    let Some(list) = pool.get("spares") else {
        return match after {
            Some(after) => Err(after.error("there are no \"spares\" that could take a server's place after that time")),
            None => Ok(spared),
        };
    };
    for node in list.array("a list of \"host:port\"")? {
        let (spare, transport) = read_server(&node, pool_access)?;
        if servers.contains(&spare) {
            return Err(
                node.error(format!("{spare} is one of the pool's servers: expected one that is idle otherwise"))
            );
        }
        if spared.spares.contains(&spare) {
            return Err(node.error(format!("{spare} stands twice: expected each spare once")));
        }
        spared.spares.push(spare);
        spared.transport.push(transport);
    }
    match spared.spares.len() {
        0 if after.is_some() => Err(list.error("no spares, but \"spare_after_ms\": expected at least one")),
        0..=SPARES_MAX => Ok(spared),
        found => {
            Err(list
                .error(format!("{found} spares: expected at most {SPARES_MAX}, as every delete goes to each of them")))
        }
    }
}

/// The bound of a pool of `servers` servers, if it has one.
pub(super) fn out_bound(pool: &Lineage<'_>, servers: usize) -> Result<Option<TkoLimit>, ConfigurationError> {
    let Some(node) = pool.get("tko_tracker") else { return Ok(None) };
    let tracker = node.object("an object with \"num_tko_threshold_upper\" and \"num_tko_threshold_lower\"")?;
    tracker.check(&TKO_TRACKER)?;
    let pair = |upper: &str, lower: &str| match (tracker.get(upper), tracker.get(lower)) {
        (Some(upper), Some(lower)) => Ok(Some((upper, lower))),
        (None, None) => Ok(None),
        _ => Err(node.error(format!("expected both {upper:?} and {lower:?}, or neither"))),
    };
    let numbers = pair("num_tko_threshold_upper", "num_tko_threshold_lower")?;
    let percents = pair("percent_tko_threshold_upper", "percent_tko_threshold_lower")?;
    let (upper_node, bound) = match (numbers, percents) {
        (Some((upper, lower)), None) => {
            let enter = upper.integer("a number of servers", 1, servers as i64)? as usize;
            let exit = lower.integer("a number of servers", 0, servers as i64)? as usize;
            (upper, TkoLimit { enter, exit })
        }
        (None, Some((upper, lower))) => {
            let of = |percent: i64| servers * percent as usize;
            let enter = of(upper.integer("percent of the servers", 1, 100)?).div_ceil(100);
            let exit = of(lower.integer("percent of the servers", 0, 100)?) / 100;
            (upper, TkoLimit { enter, exit })
        }
        (Some(_), Some(_)) => return Err(node.error("expected the thresholds as numbers or in percent, not both")),
        (None, None) => {
            return Err(node.error(
                "expected \"num_tko_threshold_upper\" and \"num_tko_threshold_lower\", or the same with \"percent\"",
            ));
        }
    };
    match bound.exit < bound.enter {
        true => Ok(Some(bound)),
        false => Err(upper_node.error(format!(
            "of {servers} servers the upper threshold is {}, the lower {}: expected the lower to be less",
            bound.enter, bound.exit
        ))),
    }
}
