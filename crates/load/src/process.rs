//! The processor time of a process, as the kernel counts it in nanoseconds: of all threads, ended ones included.

use crate::error::LoadError;
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;
use std::io;

/// The largest process id of Linux.
const PID_MAX: i32 = 1 << 22;

/// A process whose processor time is measured.
#[derive(Clone, Copy, Debug)]
pub struct MeasuredProcess {
    pid: u32,
    clock: ClockId,
}

impl MeasuredProcess {
    /// The process with this id.
    pub fn new(pid: u32) -> Result<MeasuredProcess, LoadError> {
        let fail = |source: io::Error| LoadError::Process { pid, source };
        // 0 stands for the caller. Far beyond the largest id, the clock's id would be another clock's.
        let raw = i32::try_from(pid).ok().filter(|raw| (1..=PID_MAX).contains(raw));
        let raw = raw.ok_or_else(|| fail(io::ErrorKind::InvalidInput.into()))?;
        let clock = clock_getcpuclockid(Pid::from_raw(raw)).map_err(|error| fail(error.into()))?;
        Ok(MeasuredProcess { pid, clock })
    }

    /// This process.
    pub fn this() -> Result<MeasuredProcess, LoadError> {
        MeasuredProcess::new(std::process::id())
    }

    /// The processor time since it started, in nanoseconds.
    pub fn cpu_ns(&self) -> Result<u64, LoadError> {
        let time = self.clock.now().map_err(|error| LoadError::Process { pid: self.pid, source: error.into() })?;
        Ok(time.tv_sec().unsigned_abs() * 1_000_000_000 + time.tv_nsec().unsigned_abs())
    }

    /// The resident memory, in bytes; `None` if the process has ended.
    pub fn resident_bytes(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1_024)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::time::{ClockId, clock_gettime};

    fn thread_ns() -> u64 {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }

    #[test]
    fn time_of_an_ended_thread_is_counted() {
        const BURNT_NS: u64 = 30_000_000;
        let process = MeasuredProcess::this().unwrap();
        let before = process.cpu_ns().unwrap();
        std::thread::spawn(|| while thread_ns() < BURNT_NS {}).join().unwrap();
        assert!(process.cpu_ns().unwrap() - before >= BURNT_NS);
        assert!(process.resident_bytes().unwrap() > 1 << 16);
    }

    #[test]
    fn missing_process_is_an_error() {
        for pid in [0, u32::MAX, i32::MAX as u32] {
            let error = MeasuredProcess::new(pid).unwrap_err().to_string();
            assert!(error.contains(&format!("process {pid}")), "{error}");
        }
    }
}
