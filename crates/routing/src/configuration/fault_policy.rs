//! The reaction of a pool to servers that fail, beyond failover: spares that take their places (§3.3 of the paper), and
//! a limit on the number of servers in TKO.

use super::{
    error::ConfigurationError,
    inheritance::InheritanceChain,
    json_cursor::Keys,
    transport::{PoolTransport, Transport, parse_server},
};
use crate::Address;

/// The maximum number of spares of a pool: every delete of the pool goes to each of them.
const SPARES_MAX: usize = 16;
/// A minute: the gutter bridges shorter outages.
const SPARE_AFTER_MS: u64 = 60_000;
/// A day: a longer time is probably a wrong unit.
const SPARE_AFTER_MS_MAX: i64 = 86_400_000;

/// How many servers of a pool may be TKO at a time (mcrouter's `tko_tracker`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TkoLimit {
    /// With this number of servers in TKO, the pool fails open: no further server becomes TKO.
    pub enter: usize,
    /// With at most this number in TKO, servers can become TKO again.
    pub exit: usize,
}

const TKO_TRACKER: Keys = Keys::known(&[
    "num_tko_threshold_upper",
    "num_tko_threshold_lower",
    "percent_tko_threshold_upper",
    "percent_tko_threshold_lower",
]);

pub(super) struct Spares {
    pub(super) addresses: Vec<Address>,
    pub(super) transport: Vec<Transport>,
    pub(super) after_ms: u64,
}

/// Parses the spares of a pool of `servers`, and how long a server must be unreadable before a spare replaces it.
pub(super) fn parse_spares(
    pool: &InheritanceChain<'_>,
    servers: &[Address],
    pool_transport: &PoolTransport,
) -> Result<Spares, ConfigurationError> {
    let after = pool.get("spare_after_ms");
    let after_ms = match &after {
        Some(after) => after.integer("milliseconds", 1, SPARE_AFTER_MS_MAX)? as u64,
        None => SPARE_AFTER_MS,
    };
    let mut spares = Spares { addresses: Vec::new(), transport: Vec::new(), after_ms };
    let Some(list) = pool.get("spares") else {
        return match after {
            Some(after) => Err(after.error("there are no \"spares\": expected some, or no \"spare_after_ms\"")),
            None => Ok(spares),
        };
    };
    list.parse_elements("a list of \"host:port\"", |node| {
        let (spare, transport) = parse_server(node, pool_transport, None)?;
        if servers.contains(&spare) {
            return Err(node.error(format!("{spare} is one of the pool's servers: expected one that is idle")));
        }
        if spares.addresses.contains(&spare) {
            return Err(node.error(format!("{spare} is given twice: expected each spare once")));
        }
        spares.addresses.push(spare);
        spares.transport.push(transport);
        Ok(())
    })?;
    match spares.addresses.len() {
        0 if after.is_some() => Err(list.error("no spares, but \"spare_after_ms\": expected at least one")),
        0..=SPARES_MAX => Ok(spares),
        found => {
            Err(list
                .error(format!("{found} spares: expected at most {SPARES_MAX}, as every delete goes to each of them")))
        }
    }
}

/// Parses the TKO limit of a pool of `servers` servers; `None` if it has none.
pub(super) fn parse_tko_limit(
    pool: &InheritanceChain<'_>,
    servers: usize,
) -> Result<Option<TkoLimit>, ConfigurationError> {
    let Some(node) = pool.get("tko_tracker") else { return Ok(None) };
    if servers == 0 {
        node.warn("the pool has no servers: no limit");
        return Ok(None);
    }
    let tracker = node.object("an object with \"num_tko_threshold_upper\" and \"num_tko_threshold_lower\"")?;
    tracker.check(&TKO_TRACKER)?;
    let pair = |upper: &str, lower: &str| match (tracker.get(upper), tracker.get(lower)) {
        (Some(upper), Some(lower)) => Ok(Some((upper, lower))),
        (None, None) => Ok(None),
        _ => Err(node.error(format!("expected both {upper:?} and {lower:?}, or neither"))),
    };
    let numbers = pair("num_tko_threshold_upper", "num_tko_threshold_lower")?;
    let percents = pair("percent_tko_threshold_upper", "percent_tko_threshold_lower")?;
    let (upper_node, limit) = match (numbers, percents) {
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
    match limit.exit < limit.enter {
        true => Ok(Some(limit)),
        false => Err(upper_node.error(format!(
            "of {servers} servers the upper threshold is {}, the lower {}: expected the lower to be less",
            limit.enter, limit.exit
        ))),
    }
}
