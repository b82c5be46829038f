//! The programs of all hosts: starts them, kills them, lets them hang.

use super::SimulatedRegion;
use crate::process::Process;
use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    time::Duration,
};
use tokio::task::JoinHandle;

#[derive(Default)]
pub(super) struct Programs {
    running: BTreeMap<String, Program>,
    /// Hosts whose program a fault stops at present. No second fault stops it.
    faulty: BTreeSet<String>,
}

struct Program {
    task: JoinHandle<()>,
    process: Process,
}

impl SimulatedRegion {
    /// Runs `program`, whose sockets are those of `process`, on `host`, which runs no other.
    pub(super) fn start(&self, host: &str, process: Process, program: impl Future<Output = ()> + 'static) {
        let task = tokio::task::spawn_local(program);
        self.programs.borrow_mut().running.insert(host.to_owned(), Program { task, process });
    }

    /// Kills the program of `host` at an await point, and resets all of its connections.
    pub(super) async fn kill(&self, host: &str) {
        self.network.kill(host);
        let running = self.programs.borrow_mut().running.remove(host);
        if let Some(Program { task, process }) = running {
            // Tasks that it leaves behind connect to nothing.
            process.hang();
            task.abort();
            // Its resources are released when it has been dropped.
            let _ = task.await;
        }
    }

    /// Waits until the program of `host` has ended by itself.
    pub(super) async fn wait_for_end(&self, host: &str) {
        let running = self.programs.borrow_mut().running.remove(host);
        if let Some(Program { task, .. }) = running {
            let _ = task.await;
        }
    }

    /// The program of `host` hangs for `duration`, and then goes on where it was.
    pub(super) async fn hang(&self, host: &str, duration: Duration) {
        let process = self.programs.borrow().running.get(host).map(|program| program.process.clone());
        let Some(process) = process else { return };
        process.hang();
        tokio::time::sleep(duration).await;
        process.resume();
    }

    /// Reserves `host` for a fault of its program. False if another fault has it.
    pub(super) fn begin_fault(&self, host: &str) -> bool {
        self.programs.borrow_mut().faulty.insert(host.to_owned())
    }

    pub(super) fn end_fault(&self, host: &str) {
        self.programs.borrow_mut().faulty.remove(host);
    }
}
