//! A runtime, and the Rust client on it. Serves every call.
//!
//! A reply is read from a socket by whichever thread drives the runtime. Waking another thread costs more than the
//! rest of a get, so there are two ways:
//!
//! ```text
//!  Driving::Callers   a thread that waits for its reply drives the runtime, for itself and for all others that wait
//!                     meanwhile; so a call needs no other thread:
//!
//!       get -> block_on: write to the socket, epoll_wait, read, parse -> value
//!
//!                     A keeper thread drives it for a moment every KEEPER_INTERVAL, so that timers (probes, read
//!                     permits) and requests that no caller waits for (released leases) proceed between calls.
//!
//!  Driving::Thread    the engine's own thread drives the runtime; callers only send to it (AsyncClient).
//! ```
//!
//! Between calls a reply or a timer may thus be handled up to KEEPER_INTERVAL late. That is short against the time for
//! which a read permit is renewed ahead of its end.

use crate::direct_options::DirectSettings;
use crate::error::exception;
use crate::options::Settings;
use crate::waiting::wait;
use bytes::Bytes;
use lookaside_client::{
    Client, CommandConnection, CommandError, DestinationOptions, DirectError, DirectRoute, Routers, TypedClient,
    WindowSettings, WindowStatistics,
};
use lookaside_protocol::text::Limits;
use lookaside_protocol::{Operation, Request};
use lookaside_routing::{Address, Outcome, Route};
use pyo3::prelude::*;
use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use tokio::task::yield_now;

/// How long the keeper waits before it drives the runtime again.
const KEEPER_INTERVAL: Duration = Duration::from_millis(10);
/// How often the runtime looks for events while the keeper drives it: what one turn makes ready, the next one handles.
const KEEPER_TURNS: usize = 3;

/// Why a client without routers has none.
pub(crate) const NO_ROUTERS_READ: &str = "the configuration that names the routers has not been read";

/// Which thread drives the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driving {
    Callers,
    Thread,
}

/// Dropped, it ends its thread and its connections.
pub(crate) struct Engine {
    /// `None` once it is being dropped.
    runtime: Option<Arc<Runtime>>,
    /// Without a deadline.
    client: TypedClient,
    /// With the default deadline.
    limited: TypedClient,
    routers: Arc<Routers>,
    /// `None` if all requests go through the routers.
    direct: Option<Arc<DirectRoute>>,
    driving: Driving,
    _stop: StopSender,
}

/// Dropped, it ends the engine's thread.
enum StopSender {
    Keeper { _sender: mpsc::Sender<()> },
    Driver { _sender: oneshot::Sender<()> },
}

impl Engine {
    /// Connects, and starts the engine's thread. Waits while a configuration is read, if the engine needs it. If it
    /// does not, and that names the routers, they are `first_routers` until then.
    pub(crate) fn start(
        py: Python<'_>,
        settings: &Settings,
        first_routers: Vec<Address>,
        driving: Driving,
        needs_configuration: bool,
    ) -> PyResult<Engine> {
        let runtime = Arc::new(Builder::new_current_thread().enable_all().build()?);
        let connected = wait(py, &runtime, connect(settings, first_routers, needs_configuration))
            .and_then(|connected| connected.map_err(|error| exception(py, "ConfigurationError", error.to_string())));
        let (routers, direct) = match connected {
            Ok(connected) => connected,
            Err(error) => {
                end(runtime);
                return Err(error);
            }
        };
        let route: Arc<dyn Route> = match &direct {
            Some(direct) => direct.clone(),
            None => routers.clone(),
        };
        let client = Client::new(route);
        let client = match (&settings.direct.hedging, &direct) {
            (Some(hedging), Some(direct)) => {
                client.with_hedging(direct.replicas(hedging.replicas.clone()), hedging.settings)
            }
            _ => client,
        };
        let client = match driving {
            Driving::Callers => client,
            Driving::Thread => client.with_batching(),
        };
        let limited = TypedClient::new(client.clone().with_deadline(settings.timeout), settings.codec);
        let client = TypedClient::new(client, settings.codec);
        let stop = start_thread(runtime.clone(), driving)?;
        Ok(Engine { runtime: Some(runtime), client, limited, routers, direct, driving, _stop: stop })
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it is not being dropped")
    }

    /// Waits for a call, without the GIL. Must not be called inside of the runtime.
    pub(crate) fn wait<T: Send>(&self, py: Python<'_>, call: impl Future<Output = T> + Send) -> PyResult<T> {
        wait(py, self.runtime(), call)
    }

    /// The runtime, for tasks.
    pub(crate) fn handle(&self) -> &Handle {
        self.runtime().handle()
    }

    /// The client with the default deadline.
    pub(crate) fn limited_client(&self) -> &TypedClient {
        &self.limited
    }

    /// The client without a deadline.
    pub(crate) fn unlimited_client(&self) -> &TypedClient {
        &self.client
    }

    /// Its routers: markers are never read from servers directly, where a lost datagram is a miss.
    pub(crate) fn routers(&self) -> Arc<Routers> {
        self.routers.clone()
    }

    /// Whether its client sends the lookups of one turn of the runtime as one batch.
    pub(crate) fn is_batching(&self) -> bool {
        self.driving == Driving::Thread
    }

    /// What a router answers to a get of `key`, which may be one of its admin keys.
    pub(crate) async fn ask_router(&self, key: Bytes) -> Outcome {
        let request = Request { key, operation: Operation::Get { cas: false } };
        let mut outcomes = self.routers.route(vec![request], &Default::default()).await;
        outcomes.pop().expect("one outcome per request")
    }

    /// Empties all servers of the cluster, by the first router that can be connected to.
    /// An error is that of the last router that was asked; of none if the client knows none yet.
    pub(crate) async fn flush_all(
        &self,
        settings: &Settings,
        timeout: Duration,
    ) -> Result<(), (Option<Address>, CommandError)> {
        let limits = Limits { value_bytes_max: 0, line_bytes_max: 512 };
        let mut failure = None;
        for router in &self.routers.addresses() {
            match CommandConnection::connect(&*settings.networks.routers, router, limits, timeout).await {
                Ok(mut connection) => {
                    return connection.flush_all(None).await.map_err(|error| (Some(router.clone()), error));
                }
                Err(error) => failure = Some((Some(router.clone()), error)),
            }
        }
        Err(failure
            .unwrap_or_else(|| (None, CommandError::Connect(io::Error::new(io::ErrorKind::NotFound, NO_ROUTERS_READ)))))
    }

    /// Each counter of how reads reach servers, with its name, whether they go there now, and the state of the window.
    pub(crate) fn direct_statistics(&self) -> Vec<(String, u64)> {
        let mut counters = Vec::new();
        if let Some(direct) = &self.direct {
            counters.extend(direct.statistics().named().map(|(name, value)| (format!("direct.{name}"), value)));
            counters.push(("direct.is_permitted".to_owned(), u64::from(direct.is_permitted())));
            if let Some(udp) = direct.udp_statistics() {
                counters.extend(udp.named().map(|(name, value)| (format!("udp.{name}"), value)));
            }
            if let Some(WindowStatistics { size, outstanding, waiting }) = direct.window_statistics() {
                let named = [("size", size), ("outstanding", outstanding), ("waiting", waiting)];
                counters.extend(named.map(|(name, value)| (format!("window.{name}"), value as u64)));
            }
        }
        counters
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.runtime.take().into_iter().for_each(end);
    }
}

async fn connect(
    settings: &Settings,
    first_routers: Vec<Address>,
    needs_configuration: bool,
) -> Result<(Arc<Routers>, Option<Arc<DirectRoute>>), DirectError> {
    // A router that hangs leaves time for the next one.
    let server_timeout_ms = (settings.timeout.as_millis() as u64 / 2).max(1);
    // Nor may a server of a direct client use up the time for those that answer, and for the gutter: waiting for the
    // window, connecting and replying get a third each.
    let timeout_ms_max = (settings.timeout.as_millis() as u64 / 3).max(1);
    let options =
        DestinationOptions { server_timeout_ms, timeout_ms_max, seed: seed(), ..DestinationOptions::default() };
    let (networks, routers) = (&settings.networks, settings.routers.iter().cloned());
    let direct = match &settings.source {
        None => {
            let routers = Routers::new(routers, networks.routers.clone(), &options);
            return Ok((Arc::new(routers), None));
        }
        Some(source) => {
            let builder = DirectRoute::builder(source.clone(), routers).network(networks.servers.clone());
            let builder = builder.routers_network(networks.routers.clone()).first_routers(first_routers);
            let DirectSettings { defaults, udp, window, updates_directly, hedging: _ } = &settings.direct;
            let window = window.map(|window| {
                let wait_ms_max = window.wait_ms_max.min(timeout_ms_max);
                WindowSettings { wait_ms_max, ..window }
            });
            let builder = builder.window(window).defaults(defaults.clone());
            let builder = match *udp {
                Some(udp) => builder.udp(udp),
                None => builder,
            };
            let builder = if *updates_directly { builder.send_updates_directly() } else { builder };
            let builder = if needs_configuration { builder } else { builder.configuration_may_follow() };
            builder.destination_options(options).build().await?
        }
    };
    Ok((direct.routers(), Some(direct)))
}

/// Processes that start together should not probe together.
fn seed() -> u64 {
    u64::from(std::process::id())
}

fn start_thread(runtime: Arc<Runtime>, driving: Driving) -> io::Result<StopSender> {
    let thread = std::thread::Builder::new().name("lookaside".to_owned());
    match driving {
        Driving::Callers => {
            let (sender, stopped) = mpsc::channel();
            thread.spawn(move || keep_running(runtime, &stopped))?;
            Ok(StopSender::Keeper { _sender: sender })
        }
        Driving::Thread => {
            let (sender, stopped) = oneshot::channel::<()>();
            thread.spawn(move || {
                let _ = runtime.block_on(stopped);
                end(runtime);
            })?;
            Ok(StopSender::Driver { _sender: sender })
        }
    }
}

fn keep_running(runtime: Arc<Runtime>, stopped: &mpsc::Receiver<()>) {
    while stopped.recv_timeout(KEEPER_INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
        // If a caller drives the runtime, this is ready without doing anything.
        runtime.block_on(async {
            for _ in 0..KEEPER_TURNS {
                yield_now().await;
            }
        });
    }
    end(runtime);
}

/// Ends the runtime if this is its last owner. A plain drop would wait for a lookup of a host name.
fn end(runtime: Arc<Runtime>) {
    if let Some(runtime) = Arc::into_inner(runtime) {
        runtime.shutdown_background();
    }
}
