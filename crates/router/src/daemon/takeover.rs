//! Hands the running daemon over to another process.

use super::reload::ReloadHost;
use super::startup::open_spool;
use super::{Daemon, Sessions};
use crate::cli::Options;
use crate::config::router_config::RouterConfig;
use crate::handover::{self, HandoverOutcome, ProgramState};
use crate::shared::SharedState;
use crate::spool::Spool;
use lookaside_upgrade::Successor;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The limit on reopening the spool after a failed takeover, and the interval between attempts.
const REOPEN_MAX: Duration = Duration::from_secs(5);
const REOPEN_RETRY: Duration = Duration::from_millis(5);

pub(super) enum HandoverResult {
    /// The other process serves.
    TakenOver(Successor),
    /// The other process has gone, and this one serves again.
    Failed,
    /// A signal has stopped this process meanwhile.
    Stopped,
}

impl Daemon<'_> {
    /// Hands over the suspended sessions, closes the spool, and lets `successor` serve. An error means that neither
    /// process can serve.
    pub(super) fn hand_over(&mut self, successor: Successor, sessions: Sessions) -> Result<HandoverResult, String> {
        let Daemon { options, loader, shared, resizer, signals, workers, .. } = self;
        self.runtime.block_on(async {
            let pid = successor.pid();
            let connections = sessions.iter().map(Vec::len).sum::<usize>();
            tracing::info!("handing over {connections} connections to process {pid}");
            let is_sent = handover::send_clients(&successor, &sessions);
            if let Some(spool) = &loader.spool {
                // It is opened again, here or there.
                spool.close().await?;
            }
            let start_gate = loader.start_gate.as_ref().map_or_else(Vec::new, |gate| gate.to_saved());
            let state = ProgramState { coverage: resizer.saved_digest(), start_gate };
            let left = match is_sent {
                true => handover::complete(successor, loader.spool.is_some(), state, signals.stop()).await?,
                false => HandoverOutcome::Failed,
            };
            match left {
                HandoverOutcome::TakenOver(successor) => {
                    tracing::info!("process {pid} has taken over");
                    workers.exit(sessions);
                    Ok(HandoverResult::TakenOver(successor))
                }
                HandoverOutcome::Stopped => Ok(HandoverResult::Stopped),
                HandoverOutcome::Failed => {
                    if let Some(closed) = loader.spool.take() {
                        let active = resizer.active();
                        loader.spool = reopen_spool(options, &active.reads, shared).await?;
                        loader.spool.iter().for_each(|spool| spool.adopt_fences(&closed));
                        loader.spool.iter().for_each(|spool| spool.mark_unconfigured_for_flush(&active.servers()));
                        resizer.replace_configs(|config| config.with_spool(loader.spool.clone()));
                    }
                    resizer.save_again(&ReloadHost { loader, shared });
                    workers.resume(sessions);
                    Ok(HandoverResult::Failed)
                }
            }
        })
    }
}

/// Opens the spool again once the process that failed to take over has released its lock by exiting.
async fn reopen_spool(
    options: &Options,
    config: &RouterConfig,
    shared: &SharedState,
) -> Result<Option<Arc<Spool>>, String> {
    let deadline = Instant::now() + REOPEN_MAX;
    loop {
        match open_spool(options, config, shared) {
            Err(why) if Instant::now() < deadline => {
                tracing::debug!("cannot reopen the spool yet: {why}");
                sleep(REOPEN_RETRY).await;
            }
            // Another router may have the deletes by now, and acknowledge further ones: this one must not read.
            Err(why) => {
                return Err(format!(
                    "cannot open the spool again after a failed takeover: {why}; ending, because servers must not be \
                     read without its deletes (start the router again)"
                ));
            }
            opened => return opened,
        }
    }
}
