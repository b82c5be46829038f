//! Waits for the next process at `--upgrade-socket`, in a thread of its own: what comes there is spoken with as it comes, and
//! the threads that serve notice nothing of it.

use super::PROGRAM;
use crate::frontend::listen::BoundListener;
use crate::{Options, admin::metrics_endpoint as metrics};
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

/// How often who says nothing is looked at.
const TICK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The gate, open, with nobody at it.
pub(crate) struct Closed {
    gate: UpgradeSocket,
    doors: Vec<OwnedFd>,
}

/// The thread at the gate. It ends when this is dropped.
pub(crate) struct Gatehouse {
    successors: UnboundedReceiver<Successor>,
    /// Tells the thread that the last one has not taken over.
    again: Option<mpsc::Sender<()>>,
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Closed {
    /// Opens the gate at `path`; `doors` are all that this process listens on.
    pub(crate) fn open(path: &Path, doors: Vec<OwnedFd>, inherited: &mut Inherited) -> Result<Closed, String> {
        let gate = UpgradeSocket::open(PROGRAM, path, inherited).map_err(|error| format!("{error:#}"))?;
        Ok(Closed { gate, doors })
    }

    /// What this process listens on has become something else.
    pub(crate) fn renew(
        &mut self,
        doors: &[BoundListener],
        metrics: Option<&metrics::BoundEndpoint>,
    ) -> Result<(), String> {
        self.doors = copies(doors, metrics)?;
        Ok(())
    }

    /// Hears who comes, from now on: this process serves.
    pub(crate) fn attend(self) -> Result<Gatehouse, String> {
        let Closed { gate, doors } = self;
        let (stop, stopped) = UnixStream::pair().map_err(|error| format!("the system gives no sockets: {error}"))?;
        let (tell, successors) = unbounded_channel();
        let (again, resumed) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("upgrade".to_owned())
            .spawn(move || keep(&gate, &doors, &tell, &resumed, &stopped))
            .map_err(|error| format!("the system gives no thread: {error}"))?;
        Ok(Gatehouse { successors, again: Some(again), stop, thread: Some(thread) })
    }
}

impl Gatehouse {
    /// The next process, once it has prepared itself.
    pub(crate) async fn successor(&mut self) -> Successor {
        match self.successors.recv().await {
            Some(successor) => successor,
            // The thread has failed: then there is no upgrade.
            None => std::future::pending().await,
        }
    }

    /// The last one has not taken over: hears the next.
    pub(crate) fn hear_again(&self) {
        let _ = self.again.as_ref().map(|again| again.send(()));
    }
}

impl Drop for Gatehouse {
    fn drop(&mut self) {
        self.again = None;
        let _ = self.stop.write_all(b"s");
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The gate at which the next process takes over, with nobody at it.
pub(crate) fn open_gate(
    options: &Options,
    doors: &[BoundListener],
    metrics: Option<&metrics::BoundEndpoint>,
    inherited: &mut Inherited,
) -> Result<Option<Closed>, String> {
    let Some(path) = &options.upgrade_socket else { return Ok(None) };
    Closed::open(path, copies(doors, metrics)?, inherited).map(Some)
}

/// Copies of all that this process listens on.
fn copies(doors: &[BoundListener], metrics: Option<&metrics::BoundEndpoint>) -> Result<Vec<OwnedFd>, String> {
    let mut copies = Vec::new();
    let copied = doors.iter().try_for_each(|door| {
        copies.extend(door.duplicate_fds()?);
        Ok::<_, io::Error>(())
    });
    let copied = copied.and_then(|()| metrics.map_or(Ok(()), |port| port.duplicate_fd().map(|copy| copies.push(copy))));
    copied.map_err(|error| format!("the system gives no copies of sockets: {error}"))?;
    Ok(copies)
}

fn keep(
    gate: &UpgradeSocket,
    doors: &[OwnedFd],
    successors: &UnboundedSender<Successor>,
    resumed: &mpsc::Receiver<()>,
    stopped: &UnixStream,
) {
    let began = Instant::now();
    let mut keeper = UpgradeServer::new(gate, doors.iter().map(|door| door.as_fd()));
    loop {
        let mut watched = vec![PollFd::new(stopped, PollFlags::IN)];
        watched.extend(keeper.watched());
        // An error is an interruption, and a deadline is looked at all the same.
        let _ = poll(&mut watched, Some(&TICK));
        if !watched[0].revents().is_empty() {
            return;
        }
        drop(watched);
        let now_ms = began.elapsed().as_millis() as u64;
        // Nothing has to be prepared here: batches in hand are answered in the moment itself.
        let Some(successor) = keeper.attend(now_ms, |_| None) else { continue };
        if successors.send(successor).is_err() || resumed.recv().is_err() {
            return;
        }
    }
}
