//! The long form of routes over caches that stand behind, or follow, one another. No request passes here.

use super::{
    Handle,
    error::ConfigurationError,
    json_cursor::{Keys, Node, Object},
    long_form::{EXPTIME_S_MAX, boxed, children, keys},
    names::Names,
};
use crate::{L1L2Settings, MIGRATE_INTERVAL_S, SlowWarmUp, WARM_UP_HOLD_OFF_MS, WarmUpEnd, WarmUpProgress};
use std::sync::Arc;

type Read = Result<Handle, ConfigurationError>;

/// The key's whole number, or the default.
fn integer(object: &Object<'_>, key: &str, what: &str, max: i64, default: i64) -> Result<i64, ConfigurationError> {
    object.get(key).map_or(Ok(default), |node| node.integer(what, 0, max))
}

pub(super) fn miss_failover_route<'a>(object: &Object<'a>, names: &mut Names<'a>) -> Read {
    object.check(&keys(&["type", "name", "children", "return_best_on_error"]))?;
    Ok(Handle::MissFailover {
        children: children(object, "children", names)?,
        return_best_on_error: object.get("return_best_on_error").map_or(Ok(false), |node| node.boolean())?,
    })
}

pub(super) fn l1_l2_cache_route<'a>(object: &Object<'a>, names: &mut Names<'a>) -> Read {
    let known = &["type", "name", "l1", "l2", "upgradingL1Exptime", "ncacheExptime", "ncacheUpdatePeriod"];
    object.check(&keys(known))?;
    let l1_exptime = object.require("upgradingL1Exptime", "how many seconds a copy lives in L1")?;
    let settings = L1L2Settings {
        l1_exptime_s: l1_exptime.integer("seconds", 0, EXPTIME_S_MAX)? as u32,
        negative_exptime_s: integer(object, "ncacheExptime", "seconds", EXPTIME_S_MAX, 0)? as u32,
        negative_update_period: integer(object, "ncacheUpdatePeriod", "misses", u32::MAX.into(), 0)? as u32,
    };
    Ok(Handle::L1L2Cache {
        l1: boxed(&object.require("l1", "a route")?, names)?,
        l2: boxed(&object.require("l2", "a route")?, names)?,
        settings,
    })
}

/// Seconds since 1970, up to the year 9999.
const UNIX_S_MAX: i64 = 253_402_300_799;

pub(super) fn migrate_route<'a>(object: &Object<'a>, names: &mut Names<'a>) -> Read {
    object.check(&keys(&["type", "name", "from", "to", "start_time", "interval"]))?;
    let start = object.require("start_time", "when the migration begins, in seconds since 1970")?;
    Ok(Handle::Migrate {
        start_unix_s: start.integer("seconds since 1970", 0, UNIX_S_MAX)? as u64,
        interval_s: integer(object, "interval", "seconds", EXPTIME_S_MAX, MIGRATE_INTERVAL_S.into())? as u32,
        from: boxed(&object.require("from", "a route")?, names)?,
        to: boxed(&object.require("to", "a route")?, names)?,
    })
}

/// A minute: a longer hold-off keeps the cluster cold.
const HOLD_OFF_MS_MAX: i64 = 60_000;

/// Gets before a hit rate counts; more would be hours.
const MIN_REQUESTS_MAX: i64 = 10_000_000;

/// A pool's `slow_warmup`: `{failoverTarget, settings}`.
pub(super) fn slow_warm_up<'a>(
    node: &Node<'a>,
    names: &mut Names<'a>,
) -> Result<(Handle, SlowWarmUp), ConfigurationError> {
    let object = node.object("a slow warm-up: an object with a \"failoverTarget\"")?;
    object.check(&keys(&["failoverTarget", "settings"]))?;
    let failover = *boxed(&object.require("failoverTarget", "a route")?, names)?;
    let mut settings = SlowWarmUp::default();
    if let Some(node) = object.get("settings") {
        let object = node.object("an object with \"enable_threshold\" and its like")?;
        object.check(&keys(&["enable_threshold", "disable_threshold", "start", "step", "min_requests"]))?;
        let part = |key, default| object.get(key).map_or(Ok(default), |node| node.number("a part of 1", 0.0, 1.0));
        settings = SlowWarmUp {
            enable_threshold: part("enable_threshold", settings.enable_threshold)?,
            disable_threshold: part("disable_threshold", settings.disable_threshold)?,
            start: part("start", settings.start)?,
            step: object.get("step").map_or(Ok(settings.step), |node| node.number("a step", 0.0, 1_000.0))?,
            min_requests: integer(&object, "min_requests", "gets", MIN_REQUESTS_MAX, settings.min_requests.into())?
                as u32,
        };
        if settings.disable_threshold < settings.enable_threshold {
            let why =
                "a server would be warm and cold: expected \"disable_threshold\" at least at \"enable_threshold\"";
            return Err(node.error(why));
        }
    }
    Ok((failover, settings))
}

pub(super) fn staging_route<'a>(object: &Object<'a>, names: &mut Names<'a>) -> Read {
    object.check(&keys(&["type", "name", "warm", "staging", "hold_off_ms"]))?;
    let hold_off = integer(object, "hold_off_ms", "milliseconds", HOLD_OFF_MS_MAX, WARM_UP_HOLD_OFF_MS.into())?;
    Ok(Handle::Staging {
        hold_off_ms: hold_off as u32,
        warm: boxed(&object.require("warm", "a route")?, names)?,
        staging: boxed(&object.require("staging", "a route")?, names)?,
    })
}

/// How far a warm-up is: memory, not description, so that any two are equal.
#[derive(Clone, Debug, Default)]
pub struct SharedProgress(pub Arc<WarmUpProgress>);

impl PartialEq for SharedProgress {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

pub(super) fn warm_up_route<'a>(object: &Object<'a>, names: &mut Names<'a>) -> Read {
    object.check(&Keys {
        known: &["type", "name", "cold", "warm", "exptime", "hold_off_ms", "end_share", "end_after"],
        ignored: &["enable_metaget"],
        refused: &[],
    })?;
    let exptime = object.get("exptime");
    if exptime.is_none() {
        object.node.warn("\"exptime\" is missing: what is copied from the warm cluster never expires");
    }
    let hold_off = integer(object, "hold_off_ms", "milliseconds", HOLD_OFF_MS_MAX, WARM_UP_HOLD_OFF_MS.into())?;
    let default = WarmUpEnd::default();
    let share =
        object.get("end_share").map_or(Ok(default.share), |node| node.number("a part of all reads", 0.0, 1.0))?;
    let after_s = integer(object, "end_after", "seconds", EXPTIME_S_MAX, default.after_s as i64)? as u64;
    Ok(Handle::WarmUp {
        end: (share > 0.0).then(|| (WarmUpEnd { share, after_s }, SharedProgress::default())),
        exptime_s: exptime.map_or(Ok(0), |node| node.integer("seconds", 0, EXPTIME_S_MAX))?,
        hold_off_ms: hold_off as u32,
        cold: boxed(&object.require("cold", "a route")?, names)?,
        warm: boxed(&object.require("warm", "a route")?, names)?,
    })
}
