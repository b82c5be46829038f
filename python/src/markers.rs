//! Remote markers (§5 of the paper): what `lookaside.RegionalClient` and `lookaside.AsyncRegionalClient` add to a
//! client.

use crate::engine::Engine;
use crate::error::{client_error, exception};
use lookaside_client::{MarkError, MarkerForm, MarkerSettings, ReadFrom, RegionalClient, RemoteWrite, WhenNotSet};
use lookaside_sync::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::{Arc, Weak};

/// The fields of `lookaside.RemoteMarkers`.
#[derive(FromPyObject)]
pub(crate) struct MarkerArguments {
    key_prefix: String,
    ttl: u32,
    per_key: bool,
    accept_lag: bool,
    when_unknown: String,
}

/// The markers of a client.
pub(crate) struct Markers {
    settings: MarkerSettings,
    /// The client of the region, and the engine that it is of: a forked child has another one. Locked only with the GIL
    /// held, as in a fork, so that it is unlocked in a child.
    regional: Mutex<Option<(Weak<Engine>, RegionalClient)>>,
}

impl Markers {
    pub(crate) fn new(py: Python<'_>, arguments: MarkerArguments) -> PyResult<Markers> {
        let MarkerArguments { key_prefix, ttl: ttl_s, per_key, accept_lag, when_unknown } = arguments;
        let refuse = |why: String| exception(py, "ConfigurationError", why);
        let settings = MarkerSettings {
            key_prefix,
            ttl_s,
            form: if per_key { MarkerForm::PerKey } else { MarkerForm::PerWrite },
            when_not_set: if accept_lag { WhenNotSet::AcceptLag } else { WhenNotSet::Fail },
            when_unknown: match when_unknown.as_str() {
                "master" => ReadFrom::Master,
                "replica" => ReadFrom::Replica,
                other => return Err(refuse(format!("when_unknown {other:?}; expected \"master\" or \"replica\""))),
            },
            seed: None,
        };
        settings.check().map_err(|error| refuse(error.to_string()))?;
        Ok(Markers { settings, regional: Mutex::new(None) })
    }

    /// The client of an engine, without a deadline.
    pub(crate) fn regional(&self, py: Python<'_>, engine: &Arc<Engine>) -> PyResult<RegionalClient> {
        if let Some(regional) = self.regional_of(engine) {
            return Ok(regional);
        }
        // From the operating system: the other generators of a forked child continue as those of its parent do, and two
        // writes must not have one token. Without the lock, as other threads may take the GIL meanwhile.
        let seed: u64 = py.import("secrets")?.call_method1("randbits", (64,))?.extract()?;
        let settings = MarkerSettings { seed: Some(seed), ..self.settings.clone() };
        let client = engine.unlimited_client().client().clone();
        let made = RegionalClient::new(client, engine.routers(), settings)
            .map_err(|error| exception(py, "ConfigurationError", error.to_string()))?;
        if let Some(regional) = self.regional_of(engine) {
            return Ok(regional);
        }
        Ok(self.regional.lock().insert((Arc::downgrade(engine), made)).1.clone())
    }

    fn regional_of(&self, engine: &Arc<Engine>) -> Option<RegionalClient> {
        let regional = self.regional.lock();
        let (of, regional) = regional.as_ref()?;
        (of.as_ptr() == Arc::as_ptr(engine)).then(|| regional.clone())
    }
}

/// The name of a database, as loaders get it.
pub(crate) fn source_name(from: ReadFrom) -> &'static str {
    match from {
        ReadFrom::Master => "master",
        ReadFrom::Replica => "replica",
    }
}

/// The exception for a write that was not begun.
pub(crate) fn mark_error(py: Python<'_>, error: &MarkError) -> PyErr {
    let name = match error {
        MarkError::BadKey(_) | MarkError::KeyTooLong { .. } => "InvalidKeyError",
        MarkError::NotSet { .. } => "MarkerNotSetError",
    };
    exception(py, name, error.to_string())
}

/// A write that has begun.
#[pyclass(frozen, module = "lookaside._lookaside")]
pub(crate) struct WriteCore(pub(crate) RemoteWrite);

#[pymethods]
impl WriteCore {
    /// The keys to name in the transaction.
    #[getter]
    fn keys(&self) -> Vec<String> {
        self.0.keys().map(|key| to_text(key)).collect()
    }

    #[getter]
    fn markers(&self) -> Vec<String> {
        self.0.markers().map(|marker| to_text(marker)).collect()
    }

    /// The keys without a marker, each with the error.
    #[getter]
    fn unmarked<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let unmarked = PyDict::new(py);
        for (key, why) in self.0.unmarked() {
            unmarked.set_item(to_text(key), client_error(py, why).into_value(py))?;
        }
        Ok(unmarked)
    }

    fn sql_comment(&self) -> Option<String> {
        self.0.sql_comment()
    }
}

/// Keys of writes are UTF-8, and markers are these with ASCII around them.
fn to_text(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}
