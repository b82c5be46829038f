//! What both clients of the package share: a connection, a key prefix, and who counts their calls. `sync_client` has its
//! calls for Python, `async_client` sends through it.

use crate::codec::ValueCodec;
use crate::connection::Connection;
use crate::engine::Engine;
use crate::error::exception;
use crate::key::{Key, checked_key};
use crate::markers::Markers;
use crate::options::{exptime, parse_timeout, unix_s};
use crate::read::{KeyGroup, Read};
use crate::statistics::OwnStatistics;
use bytes::Bytes;
use lookaside_client::{ReadOptions, RegionalClient, TypedClient};
use pyo3::prelude::*;
use std::sync::Arc;
use std::time::Duration;

/// A client's connections and settings, and the prefix of its pool. `lookaside.Client` and `lookaside.AsyncClient` have
/// one each.
#[pyclass(frozen, module = "lookaside._lookaside")]
pub(crate) struct ClientCore {
    pub(crate) connection: Arc<Connection>,
    pub(crate) prefix: Vec<u8>,
    /// `None` if its calls are counted with those of the client that it was made from.
    pub(crate) own_statistics: Option<Arc<OwnStatistics>>,
    /// `None` for a client without remote markers.
    pub(crate) markers: Option<Arc<Markers>>,
}

impl ClientCore {
    /// The same client.
    pub(crate) fn share(&self) -> ClientCore {
        ClientCore {
            connection: self.connection.clone(),
            prefix: self.prefix.clone(),
            own_statistics: self.own_statistics.clone(),
            markers: self.markers.clone(),
        }
    }

    /// The client of the region, without a deadline.
    pub(crate) fn regional(&self, py: Python<'_>) -> PyResult<RegionalClient> {
        let engine = self.connection.engine(py)?;
        match &self.markers {
            Some(markers) => markers.regional(py, &engine),
            None => Err(exception(py, "ConfigurationError", "a client without remote markers".to_owned())),
        }
    }

    pub(crate) fn values(&self) -> ValueCodec {
        self.connection.settings.values
    }

    /// The engine, and the client with the deadline of a call.
    pub(crate) fn open(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<(Arc<Engine>, TypedClient)> {
        let engine = self.connection.engine(py)?;
        let deadline = timeout.map(|seconds| parse_timeout(py, "timeout", seconds)).transpose()?;
        let client = self.client(&engine, deadline);
        Ok((engine, client))
    }

    /// The client with a deadline, the default one for `None`.
    pub(crate) fn client(&self, engine: &Arc<Engine>, deadline: Option<Duration>) -> TypedClient {
        if deadline.is_none() && self.own_statistics.is_none() {
            return engine.limited_client().clone();
        }
        let deadline = deadline.unwrap_or(self.connection.settings.timeout);
        let client = self.unlimited_client(engine).client().clone().with_deadline(deadline);
        TypedClient::new(client, self.connection.settings.codec)
    }

    /// Equal for clients whose calls are counted together.
    pub(crate) fn statistics_id(&self) -> usize {
        self.own_statistics.as_ref().map_or(0, |own| Arc::as_ptr(own).addr())
    }

    /// The client without a deadline.
    pub(crate) fn unlimited_client(&self, engine: &Arc<Engine>) -> TypedClient {
        match &self.own_statistics {
            None => engine.unlimited_client().clone(),
            Some(own) => TypedClient::new(own.client(engine), self.connection.settings.codec),
        }
    }

    /// A read, and its keys as they are sent.
    #[allow(clippy::too_many_arguments, reason = "Python's keyword arguments")]
    pub(crate) fn start_read(
        &self,
        py: Python<'_>,
        engine: &Arc<Engine>,
        keys: &[Bound<'_, PyAny>],
        ttls: &[Option<f64>],
        stale: bool,
        wait: f64,
        absent_ttl: f64,
        timeout: Option<f64>,
    ) -> PyResult<(Vec<Bytes>, Read)> {
        let full_keys: Vec<Bytes> =
            keys.iter().map(|key| checked_key(py, Key::new(&self.prefix, key)?)).collect::<PyResult<_>>()?;
        let wait = Duration::try_from_secs_f64(wait)
            .map_err(|_| exception(py, "ConfigurationError", format!("wait is {wait} s; expected 0 or more")))?;
        let options = ReadOptions {
            allow_stale: stale,
            exptime: 0,
            hot_miss_wait_ms: wait.as_millis() as u64,
            absent_exptime: exptime(py, "absent_ttl", Some(absent_ttl), unix_s)?,
        };
        let exptimes: Vec<i64> = ttls.iter().map(|ttl| exptime(py, "ttl", *ttl, unix_s)).collect::<PyResult<_>>()?;
        let groups = KeyGroup::by_exptime(full_keys.len(), &exptimes);
        let timeout = timeout.map(|seconds| parse_timeout(py, "timeout", seconds)).transpose()?;
        let time_max = timeout.unwrap_or(self.connection.settings.timeout);
        let client = self.unlimited_client(engine);
        let client = match groups.len() > 1 && !engine.is_batching() {
            // So that the lookups of all groups are one round trip.
            true => TypedClient::new(client.client().clone().with_batching(), self.connection.settings.codec),
            false => client,
        };
        let regional = match &self.markers {
            Some(markers) => Some(markers.regional(py, engine)?.with_client(client.client().clone())),
            None => None,
        };
        let read = Read::new(client, regional, engine.handle().clone(), full_keys.clone(), groups, options, time_max);
        Ok((full_keys, read))
    }
}
