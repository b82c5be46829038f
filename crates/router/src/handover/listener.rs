//! Waits for the next process at `--upgrade-socket`, in a thread of its own, so that the threads that serve clients
//! are not disturbed.

use super::PROGRAM;
use crate::admin::metrics_endpoint::BoundEndpoint;
use crate::cli::Options;
use crate::frontend::listen::BoundListener;
use lookaside_upgrade::{Inherited, Successor, UpgradeServer, UpgradeSocket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Instant;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// How often the deadline of a silent candidate is checked.
const TICK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The bound upgrade socket, which is not served yet.
pub(crate) struct BoundUpgradeSocket {
    socket: UpgradeSocket,
    listeners: Vec<OwnedFd>,
}

/// The thread that serves the upgrade socket. It ends when this is dropped.
pub(crate) struct UpgradeListener {
    successors: UnboundedReceiver<Successor>,
    /// Signals that the last successor has not taken over.
    resume: Option<mpsc::Sender<()>>,
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl BoundUpgradeSocket {
    /// Binds `path`. `listeners` are all sockets that this process listens on.
    fn bind(path: &Path, listeners: Vec<OwnedFd>, inherited: &mut Inherited) -> Result<BoundUpgradeSocket, String> {
        let socket = UpgradeSocket::open(PROGRAM, path, inherited).map_err(|error| format!("{error:#}"))?;
        Ok(BoundUpgradeSocket { socket, listeners })
    }

    pub(crate) fn set_listeners(
        &mut self,
        listeners: &[BoundListener],
        metrics: Option<&BoundEndpoint>,
    ) -> Result<(), String> {
        self.listeners = duplicate_listeners(listeners, metrics)?;
        Ok(())
    }

    /// Starts to serve candidates. This process must serve clients by now.
    pub(crate) fn serve(self) -> Result<UpgradeListener, String> {
        let BoundUpgradeSocket { socket, listeners } = self;
        let (stop, stopped) = UnixStream::pair().map_err(|error| format!("cannot create a socket pair: {error}"))?;
        let (successors_in, successors) = unbounded_channel();
        let (resume, resumed) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("upgrade".to_owned())
            .spawn(move || run(&socket, &listeners, &successors_in, &resumed, &stopped))
            .map_err(|error| format!("cannot create a thread: {error}"))?;
        Ok(UpgradeListener { successors, resume: Some(resume), stop, thread: Some(thread) })
    }
}

impl UpgradeListener {
    /// The next process, when it is ready to take over.
    pub(crate) async fn successor(&mut self) -> Successor {
        match self.successors.recv().await {
            Some(successor) => successor,
            // The thread has failed, so no upgrade is possible.
            None => std::future::pending().await,
        }
    }

    /// Serves further candidates, after the last one has not taken over.
    pub(crate) fn resume(&self) {
        let _ = self.resume.as_ref().map(|resume| resume.send(()));
    }
}

impl Drop for UpgradeListener {
    fn drop(&mut self) {
        self.resume = None;
        let _ = self.stop.write_all(b"s");
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Binds `--upgrade-socket`. `None` if the option is not set.
pub(crate) fn bind_upgrade_socket(
    options: &Options,
    listeners: &[BoundListener],
    metrics: Option<&BoundEndpoint>,
    inherited: &mut Inherited,
) -> Result<Option<BoundUpgradeSocket>, String> {
    let Some(path) = &options.upgrade_socket else { return Ok(None) };
    BoundUpgradeSocket::bind(path, duplicate_listeners(listeners, metrics)?, inherited).map(Some)
}

fn duplicate_listeners(listeners: &[BoundListener], metrics: Option<&BoundEndpoint>) -> Result<Vec<OwnedFd>, String> {
    let mut copies = Vec::new();
    let copied = listeners.iter().try_for_each(|listener| {
        copies.extend(listener.duplicate_fds()?);
        Ok::<_, io::Error>(())
    });
    let copied = copied.and_then(|()| metrics.map_or(Ok(()), |port| port.duplicate_fd().map(|copy| copies.push(copy))));
    copied.map_err(|error| format!("cannot duplicate listening sockets: {error}"))?;
    Ok(copies)
}

fn run(
    socket: &UpgradeSocket,
    listeners: &[OwnedFd],
    successors: &UnboundedSender<Successor>,
    resumed: &mpsc::Receiver<()>,
    stopped: &UnixStream,
) {
    let started_at = Instant::now();
    let mut server = UpgradeServer::new(socket, listeners.iter().map(|listener| listener.as_fd()));
    loop {
        let mut watched = vec![PollFd::new(stopped, PollFlags::IN)];
        watched.extend(server.poll_fds());
        // An error is an interruption; deadlines are checked all the same.
        let _ = poll(&mut watched, Some(&TICK));
        if !watched[0].revents().is_empty() {
            return;
        }
        drop(watched);
        let now_ms = started_at.elapsed().as_millis() as u64;
        // A router prepares nothing: batches in progress are answered during the handover itself.
        let Some(successor) = server.handle_ready(now_ms, |_| None) else { continue };
        if successors.send(successor).is_err() || resumed.recv().is_err() {
            return;
        }
    }
}
