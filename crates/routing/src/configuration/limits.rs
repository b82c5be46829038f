//! The long form of routes that hold requests back, slow them down or write them down. No request passes here.

use super::{
    Handle,
    error::ConfigurationError,
    json_cursor::{Keys, Node, Object},
    long_form::{boxed, keys},
    names::Names,
};
use crate::{Latency, Rate, Rates};
use std::time::Duration;

type Read = Result<Handle, ConfigurationError>;

/// A window beyond this limits nothing.
const OUTSTANDING_MAX: i64 = 1_000_000;

pub(super) fn outstanding_max(node: &Node<'_>) -> Result<u32, ConfigurationError> {
    Ok(node.integer("requests", 1, OUTSTANDING_MAX)? as u32)
}

pub(super) fn outstanding_limit_route<'a>(object: &Object<'a>, names: &mut Names<'a>) -> Read {
    object.check(&keys(&["type", "name", "target", "max_outstanding"]))?;
    let window = object.require("max_outstanding", "how many requests may be unanswered")?;
    let target = boxed(&object.require("target", "a route")?, names)?;
    Ok(Handle::OutstandingLimit { target, outstanding_max: outstanding_max(&window)? })
}

/// No server takes larger items.
const SPLIT_THRESHOLD_BYTES_MAX: i64 = 1 << 30;

pub(super) fn big_value_route<'a>(object: &Object<'a>, names: &mut Names<'a>) -> Read {
    object.check(&Keys {
        known: &["type", "name", "target", "split_threshold"],
        ignored: &["batch_size", "hide_reply_flag"],
        refused: &[],
    })?;
    let threshold = object.require("split_threshold", "the largest value that is stored in one piece, in bytes")?;
    Ok(Handle::BigValue {
        split_threshold_bytes: threshold.integer("bytes", 1, SPLIT_THRESHOLD_BYTES_MAX)? as usize,
        target: boxed(&object.require("target", "a route")?, names)?,
    })
}

/// More requests a second than this nobody sends.
const RATE_MAX: i64 = 1_000_000_000;

const RATES: Keys = keys(&["gets_rate", "gets_burst", "sets_rate", "sets_burst", "deletes_rate", "deletes_burst"]);

/// `{gets_rate, gets_burst, ...}`; a burst is its rate if not said, and at least 1.
pub(super) fn rates(node: &Node<'_>) -> Result<Rates, ConfigurationError> {
    let object = node.object("rates: an object with \"gets_rate\", \"sets_rate\" or \"deletes_rate\"")?;
    object.check(&RATES)?;
    let rate = |rate: &str, burst: &str| match (object.get(rate), object.get(burst)) {
        (None, None) => Ok(None),
        (None, Some(node)) => Err(node.error(format!("{burst:?} stands without its rate: expected {rate:?} too"))),
        (Some(node), burst) => {
            let per_s = node.integer("requests a second", 0, RATE_MAX)? as u32;
            let burst = burst.map(|node| node.integer("requests", 1, RATE_MAX)).transpose()?;
            Ok(Some(Rate { per_s, burst: burst.map_or(per_s.max(1), |burst| burst as u32) }))
        }
    };
    Ok(Rates {
        gets: rate("gets_rate", "gets_burst")?,
        sets: rate("sets_rate", "sets_burst")?,
        deletes: rate("deletes_rate", "deletes_burst")?,
    })
}

pub(super) fn rate_limit_route<'a>(object: &Object<'a>, names: &mut Names<'a>) -> Read {
    object.check(&keys(&["type", "name", "target", "rates", "fallback"]))?;
    Ok(Handle::RateLimit {
        rates: rates(&object.require("rates", "an object with \"gets_rate\" and its like")?)?,
        fallback: object.get("fallback").map(|node| boxed(&node, names)).transpose()?,
        target: boxed(&object.require("target", "a route")?, names)?,
    })
}

/// A minute: every client has given up by then.
const LATENCY_MS_MAX: i64 = 60_000;

pub(super) fn latency_injection_route<'a>(object: &Object<'a>, names: &mut Names<'a>) -> Read {
    object.check(&Keys {
        known: &["type", "name", "child", "before_latency_ms", "after_latency_ms", "total_latency_ms"],
        ignored: &[],
        refused: &["request_payload_latency"],
    })?;
    let wait = |key| {
        let ms = object.get(key).map_or(Ok(0), |node| node.integer("milliseconds", 0, LATENCY_MS_MAX))?;
        Ok::<_, ConfigurationError>(Duration::from_millis(ms as u64))
    };
    let (before, after) = (wait("before_latency_ms")?, wait("after_latency_ms")?);
    let latency = Latency { before, after, total: wait("total_latency_ms")? };
    Ok(Handle::LatencyInjection { child: boxed(&object.require("child", "a route")?, names)?, latency })
}

pub(super) fn logging_route<'a>(object: &Object<'a>, names: &mut Names<'a>) -> Read {
    object.check(&keys(&["type", "name", "target"]))?;
    Ok(Handle::Logging { target: object.get("target").map(|node| boxed(&node, names)).transpose()? })
}
