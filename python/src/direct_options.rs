//! The settings of a client that reads servers directly, from the arguments of its constructor.

use crate::error::exception;
use crate::options::{parse_routing_prefix, parse_timeout};
use lookaside_client::{HedgeDelay, HedgeSettings, UdpOptions, WindowControl, WindowSettings};
use lookaside_routing::{BigValueSettings, Defaults, HotMisses, LeaseSettings, PlaceTimeouts, RoutingPrefix};
use pyo3::prelude::*;
use std::ops::RangeInclusive;
use std::time::Duration;

/// What a client has that reads servers directly.
pub(crate) struct DirectSettings {
    /// What the configuration leaves to the command line of the routers.
    pub(crate) defaults: Defaults,
    /// How gets are sent to servers by UDP; `None` if they are sent by TCP.
    pub(crate) udp: Option<UdpOptions>,
    /// The bounds of the window; `None` for no window.
    pub(crate) window: Option<WindowSettings>,
    /// `None` if late lookups are not sent to replicas.
    pub(crate) hedging: Option<Hedging>,
    /// Whether updates are sent to servers, too.
    pub(crate) updates_directly: bool,
}

/// To which replicas late lookups are sent, too, and when.
pub(crate) struct Hedging {
    pub(crate) replicas: RoutingPrefix,
    pub(crate) settings: HedgeSettings,
}

/// The arguments.
pub(crate) struct DirectArguments<'a> {
    pub(crate) routing_prefix: Option<&'a str>,
    pub(crate) router_options: RouterArguments,
    pub(crate) udp: Option<UdpArguments>,
    pub(crate) window: Option<WindowArguments>,
    pub(crate) hedge: Option<HedgeArguments>,
    pub(crate) send_updates_directly: bool,
}

/// The fields of `lookaside.Udp`.
#[derive(FromPyObject)]
pub(crate) struct UdpArguments {
    port: Option<i64>,
    timeout: f64,
}

/// The fields of `lookaside.Window`.
#[derive(FromPyObject)]
pub(crate) struct WindowArguments {
    initial: i64,
    min: i64,
    max: i64,
    control: String,
    wait: f64,
    waiting_max: i64,
}

/// The fields of `lookaside.Hedge`.
#[derive(FromPyObject)]
pub(crate) struct HedgeArguments {
    replicas: String,
    delay: Option<f64>,
    quantile: f64,
    share_max: f64,
    plain_gets: bool,
}

/// The fields of `lookaside.RouterOptions`.
#[derive(FromPyObject)]
pub(crate) struct RouterArguments {
    server_timeout: f64,
    connect_timeout: Option<f64>,
    cross_region_timeout: Option<f64>,
    cross_cluster_timeout: Option<f64>,
    within_cluster_timeout: Option<f64>,
    send_invalid_route_to_default: bool,
    allow_only_gets: bool,
    disable_shard_split_route: bool,
    big_value_split_threshold: i64,
    big_value_batch_size: i64,
    big_value_hide_reply_flag: bool,
    leases: bool,
    lease_miss_age: i64,
    lease_hot_miss_wait: f64,
    lease_return_stale: bool,
}

impl DirectArguments<'_> {
    /// The settings. Those that mean nothing without a configuration are refused if there is none.
    pub(crate) fn parse(self, py: Python<'_>, has_configuration: bool) -> PyResult<DirectSettings> {
        let mut defaults = self.router_options.parse(py)?;
        let window = self.window.map(|window| window.parse(py)).transpose()?;
        let meaningless = [
            (self.udp.is_some(), "udp=True", "routers are reached by TCP"),
            (self.hedge.is_some(), "hedge=", "replicas are read directly"),
            (window != Some(WindowSettings::by_delay()), "window=", "it bounds what is outstanding at servers"),
            (self.send_updates_directly, "send_updates_directly=True", "servers are named by the configuration"),
            (defaults != Defaults::default(), "router_options=", "the routers have them"),
        ];
        if let Some((_, argument, why)) = meaningless.iter().find(|(is_given, ..)| *is_given && !has_configuration) {
            return Err(exception(py, "ConfigurationError", format!("{argument} without config=: {why}")));
        }
        if let Some(prefix) = self.routing_prefix {
            defaults.prefix = parse_routing_prefix(py, "routing_prefix", prefix)?;
        }
        Ok(DirectSettings {
            defaults,
            udp: self.udp.map(|udp| udp.parse(py)).transpose()?,
            window,
            hedging: self.hedge.map(|hedge| hedge.parse(py)).transpose()?,
            updates_directly: self.send_updates_directly,
        })
    }
}

impl UdpArguments {
    fn parse(self, py: Python<'_>) -> PyResult<UdpOptions> {
        let port = self.port.map(|port| in_range(py, "udp: port", port, 1..=u16::MAX.into())).transpose()?;
        let timeout_ms = milliseconds(parse_timeout(py, "udp: timeout", self.timeout)?);
        Ok(UdpOptions { port: port.map(|port| port as u16), timeout_ms })
    }
}

impl WindowArguments {
    fn parse(self, py: Python<'_>) -> PyResult<WindowSettings> {
        let WindowArguments { initial, min, max, control, wait, waiting_max } = self;
        let refuse = |why: String| exception(py, "ConfigurationError", format!("window: {why}"));
        if !(1 <= min && min <= initial && initial <= max) {
            let message = format!("initial {initial}, min {min}, max {max}; expected 1 <= min <= initial <= max");
            return Err(refuse(message));
        }
        let control = match control.as_str() {
            "delay" => WindowControl::Delay,
            "loss" => WindowControl::Loss,
            other => return Err(refuse(format!("control {other:?}; expected \"delay\" or \"loss\""))),
        };
        Ok(WindowSettings {
            initial: initial as usize,
            min: min as usize,
            max: max as usize,
            waiting_requests_max: in_range(py, "window: waiting_max", waiting_max, 0..=i64::MAX)? as usize,
            wait_ms_max: milliseconds(parse_timeout(py, "window: wait", wait)?),
            control,
        })
    }
}

impl HedgeArguments {
    fn parse(self, py: Python<'_>) -> PyResult<Hedging> {
        let HedgeArguments { replicas, delay, quantile, share_max, plain_gets } = self;
        let is_share = |number: f64| number > 0.0 && number <= 1.0;
        if !is_share(quantile) || !is_share(share_max) {
            let message = format!("hedge: quantile {quantile}, share_max {share_max}; expected more than 0, up to 1");
            return Err(exception(py, "ConfigurationError", message));
        }
        let delay = match delay {
            Some(seconds) => HedgeDelay::Fixed(parse_timeout(py, "hedge: delay", seconds)?),
            None => HedgeDelay::Quantile(quantile),
        };
        let settings = HedgeSettings { delay, share_max, plain_gets };
        Ok(Hedging { replicas: parse_routing_prefix(py, "hedge: replicas", &replicas)?, settings })
    }
}

impl RouterArguments {
    /// What routers with these options leave to a configuration.
    fn parse(self, py: Python<'_>) -> PyResult<Defaults> {
        let timeout =
            |what: &str, seconds: f64| parse_timeout(py, &format!("router_options: {what}"), seconds).map(milliseconds);
        let of_place = |what: &str, seconds: Option<f64>| seconds.map(|seconds| timeout(what, seconds)).transpose();
        let threshold =
            in_range(py, "router_options: big_value_split_threshold", self.big_value_split_threshold, 0..=i64::MAX)?;
        let batch_size = in_range(py, "router_options: big_value_batch_size", self.big_value_batch_size, 0..=i64::MAX)?;
        let big_values = (threshold > 0).then_some(BigValueSettings {
            split_threshold_bytes: threshold as usize,
            batch_size: batch_size as usize,
            hides_flag: self.big_value_hide_reply_flag,
        });
        Ok(Defaults {
            server_timeout_ms: timeout("server_timeout", self.server_timeout)?,
            connect_timeout_ms: of_place("connect_timeout", self.connect_timeout)?,
            leases: self.lease_settings(py)?,
            place_timeouts: PlaceTimeouts {
                cross_region_ms: of_place("cross_region_timeout", self.cross_region_timeout)?,
                cross_cluster_ms: of_place("cross_cluster_timeout", self.cross_cluster_timeout)?,
                within_cluster_ms: of_place("within_cluster_timeout", self.within_cluster_timeout)?,
            },
            sends_unknown_prefix_to_default: self.send_invalid_route_to_default,
            big_values,
            allows_only_gets: self.allow_only_gets,
            splits_shards: !self.disable_shard_split_route,
            ..Defaults::default()
        })
    }

    /// `None` without `leases`. What a set without a miss does is the routers' to judge.
    fn lease_settings(&self, py: Python<'_>) -> PyResult<Option<LeaseSettings>> {
        let refuse = |why: String| exception(py, "ConfigurationError", format!("router_options: {why}"));
        let miss_age = in_range(py, "router_options: lease_miss_age", self.lease_miss_age, 1..=3_600)?;
        let wait = Duration::try_from_secs_f64(self.lease_hot_miss_wait).ok().filter(|wait| wait.as_secs_f64() <= 1.0);
        let Some(wait) = wait else {
            return Err(refuse(format!("lease_hot_miss_wait {}; expected 0 to 1 s", self.lease_hot_miss_wait)));
        };
        let settings = LeaseSettings {
            hot_misses: HotMisses { wait, return_stale: self.lease_return_stale },
            miss_age_s: miss_age as u32,
            ..LeaseSettings::default()
        };
        if !self.leases && settings != LeaseSettings::default() {
            return Err(refuse("lease_ options without leases=True".to_owned()));
        }
        Ok(self.leases.then_some(settings))
    }
}

/// Not 0, which would be no time.
fn milliseconds(time: Duration) -> u64 {
    (time.as_millis() as u64).max(1)
}

fn in_range(py: Python<'_>, what: &str, number: i64, range: RangeInclusive<i64>) -> PyResult<i64> {
    match range.contains(&number) {
        true => Ok(number),
        false => {
            let (from, to) = range.into_inner();
            let expected = if to == i64::MAX { format!("{from} or more") } else { format!("{from} to {to}") };
            Err(exception(py, "ConfigurationError", format!("{what} {number}; expected {expected}")))
        }
    }
}
