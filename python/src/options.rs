//! The settings of a client, from the arguments of its constructor.

use crate::codec::ValueCodec;
use crate::direct_options::DirectSettings;
use crate::error::exception;
use lookaside_client::config::{EtcdLocation, Source};
use lookaside_client::tls::{CertificatePaths, TlsClientNetwork};
use lookaside_client::{Codec, Compression, Network, TcpNetwork};
use lookaside_routing::{Address, RoutingPrefix, Security, TlsPolicy};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest timeout: tokio's timers have a limit, and a year is as good as none.
const SECONDS_MAX: f64 = 365.0 * 86_400.0;
/// memcached takes a larger exptime for a Unix time.
const RELATIVE_EXPTIME_S_MAX: f64 = 30.0 * 86_400.0;

pub(crate) struct Settings {
    /// Empty if the configuration names them.
    pub(crate) routers: Vec<Address>,
    pub(crate) networks: Networks,
    /// `None` if all requests go through the routers.
    pub(crate) source: Option<Source>,
    /// Whether the client cannot be made before it has read a configuration.
    pub(crate) needs_configuration: bool,
    /// How servers are read directly, if there is a source.
    pub(crate) direct: DirectSettings,
    /// How long a call may take.
    pub(crate) timeout: Duration,
    pub(crate) codec: Codec,
    pub(crate) values: ValueCodec,
}

/// How a client connects.
pub(crate) struct Networks {
    /// To servers and etcd.
    pub(crate) servers: Arc<dyn Network>,
    /// To routers, whatever their addresses are.
    pub(crate) routers: Arc<dyn Network>,
}

/// The fields of `lookaside.Tls`.
#[derive(FromPyObject)]
pub(crate) struct TlsArguments {
    authorities: PathBuf,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    server_name: Option<String>,
    routers: bool,
}

/// Where a configuration is: `file:PATH`, or `etcd://HOST:PORT/KEY`, with `etcds` by TLS.
pub(crate) fn parse_source(text: &str) -> Result<Source, String> {
    if let Some(path) = text.strip_prefix("file:") {
        return Ok(Source::File(path.into()));
    }
    match EtcdLocation::parse(text) {
        Some(location) => location.map(Source::Etcd),
        None => Err("expected file:PATH, etcd://HOST:PORT/KEY or etcds://HOST:PORT/KEY".to_owned()),
    }
}

/// The networks. An error tells which file or name cannot be used: those of the given `routers` are checked.
pub(crate) fn parse_tls(
    tls: Option<TlsArguments>,
    routers: &[Address],
    source: Option<&Source>,
) -> Result<Networks, String> {
    let Some(tls) = tls else {
        return match source {
            Some(Source::Etcd(location)) if location.is_secured => {
                Err("etcds:// needs tls=Tls(authorities=...)".to_owned())
            }
            _ => Ok(Networks { servers: Arc::new(TcpNetwork), routers: Arc::new(TcpNetwork) }),
        };
    };
    let TlsArguments { authorities, certificate, key, server_name, routers: are_routers_secured } = tls;
    if key.is_some() && certificate.is_none() {
        return Err("tls: a key without a certificate".to_owned());
    }
    let files = CertificatePaths { chain: certificate, key, authorities: Some(authorities) };
    let network = TlsClientNetwork::new(Arc::new(TcpNetwork), files).map_err(|why| format!("tls: {why}"))?;
    let policy = TlsPolicy { security: Security::Tls, certificate_name: server_name.map(Into::into) };
    let routers = routers.iter().filter(|_| are_routers_secured).map(|router| (router.clone(), policy.clone()));
    let network = network.with_policies(routers).map_err(|why| format!("tls: server_name for router {why}"))?;
    let etcd = source.and_then(|source| match source {
        Source::Etcd(location) => Some(location.tls_policies()),
        _ => None,
    });
    let network = Arc::new(network.with_policies(etcd.into_iter().flatten())?);
    let routers: Arc<dyn Network> = match are_routers_secured {
        true => network.pinned(&policy).ok_or("tls: its files cannot be used any more")?,
        false => network.clone(),
    };
    Ok(Networks { servers: network, routers })
}

/// The routing prefix of the argument that is named `what`.
pub(crate) fn parse_routing_prefix(py: Python<'_>, what: &str, text: &str) -> PyResult<RoutingPrefix> {
    RoutingPrefix::parse(text).map_err(|error| exception(py, "ConfigurationError", format!("{what}: {error}")))
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

/// The time of the argument that is named `what`, for which something may last.
pub(crate) fn parse_timeout(py: Python<'_>, what: &str, seconds: f64) -> PyResult<Duration> {
    match seconds > 0.0 {
        true => Ok(Duration::from_secs_f64(seconds.min(SECONDS_MAX))),
        false => Err(exception(py, "ConfigurationError", format!("{what} is {seconds} s; expected more than 0"))),
    }
}

/// The exptime of a value that is to live for the seconds of the argument that is named `what`; without end if there
/// are none. `now` is the Unix time.
pub(crate) fn exptime(py: Python<'_>, what: &str, ttl: Option<f64>, now: impl Fn() -> u64) -> PyResult<i64> {
    match ttl {
        None => Ok(0),
        Some(ttl) if ttl > 0.0 && ttl <= RELATIVE_EXPTIME_S_MAX => Ok(ttl.ceil() as i64),
        Some(ttl) if ttl > 0.0 => Ok((now() as f64 + ttl.min(SECONDS_MAX)).ceil() as i64),
        Some(ttl) => {
            let message = format!("{what} is {ttl} s; expected more than 0, or None for a value that does not expire");
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
