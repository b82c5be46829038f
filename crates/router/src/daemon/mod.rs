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

mod etcd_network;
mod reload;
mod signals;
mod startup;
mod takeover;

pub use etcd_network::read_source;

use crate::admin::metrics_endpoint::MetricsThread;
use crate::cli::Options;
use crate::frontend::listen::{self, ListenAddress, SocketFile};
use crate::frontend::session::ClientSession;
use crate::frontend::users::Users;
use crate::handover::{self, UpgradeListener, WorkerSet};
use crate::resize::driver::Resizer;
use crate::shared::SharedState;
use crate::start_gate::StartGate;
use crate::tls::{self, Certificates};
use lookaside_client::config::ConfigWatcher;
use lookaside_net::TlsMode;
use lookaside_telemetry::Log;
use lookaside_upgrade::Successor;
use reload::{ConfigLoader, ReloadHost, reload_loop, reload_users};
use signals::Signals;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;
use takeover::HandoverResult;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

/// The exit code for a command line or a configuration that cannot be used.
const EXIT_USAGE: u8 = 2;

/// Runs the daemon until SIGINT or SIGTERM.
pub fn run(options: Options) -> ExitCode {
    let log = Log::start(options.log_format, options.verbose.into());
    for warning in options.ignored.warnings() {
        tracing::warn!("{warning}");
    }
    let loader = match ConfigLoader::new(&options) {
        Ok(loader) => loader,
        Err(why) => return fail(&why, EXIT_USAGE),
    };
    let initial = match loader.load_initial() {
        Ok(initial) => initial,
        Err(why) => return fail(&why, loader.exit_code()),
    };
    if options.validate_config {
        println!("{}: the configuration is good", loader.source());
        return ExitCode::SUCCESS;
    }
    let addresses = match listen_addresses(&options, loader.certificates()) {
        Ok(addresses) => addresses,
        Err(why) => return fail(&why, EXIT_USAGE),
    };
    match startup::start(&options, &addresses, loader, initial, log).and_then(Daemon::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => fail(&why, 1),
    }
}

fn listen_addresses(options: &Options, certificates: &Certificates) -> Result<Vec<ListenAddress>, String> {
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
        let Daemon { users, loader, signals, workers, thread_ends, upgrade_listener, resizer, .. } = self;
        let seen = self.seen.take();
        self.runtime.block_on(async {
            let mut replay = pin!(loader.replay_spool());
            let exit = tokio::select! {
                biased;
                exit = wait_for_exit(users.as_deref(), loader, signals, upgrade_listener.as_mut(), &self.shared, resizer, seen) => exit,
                () = &mut replay => Exit::Shutdown,
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
    let watcher = ConfigWatcher::open(loader.source(), loader.etcd(), seen.as_deref());
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
    }
    Exit::Shutdown
}
