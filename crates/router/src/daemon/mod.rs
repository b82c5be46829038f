//! The daemon: threads, sockets, signals, configuration.
//!
//! ```text
//!   main thread    signals, replay of the spool, spares, watch of the configuration --- configuration ---.
//!   proxy-0        runtime | acceptor | Proxy | destinations  <------------------------------------------+
//!   proxy-1        runtime | acceptor | Proxy | destinations  <------------------------------------------+
//!   spool          writes and syncs the deletes that servers did not answer
//! ```
//!
//! Threads share a port (SO_REUSEPORT) and, of the state that a request needs, one word per server: whether it is TKO,
//! and whether it is fenced. A new configuration is read and validated once, on the main thread; every thread then
//! builds its own tree from it.

mod etcd_history;
mod etcd_network;
mod log_file;
mod reload;
mod runtime_variables;
mod signals;
mod startup;
mod takeover;

pub use etcd_network::read_source;

use crate::admin::stats_files::StatsFiles;
use crate::cli::{EXIT_USAGE, Options, Validation};
use crate::frontend::listen::{self, Endpoint, ListenAddress, SocketFile};
use crate::frontend::session::ClientSession;
use crate::frontend::users::Users;
use crate::handover::{self, UpgradeListener, WorkerSet};
use crate::resize::driver::Resizer;
use crate::shared::SharedState;
use crate::start_gate::StartGate;
use crate::tls::{self, Certificates};
use lookaside_client::config::ConfigWatcher;
use lookaside_net::TlsMode;
use lookaside_telemetry::{Log, MetricsThread};
use lookaside_upgrade::{Inherited, Successor};
use reload::{ConfigLoader, ReloadHost, reload_loop, reload_users};
use signals::Signals;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;
use takeover::HandoverResult;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

/// The exit code of a router that cannot start now: after a restart it may.
const EXIT_START: u8 = 2;

/// The exit code of a router that cannot go on.
const EXIT_FAILURE: u8 = 1;

/// Runs the daemon until SIGINT or SIGTERM.
pub fn run(options: Options) -> ExitCode {
    // Before this process opens a descriptor that --listen-sock-fd might name.
    let mut inherited = Inherited::from_systemd();
    let adopted = options.listen.adopt_socket(&mut inherited);
    if let Err(why) = options.log_path.as_deref().map_or(Ok(()), log_file::append_log_to) {
        return fail(&why, EXIT_USAGE);
    }
    let log = Log::start_as(Some(&options.name_in_files()), options.log_format, options.verbosity);
    for note in &options.notes {
        tracing::warn!("{note}");
    }
    let loader = match ConfigLoader::new(&options) {
        Ok(loader) => loader,
        Err(why) => return fail(&why, EXIT_USAGE),
    };
    let initial = match loader.load_initial() {
        Ok(initial) => initial,
        Err(why) if options.configuration.validate_config.is_some() => return fail(&why, EXIT_USAGE),
        Err(why) => return fail(&format!("CRITICAL: Failed to initialize mcrouter: {why}"), EXIT_START),
    };
    if options.configuration.validate_config == Some(Validation::Exit) {
        println!("{}: the configuration is good", loader.source());
        return ExitCode::SUCCESS;
    }
    let addresses = adopted.and_then(|adopted| listen_addresses(&options, adopted, loader.certificates()));
    let addresses = match addresses {
        Ok(addresses) => addresses,
        Err(why) => return fail(&why, EXIT_USAGE),
    };
    let daemon = match startup::start(&options, &addresses, inherited, loader, initial, log) {
        Ok(daemon) => daemon,
        Err(why) => return fail(&why, EXIT_START),
    };
    match daemon.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => fail(&why, EXIT_FAILURE),
    }
}

/// The addresses to listen at: that of `adopted`, or else those of the other options.
fn listen_addresses(
    options: &Options,
    adopted: Option<Endpoint>,
    certificates: &Certificates,
) -> Result<Vec<ListenAddress>, String> {
    if let Some(endpoint) = adopted {
        return Ok(vec![ListenAddress { endpoint, tls_mode: TlsMode::Plain }]);
    }
    let tls_mode = if options.tls.ssl_require_peer_certs { TlsMode::MutualTls } else { TlsMode::Tls };
    let addresses = options.listen.listeners(tls_mode)?;
    listen::check_certificates(&addresses, certificates)?;
    Ok(addresses)
}

fn fail(why: &str, code: u8) -> ExitCode {
    eprintln!("lookaside-router: {why}");
    code.into()
}

/// The sessions of each thread.
type Sessions = Vec<Vec<ClientSession>>;

/// A running daemon, as the main thread sees it.
struct Daemon<'a> {
    options: &'a Options,
    /// `None` if clients need not authenticate.
    users: Option<Arc<Users>>,
    loader: ConfigLoader,
    /// The last text of the configuration's source, for its watcher.
    seen: Option<String>,
    shared: Arc<SharedState>,
    resizer: Resizer,
    signals: Signals,
    workers: WorkerSet,
    threads: Vec<JoinHandle<()>>,
    /// Closed when all threads have ended.
    thread_ends: mpsc::Receiver<()>,
    /// `None` without `--upgrade-socket`.
    upgrade_listener: Option<UpgradeListener>,
    socket_files: Vec<SocketFile>,
    /// Serves metrics until it is dropped.
    _metrics: Option<MetricsThread>,
    runtime: Runtime,
}

/// Why the main loop has returned.
enum Exit {
    Shutdown,
    /// Another process is ready to take over.
    Upgrade(Successor),
}

impl Daemon<'_> {
    fn run(mut self) -> Result<(), String> {
        let successor = loop {
            let Some((successor, sessions)) = self.run_until_exit()? else { break None };
            match self.hand_over(successor, sessions)? {
                HandoverResult::TakenOver(successor) => break Some(successor),
                HandoverResult::Stopped => break None,
                HandoverResult::Failed => {
                    tracing::info!("takeover failed; continuing to serve");
                    self.seen = Some(self.resizer.newest_text().to_owned());
                    self.upgrade_listener.iter().for_each(UpgradeListener::resume);
                }
            }
        };
        self.end(successor)
    }

    /// Runs until the daemon is to end (`None`), or until another process is ready to take over and all threads have
    /// suspended their sessions.
    fn run_until_exit(&mut self) -> Result<Option<(Successor, Sessions)>, String> {
        let Daemon { options, users, loader, signals, workers, thread_ends, upgrade_listener, resizer, .. } = self;
        let seen = self.seen.take();
        let stats_files = options.stats_files();
        self.runtime.block_on(async {
            let mut replay = pin!(loader.replay_spool());
            let exit = tokio::select! {
                biased;
                exit = wait_for_exit(users.as_deref(), loader, signals, upgrade_listener.as_mut(), &self.shared, resizer, seen) => exit,
                () = &mut replay => Exit::Shutdown,
                () = write_stats_files(stats_files.as_ref(), &self.shared, loader) => Exit::Shutdown,
            };
            match exit {
                Exit::Shutdown => {
                    // No process may take over from here on, so none may have copies of the sockets.
                    drop(upgrade_listener.take());
                    // While the sockets still accept: the next process must not find the files of one that does not.
                    self.socket_files.clear();
                    workers.shut_down();
                }
                Exit::Upgrade(_) => workers.suspend(),
            }
            // From here on the state on disk is the next process's.
            resizer.suspend();
            // Deletes of batches that have begun may have to be fenced at peers, so the replay continues.
            let stopped = async {
                match exit {
                    Exit::Shutdown => {
                        let _ = thread_ends.recv().await;
                        Ok::<_, String>(None)
                    }
                    Exit::Upgrade(successor) => Ok(Some((successor, workers.suspended_clients().await?))),
                }
            };
            tokio::select! {
                biased;
                stopped = stopped => stopped,
                () = &mut replay => Ok(None),
            }
        })
    }

    /// Ends the threads. If `successor` has taken over, waits until it has announced itself to the supervisor.
    fn end(self, successor: Option<Successor>) -> Result<(), String> {
        drop((self.upgrade_listener, self.workers));
        // Another process listens there now, or may.
        self.socket_files.into_iter().for_each(SocketFile::keep_file);
        let mut result = Ok(());
        for thread in self.threads {
            if thread.join().is_err() {
                result = Err("a thread failed; this is a bug of the router".to_owned());
            }
        }
        // As in the threads: lookups of host names cannot be interrupted.
        self.runtime.shutdown_background();
        if let Some(successor) = successor {
            handover::wait_announced(successor);
        }
        result
    }
}

/// Opens the gate at its bound.
async fn open_start_gate(gate: Option<&StartGate>) {
    if let Some(gate) = gate {
        gate.wait_until_open().await;
    }
    std::future::pending().await
}

/// Writes the files of statistics. Never returns.
async fn write_stats_files(files: Option<&StatsFiles>, shared: &SharedState, loader: &ConfigLoader) {
    let Some(files) = files else { return std::future::pending().await };
    let sources = || {
        let tree = shared.sources().first().map(|source| source.tree());
        tree.and_then(|tree| Some(loader.config_sources(tree.config()?))).unwrap_or_default()
    };
    files.run(shared, sources).await;
}

/// Waits for the signal to end, or for the next process. Reloads configuration and certificates until then.
async fn wait_for_exit(
    users: Option<&Users>,
    loader: &ConfigLoader,
    signals: &mut Signals,
    upgrade_listener: Option<&mut UpgradeListener>,
    shared: &SharedState,
    resizer: &mut Resizer,
    seen: Option<String>,
) -> Exit {
    let watcher = match loader.is_reloading() {
        true => ConfigWatcher::open(loader.source(), loader.etcd(), seen.as_deref()),
        false => ConfigWatcher::never(),
    };
    let host = ReloadHost { loader, shared };
    let successor = async {
        match upgrade_listener {
            Some(listener) => listener.successor().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        _ = signals.interrupt.recv() => tracing::info!("SIGINT: shutting down"),
        _ = signals.terminate.recv() => tracing::info!("SIGTERM: shutting down"),
        successor = successor => return Exit::Upgrade(successor),
        () = tls::reload_loop(loader.certificates(), &mut signals.hangup_certificates) => {}
        () = reload_users(users, &mut signals.hangup_users) => {}
        () = reload_loop(&host, watcher, &mut signals.hangup_config, resizer) => {}
        () = loader.spares().run(loader.network()) => {}
        () = open_start_gate(loader.start_gate.as_deref()) => {}
        () = loader.runtime_variables.follow() => {}
    }
    Exit::Shutdown
}
