//! The processes of a region: starts them, restarts them when they die, and always stops them.

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::{
    fs::File,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

/// How long a process stays down after it died, so that the effect of the gutter can be observed.
const RESTART_DELAY: Duration = Duration::from_secs(5);

/// A program, and how to run it.
#[derive(Clone, Debug)]
pub struct ProcessSpec {
    /// Its file.
    pub path: PathBuf,
    /// What follows its name.
    pub arguments: Vec<String>,
    /// Variables besides those of this process. Secrets are passed here: only the same user can read them.
    pub environment: Vec<(&'static str, String)>,
    /// The signal that asks it to exit. Default SIGTERM.
    pub stop_signal: Signal,
    /// How long it may take to exit then, before it is killed. Default 5 s.
    pub stop_time_max: Duration,
    /// The account to run it as; `None` (the default) for that of this process.
    pub account: Option<Account>,
}

/// An account of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Account {
    /// The user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

impl Account {
    /// Finds an account in /etc/passwd.
    pub fn find(name: &str) -> Result<Account> {
        let accounts = std::fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
        let parse = |line: &str| {
            let mut fields = line.split(':');
            let is_it = fields.next() == Some(name);
            let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
            is_it.then_some(Account { uid, gid })
        };
        accounts.lines().find_map(parse).with_context(|| format!("this machine has no account {name}"))
    }
}

impl ProcessSpec {
    /// The program in that file.
    pub fn new(path: PathBuf, arguments: Vec<String>) -> ProcessSpec {
        let (stop_signal, stop_time_max) = (Signal::TERM, Duration::from_secs(5));
        ProcessSpec { path, arguments, environment: Vec::new(), stop_signal, stop_time_max, account: None }
    }

    /// One of ours, from the directory of this program.
    pub fn sibling(name: &str, arguments: Vec<String>) -> Result<ProcessSpec> {
        let own = std::env::current_exe().context("cannot determine the path of this program")?;
        let path = own.with_file_name(name);
        if !path.is_file() {
            bail!("{} is missing: build or install all of Lookaside's programs into one directory", path.display());
        }
        Ok(ProcessSpec::new(path, arguments))
    }
}

/// One process of a region. Dropping it stops it.
pub struct Process {
    /// Its name in messages and of its log file.
    pub name: String,
    program: ProcessSpec,
    log_path: PathBuf,
    running: Option<Child>,
    died_at: Option<Instant>,
}

impl Process {
    /// Starts a program; its log goes to `log_dir/name.log`.
    pub fn start(name: &str, program: ProcessSpec, log_dir: &Path) -> Result<Process> {
        let log_path = log_dir.join(format!("{name}.log"));
        let mut process = Process { name: name.to_owned(), program, log_path, running: None, died_at: None };
        process.spawn()?;
        Ok(process)
    }

    fn spawn(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(&self.log_path);
        let log = log.with_context(|| format!("cannot write {}", self.log_path.display()))?;
        let ProcessSpec { path, arguments, environment, stop_signal, account, .. } = &self.program;
        let mut command = Command::new(path);
        command
            .args(arguments)
            .envs(environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        if let Some(Account { uid, gid }) = account {
            // It need not be able to read the directory of this process.
            command.uid(*uid).gid(*gid).current_dir("/");
        }
        parent_death::send_signal(&mut command, *stop_signal);
        let child = command.spawn().with_context(|| format!("cannot start {}", path.display()))?;
        self.running = Some(child);
        Ok(())
    }

    /// The process id; `None` unless it runs.
    pub fn pid(&self) -> Option<u32> {
        self.running.as_ref().map(Child::id)
    }

    /// Detects that the process has died, and restarts it after [`RESTART_DELAY`]. Returns a notice about either.
    pub fn supervise(&mut self) -> Result<Option<String>> {
        if let Some(child) = &mut self.running {
            let Some(status) = child.try_wait()? else { return Ok(None) };
            self.running = None;
            self.died_at = Some(Instant::now());
            let wait_s = RESTART_DELAY.as_secs();
            return Ok(Some(format!("{} died ({status}); restarting it in {wait_s} s", self.name)));
        }
        if self.died_at.is_some_and(|died| died.elapsed() >= RESTART_DELAY) {
            self.died_at = None;
            self.spawn()?;
            return Ok(Some(format!("{} restarted", self.name)));
        }
        Ok(None)
    }

    /// Fails with the end of its log if the process has exited.
    pub fn ensure_running(&mut self) -> Result<()> {
        match self.running.as_mut().map(Child::try_wait) {
            Some(Ok(None)) => Ok(()),
            Some(Ok(Some(status))) => bail!("{} exited ({status}): {}", self.name, self.log_tail()),
            _ => bail!("{} does not run: {}", self.name, self.log_tail()),
        }
    }

    fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(&self.log_path).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Asks it to exit.
    pub fn terminate(&self) {
        if let Some(pid) = self.pid().and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed())) {
            // The process may have exited already.
            let _ = rustix::process::kill_process(pid, self.program.stop_signal);
        }
    }

    /// Waits for the process to exit; kills it if that takes too long.
    fn wait_until_stopped(&mut self) -> Option<ExitStatus> {
        let mut child = self.running.take()?;
        let deadline = Instant::now() + self.program.stop_time_max;
        while Instant::now() < deadline {
            if let Ok(Some(status)) = child.try_wait() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = child.kill();
        child.wait().ok()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.terminate();
        self.wait_until_stopped();
    }
}

/// A child must not outlive this process, however it ends: the kernel sends it a signal then.
mod parent_death {
    #![expect(unsafe_code, reason = "`pre_exec` is unsafe; the block below says why it is sound")]

    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    use std::{io, os::unix::process::CommandExt, process::Command};

    pub(super) fn send_signal(command: &mut Command, signal: Signal) {
        let parent = rustix::process::getpid();
        let before_exec = move || {
            set_parent_process_death_signal(Some(signal))?;
            // The parent may have died before the signal was set up.
            if getppid() == Some(parent) { Ok(()) } else { Err(io::Error::other("the parent has exited")) }
        };
        // SAFETY: between fork and exec the closure makes system calls only, which are safe there; it allocates
        // nothing unless it fails, when the child ends without having run anything else.
        unsafe { command.pre_exec(before_exec) };
    }
}
