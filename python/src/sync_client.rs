//! The calls of `lookaside.Client`: each runs in the thread that calls it, without the GIL while it waits.

use crate::client_core::ClientCore;
use crate::codec::{ValueCodec, check_loaded};
use crate::connection::Connection;
use crate::direct_options::{DirectArguments, HedgeArguments, RouterArguments, UdpArguments, WindowArguments};
use crate::engine::{Driving, Engine, NO_ROUTERS_READ};
use crate::error::{decode_error, encode_error, exception, name_key, router_error};
use crate::key::{Key, call_error, checked_key, key_text};
use crate::markers::{MarkerArguments, Markers, WriteCore, source_name};
use crate::options::{
    Settings, TlsArguments, exptime, is_address, parse_codec, parse_source, parse_timeout, parse_tls, unix_s,
};
use crate::positions::positions;
use crate::read::Step;
use crate::results::{ReadValues, found_content, found_values, read_error};
use crate::updates::{PreparedUpdate, Update, full_key, update_result};
use crate::waiting::{Inside, outside};
use bytes::Bytes;
use lookaside_client::{ClientError, Content, Encoded, FillOutcome, Lease, Lookup, ReadFrom};
use lookaside_protocol::{LeaseToken, Reply};
use lookaside_routing::Address;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use std::slice::from_ref;
use std::sync::Arc;

#[pymethods]
impl ClientCore {
    /// Connects at once if there is a configuration to read, and otherwise with the first call.
    #[new]
    #[pyo3(signature = (
        routers, *, config, config_required, routing_prefix, router_options, udp, window, send_updates_directly, tls,
        hedge, timeout, pickle, compression, compression_bytes_min, is_async
    ))]
    #[allow(clippy::too_many_arguments, reason = "Python's keyword arguments")]
    fn new(
        py: Python<'_>,
        routers: Vec<String>,
        config: Option<&str>,
        config_required: bool,
        routing_prefix: Option<&str>,
        router_options: RouterArguments,
        udp: Option<UdpArguments>,
        window: Option<WindowArguments>,
        send_updates_directly: bool,
        tls: Option<TlsArguments>,
        hedge: Option<HedgeArguments>,
        timeout: f64,
        pickle: bool,
        compression: Option<&str>,
        compression_bytes_min: usize,
        is_async: bool,
    ) -> PyResult<ClientCore> {
        let refuse = |why: String| exception(py, "ConfigurationError", why);
        if routers.is_empty() && config.is_none() {
            let why = "no router: a client sends its updates through the routers of its cluster";
            return Err(refuse(format!("{why}; expected [\"HOST:PORT\", ...], or config= with \"routers\" in it")));
        }
        if let Some(wrong) = routers.iter().find(|router| !is_address(router)) {
            return Err(refuse(format!("router {wrong:?} is not HOST:PORT or the path of a Unix socket")));
        }
        let direct = DirectArguments { routing_prefix, router_options, udp, window, hedge, send_updates_directly };
        let direct = direct.parse(py, config.is_some())?;
        let source = config.map(parse_source).transpose();
        let source = source.map_err(|why| refuse(format!("config {:?}: {why}", config.unwrap_or_default())))?;
        let routers: Vec<Address> = routers.into_iter().map(|router| Address(router.into())).collect();
        let settings = Settings {
            networks: parse_tls(tls, &routers, source.as_ref()).map_err(refuse)?,
            routers,
            source,
            needs_configuration: config_required,
            direct,
            timeout: parse_timeout(py, "timeout", timeout)?,
            codec: parse_codec(py, compression, compression_bytes_min)?,
            values: ValueCodec { is_pickling: pickle },
        };
        let driving = if is_async { Driving::Thread } else { Driving::Callers };
        let connection = Arc::new(Connection::new(settings, driving));
        let core = ClientCore { connection, prefix: Vec::new(), own_statistics: None, markers: None };
        if config.is_some() {
            core.connection.engine(py)?;
        }
        Ok(core)
    }

    /// The same client for keys below a prefix.
    fn with_prefix(&self, prefix: &Bound<'_, PyAny>) -> PyResult<ClientCore> {
        let prefix = Key::new(&self.prefix, prefix)?.as_ref().to_vec();
        Ok(ClientCore { prefix, ..self.share() })
    }

    /// The same client with remote markers.
    fn with_remote_markers(&self, py: Python<'_>, markers: MarkerArguments) -> PyResult<ClientCore> {
        if self.prefix.starts_with(b"/") {
            let why = "remote markers behind a routing prefix: SQL names keys without one";
            return Err(exception(py, "ConfigurationError", why.to_owned()));
        }
        Ok(ClientCore { markers: Some(Arc::new(Markers::new(py, markers)?)), ..self.share() })
    }

    /// The same client with counters of its own.
    fn with_own_statistics(&self) -> ClientCore {
        ClientCore { own_statistics: Some(Arc::default()), ..self.share() }
    }

    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: Bound<'py, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _inside = Inside::enter(py);
        let (engine, client) = self.open(py, timeout)?;
        let key = Key::new(&self.prefix, key)?;
        let found = engine.wait(py, client.get::<Content>(&key))?;
        let content = found_content(found).map_err(|error| call_error(py, from_ref(&key), &error));
        let value = content.and_then(|content| match content {
            Some(content) => self.values().decode(py, &content),
            None => Ok(default),
        });
        value.map_err(|error| name_key(py, error, || key_text(key.as_ref())))
    }

    fn get_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let _inside = Inside::enter(py);
        let (engine, client) = self.open(py, timeout)?;
        let names: Vec<Bound<'py, PyAny>> = keys.try_iter()?.collect::<PyResult<_>>()?;
        let keys: Vec<Key> = names.iter().map(|name| Key::new(&self.prefix, name)).collect::<PyResult<_>>()?;
        let found = engine.wait(py, client.get_many::<Content, Key>(&keys))?;
        let found = found.map_err(|error| call_error(py, &keys, &error))?;
        found_values(py, self.values(), names, &keys, found)
    }

    /// The value of a key; on a miss `None`, and the token of its lease if this caller may fill it. Then whether
    /// another client may. No client may fill the misses of a server without leases.
    fn look_up<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<(Bound<'py, PyAny>, Option<u64>, bool)> {
        let _inside = Inside::enter(py);
        let (engine, client) = self.open(py, timeout)?;
        let key = Key::new(&self.prefix, key)?;
        let found = engine.wait(py, client.client().get(&key))?;
        let none = py.None().into_bound(py);
        let lookup = match found {
            Err(ClientError::UnknownCommand { .. }) => Lookup::Miss { lease: Lease::Unsupported },
            found => found.map_err(|error| call_error(py, from_ref(&key), &error.into()))?,
        };
        match lookup {
            Lookup::Hit { value, flags } => {
                let decoded = self.connection.settings.codec.decode::<Content>(value, flags);
                let content = decoded.map_err(|error| decode_error(py, &error));
                let value = content.and_then(|content| self.values().decode(py, &content));
                Ok((value.map_err(|error| name_key(py, error, || key_text(key.as_ref())))?, None, false))
            }
            Lookup::Miss { lease } | Lookup::Stale { lease, .. } => Ok(match lease {
                Lease::Held(token) => (none, Some(token.0), false),
                Lease::HotMiss => (none, None, true),
                Lease::Unsupported => (none, None, false),
            }),
        }
    }

    /// Stores a value under the token of a lookup; whether that was still valid.
    fn fill(
        &self,
        key: &Bound<'_, PyAny>,
        token: u64,
        value: &Bound<'_, PyAny>,
        ttl: Option<f64>,
        timeout: Option<f64>,
    ) -> PyResult<bool> {
        let py = key.py();
        let _inside = Inside::enter(py);
        let (engine, client) = self.open(py, timeout)?;
        let key = Key::new(&self.prefix, key)?;
        let encoded = self.values().encode(value).and_then(|content| {
            self.connection.settings.codec.encode(&content).map_err(|error| encode_error(py, &error))
        });
        let encoded = encoded.map_err(|error| name_key(py, error, || key_text(key.as_ref())));
        let Encoded { value, flags } = encoded?;
        let exptime = exptime(py, "ttl", ttl, unix_s)?;
        let filled = engine.wait(py, client.client().fill(&key, LeaseToken(token), value, flags, exptime))?;
        Ok(filled.map_err(|error| call_error(py, from_ref(&key), &error.into()))? == FillOutcome::Stored)
    }

    /// Gives a token back that is not going to be used.
    fn release(&self, key: &Bound<'_, PyAny>, token: u64, timeout: Option<f64>) -> PyResult<()> {
        let py = key.py();
        let _inside = Inside::enter(py);
        let (engine, client) = self.open(py, timeout)?;
        let key = Key::new(&self.prefix, key)?;
        let released = engine.wait(py, client.client().release(&key, LeaseToken(token)))?;
        released.map_err(|error| call_error(py, from_ref(&key), &error.into()))
    }

    fn set(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>, ttl: Option<f64>) -> PyResult<PreparedUpdate> {
        Ok(PreparedUpdate::new(Update::set(self, key, value, ttl)?))
    }

    fn add(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>, ttl: Option<f64>) -> PyResult<PreparedUpdate> {
        Ok(PreparedUpdate::new(Update::add(self, key, value, ttl)?))
    }

    fn incr(&self, key: &Bound<'_, PyAny>, delta: &Bound<'_, PyAny>) -> PyResult<PreparedUpdate> {
        Ok(PreparedUpdate::new(Update::incr(self, key, delta)?))
    }

    fn decr(&self, key: &Bound<'_, PyAny>, delta: &Bound<'_, PyAny>) -> PyResult<PreparedUpdate> {
        Ok(PreparedUpdate::new(Update::decr(self, key, delta)?))
    }

    fn touch(&self, key: &Bound<'_, PyAny>, ttl: Option<f64>) -> PyResult<PreparedUpdate> {
        Ok(PreparedUpdate::new(Update::touch(self, key, ttl)?))
    }

    fn delete(&self, key: &Bound<'_, PyAny>) -> PyResult<PreparedUpdate> {
        Ok(PreparedUpdate::new(Update::delete(self, key)?))
    }

    fn set_many(&self, mapping: &Bound<'_, PyAny>, ttl: Option<f64>) -> PyResult<PreparedUpdate> {
        Ok(PreparedUpdate::new(Update::set_many(self, mapping, ttl)?))
    }

    fn delete_many(&self, keys: &Bound<'_, PyAny>) -> PyResult<PreparedUpdate> {
        Ok(PreparedUpdate::new(Update::delete_many(self, keys)?))
    }

    /// Sets the remote markers of keys.
    fn begin_write(&self, keys: &Bound<'_, PyAny>) -> PyResult<PreparedUpdate> {
        Ok(PreparedUpdate::new(Update::begin_write(self, keys)?))
    }

    /// Deletes the keys of a write.
    fn finish_write(&self, write: &WriteCore) -> PreparedUpdate {
        PreparedUpdate::new(Update::FinishWrite { write: write.0.clone() })
    }

    /// Removes the remote markers of a write.
    fn abort_write(&self, write: &WriteCore) -> PreparedUpdate {
        PreparedUpdate::new(Update::AbortWrite { write: write.0.clone() })
    }

    /// The databases to read keys from past the cache, in order.
    fn find_sources(&self, keys: &Bound<'_, PyAny>) -> PyResult<PreparedUpdate> {
        Ok(PreparedUpdate::new(Update::find_sources(self, keys)?))
    }

    /// Checks and counts keys that a loader is about to read past the cache; with `is_demanded` from the master,
    /// whether or not they have markers.
    fn count_past_cache(&self, py: Python<'_>, keys: Vec<Bound<'_, PyAny>>, is_demanded: bool) -> PyResult<()> {
        keys.iter().try_for_each(|key| full_key(self, key).map(|_| ()))?;
        let engine = self.connection.engine(py)?;
        let client = self.unlimited_client(&engine).client().clone();
        self.regional(py)?.with_client(client).count_past_cache(keys.len(), is_demanded);
        Ok(())
    }

    /// Sends an update, and waits for its outcome.
    fn update<'py>(
        &self,
        py: Python<'py>,
        prepared: &PreparedUpdate,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _inside = Inside::enter(py);
        let (engine, client) = self.open(py, timeout)?;
        update_result(py, engine.wait(py, prepared.take()?.send(&client))?)
    }

    /// The values of keys, in order. `load` gets the keys that must be loaded, as they were named, and the name of the
    /// database, `None` without remote markers; it returns a list of values in their order. A value in the cache that
    /// cannot be decoded is loaded, and not filled. `ttls` has the ttl of all keys, or one for each.
    #[allow(clippy::too_many_arguments, reason = "Python's keyword arguments")]
    fn read<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Bound<'py, PyAny>>,
        load: &Bound<'py, PyAny>,
        ttls: Vec<Option<f64>>,
        stale: bool,
        wait: f64,
        absent_ttl: f64,
        timeout: Option<f64>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let _inside = Inside::enter(py);
        let engine = self.connection.engine(py)?;
        let (full_keys, mut read) = self.start_read(py, &engine, &keys, &ttls, stale, wait, absent_ttl, timeout)?;
        let values = loop {
            match engine.wait(py, read.next())? {
                Step::Done(values) => break values,
                Step::ToLoad { keys: missing, from } => {
                    let names = positions(&missing, &full_keys).map(|index| &keys[index]);
                    read.load_succeeded(self.load_values(py, load, names.collect(), &missing, from)?);
                }
                Step::Failed(error) => return Err(read_error(py, error)),
            }
        };
        drop(read);
        let ReadValues { mut values, undecodable } = ReadValues::decode(py, self.values(), &values)?;
        if !undecodable.is_empty() {
            // No marker was looked for.
            let names = PyList::new(py, undecodable.iter().map(|&index| &keys[index]))?;
            let loaded = outside(py, || load.call1((names, source_name(ReadFrom::Master))))?;
            let loaded: Vec<Bound<'py, PyAny>> = loaded.try_iter()?.collect::<PyResult<_>>()?;
            check_loaded(loaded.len(), undecodable.len())?;
            for (index, value) in undecodable.into_iter().zip(loaded) {
                values[index] = value;
            }
        }
        Ok(values)
    }

    /// The key as it is sent, with the prefix of the pool.
    fn full_key<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(key.py(), Key::new(&self.prefix, key)?.as_ref()))
    }

    /// The value that a router returns for one of the routers' admin keys.
    fn ask_router(&self, py: Python<'_>, key: &[u8]) -> PyResult<Vec<u8>> {
        let engine = self.connection.engine(py)?;
        let key = checked_key(py, Key::Prefixed(key.to_vec()))?;
        let limit = self.connection.settings.timeout;
        match engine.wait(py, async { tokio::time::timeout(limit, engine.ask_router(key)).await })? {
            Ok(Ok(Reply::Value { value, .. })) => Ok(value.to_vec()),
            Ok(Ok(Reply::Miss)) => {
                let why = |routers| {
                    format!(
                        "{routers} did not reply as a router does: expected routers of the cluster, not its servers"
                    )
                };
                Err(exception(py, "RefusedError", no_reply(&engine, why)))
            }
            Ok(Ok(Reply::Error(error))) => Err(exception(py, "RefusedError", format!("the router refused: {error}"))),
            Ok(Ok(_)) => Err(exception(py, "RefusedError", "the router did not reply with a value".to_owned())),
            Ok(Err(failure)) => {
                let why = |routers| format!("no reply from the routers {routers}: {failure}");
                Err(exception(py, "CacheUnavailableError", no_reply(&engine, why)))
            }
            Err(_) => {
                let why = |routers| format!("none of the routers {routers} replied within {limit:?}");
                Err(exception(py, "DeadlineExceededError", no_reply(&engine, why)))
            }
        }
    }

    /// Empties all servers of the cluster, if its routers allow it.
    fn flush_all(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let engine = self.connection.engine(py)?;
        let timeout = parse_timeout(py, "timeout", timeout)?;
        let flushed = engine.wait(py, engine.flush_all(&self.connection.settings, timeout))?;
        flushed.map_err(|(router, error)| router_error(py, router.as_ref(), &error))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let engine = self.connection.engine(py)?;
        let counters = PyDict::new(py);
        for (name, value) in self.unlimited_client(&engine).client().statistics().named() {
            counters.set_item(name, value)?;
        }
        for (name, value) in engine.direct_statistics().iter().filter(|_| self.own_statistics.is_none()) {
            counters.set_item(name, value)?;
        }
        if let Some(markers) = &self.markers {
            for (name, value) in markers.regional(py, &engine)?.marker_statistics().named() {
                counters.set_item(format!("markers.{name}"), value)?;
            }
        }
        Ok(counters)
    }

    /// Fails if the client is closed.
    fn check_open(&self, py: Python<'_>) -> PyResult<()> {
        self.connection.check_open(py)
    }

    fn close(&self) {
        self.connection.close();
    }
}

impl ClientCore {
    fn load_values(
        &self,
        py: Python<'_>,
        load: &Bound<'_, PyAny>,
        names: Vec<&Bound<'_, PyAny>>,
        keys: &[Bytes],
        from: Option<ReadFrom>,
    ) -> PyResult<Vec<Content>> {
        let values = outside(py, || load.call1((PyList::new(py, names.iter())?, from.map(source_name))))?;
        self.values().encode_loaded(&values, keys.len(), |index| key_text(&keys[index]))
    }
}

/// The message of a call that no router has answered: `why` with the names of the routers, if there are any.
fn no_reply(engine: &Engine, why: impl FnOnce(String) -> String) -> String {
    let routers = engine.routers().addresses();
    match routers.is_empty() {
        true => NO_ROUTERS_READ.to_owned(),
        false => why(routers.iter().map(|router| &*router.0).collect::<Vec<&str>>().join(", ")),
    }
}
