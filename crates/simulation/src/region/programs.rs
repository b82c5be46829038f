//! The programs of all hosts: starts them, kills them, lets them hang.

use crate::{network::SimulatedNetwork, process::Process};
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    future::Future,
    time::Duration,
};
use tokio::task::JoinHandle;

pub(crate) struct Programs {
    network: SimulatedNetwork,
    running: RefCell<BTreeMap<String, Program>>,
    /// Hosts whose program a fault stops at present. No second fault stops it.
    faulty: RefCell<BTreeSet<String>>,
}

struct Program {
    task: JoinHandle<()>,
    process: Process,
}

impl Programs {
    pub(super) fn new(network: SimulatedNetwork) -> Programs {
        Programs { network, running: RefCell::default(), faulty: RefCell::default() }
    }

    /// Runs `program`, as a task of `process`, on `host`, which runs no other.
    pub(crate) fn start(&self, host: &str, process: Process, program: impl Future<Output = ()> + 'static) {
        let task = tokio::task::spawn_local(process.task(program));
        let before = self.running.borrow_mut().insert(host.to_owned(), Program { task, process });
        assert!(before.is_none(), "{host} runs one program at a time");
    }

    /// Kills the program of `host` at an await point, and resets all of its connections.
    pub(crate) async fn kill(&self, host: &str) {
        self.network.kill(host);
        if let Some(Program { task, process }) = self.take(host) {
            // Tasks that it leaves behind do nothing any more.
            process.hang();
            task.abort();
            // Its resources are released when it has been dropped.
            let _ = task.await;
        }
    }

    /// Waits until the program of `host` has ended by itself.
    pub(super) async fn wait_for_end(&self, host: &str) {
        if let Some(Program { task, .. }) = self.take(host) {
            let _ = task.await;
        }
    }

    /// The program of `host` hangs for `duration`, and then resumes.
    pub(super) async fn hang(&self, host: &str, duration: Duration) {
        let process = self.running.borrow().get(host).map(|program| program.process.clone());
        let Some(process) = process else { return };
        process.hang();
        tokio::time::sleep(duration).await;
        process.resume();
    }

    /// Reserves `host` for a fault of its program. False if another fault has it.
    pub(super) fn begin_fault(&self, host: &str) -> bool {
        self.faulty.borrow_mut().insert(host.to_owned())
    }

    pub(super) fn end_fault(&self, host: &str) {
        self.faulty.borrow_mut().remove(host);
    }

    fn take(&self, host: &str) -> Option<Program> {
        self.running.borrow_mut().remove(host)
    }
}
