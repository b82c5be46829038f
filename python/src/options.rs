//! The settings of a client, from the arguments of its constructor.

use crate::codec::ValueCodec;
use crate::error::exception;
use lookaside_client::config::Source;
use lookaside_client::{Codec, Compression};
use lookaside_routing::{Address, Defaults, RoutingPrefix};
use pyo3::prelude::*;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest timeout: tokio's timers have a limit, and a year is as good as none.
const SECONDS_MAX: f64 = 365.0 * 86_400.0;
/// memcached takes a larger exptime for a Unix time.
const RELATIVE_EXPTIME_S_MAX: f64 = 30.0 * 86_400.0;

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Not empty.
    pub(crate) routers: Vec<Address>,
    /// `None` if all requests go through the routers.
    pub(crate) source: Option<Source>,
    /// What the configuration leaves to the command line of the routers.
    pub(crate) defaults: Defaults,
    /// Whether gets are sent to servers by UDP.
    pub(crate) is_udp: bool,
    /// How long a call may take.
    pub(crate) timeout: Duration,
    pub(crate) codec: Codec,
    pub(crate) values: ValueCodec,
}

/// Where a configuration is: `file:PATH`, or `etcd://HOST:PORT/KEY`.
pub(crate) fn parse_source(text: &str) -> Result<Source, String> {
    use lookaside_client::config::EtcdLocation;
    if let Some(path) = text.strip_prefix("file:") {
        return Ok(Source::File(path.into()));
    }
    match EtcdLocation::parse(text) {
        Some(Ok(location)) if location.is_secured => {
            Err("etcds:// is not supported: this client connects without TLS".to_owned())
        }
        Some(location) => location.map(Source::Etcd),
        None => Err("expected file:PATH or etcd://HOST:PORT/KEY".to_owned()),
    }
}

pub(crate) fn parse_routing_prefix(py: Python<'_>, text: &str) -> PyResult<RoutingPrefix> {
    RoutingPrefix::parse(text).map_err(|error| exception(py, "ConfigurationError", error.to_string()))
}

pub(crate) fn parse_codec(py: Python<'_>, compression: Option<&str>, bytes_min: usize) -> PyResult<Codec> {
    let codec = Codec::default();
    let compression = match compression {
        None => return Ok(codec),
        Some("zlib") => Compression::Zlib,
        Some("zstd") => Compression::Zstd,
        Some("lz4") => Compression::Lz4,
        Some(other) => {
            let message = format!("compression {other:?} is not known; expected \"zlib\", \"zstd\", \"lz4\" or None");
            return Err(exception(py, "ConfigurationError", message));
        }
    };
    Ok(codec.with_compression(compression, bytes_min))
}

/// A time that a call may take.
pub(crate) fn parse_timeout(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    match seconds > 0.0 {
        true => Ok(Duration::from_secs_f64(seconds.min(SECONDS_MAX))),
        false => Err(exception(py, "ConfigurationError", format!("a timeout of {seconds} s; expected more than 0"))),
    }
}

/// The exptime of a value that is to live for `ttl` seconds; without end if there is none. `now` is the Unix time.
pub(crate) fn exptime(py: Python<'_>, ttl: Option<f64>, now: impl Fn() -> u64) -> PyResult<i64> {
    match ttl {
        None => Ok(0),
        Some(ttl) if ttl > 0.0 && ttl <= RELATIVE_EXPTIME_S_MAX => Ok(ttl.ceil() as i64),
        Some(ttl) if ttl > 0.0 => Ok((now() as f64 + ttl.min(SECONDS_MAX)).ceil() as i64),
        Some(ttl) => {
            let message = format!("a ttl of {ttl} s; expected more than 0, or None for a value that does not expire");
            Err(exception(py, "ConfigurationError", message))
        }
    }
}

/// The wall clock, in seconds since 1970.
pub(crate) fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Whether it is `HOST:PORT`, or the path of a Unix socket.
pub(crate) fn is_address(text: &str) -> bool {
    let port = text.rsplit_once(':').map(|(host, port)| (!host.is_empty(), port.parse::<u16>().is_ok()));
    text.starts_with('/') || port == Some((true, true))
}
