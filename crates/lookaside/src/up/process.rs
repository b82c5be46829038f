//! The processes of a region: started, watched, started again when they die, and stopped, always.

use anyhow::{Context, Result, bail};
use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

/// How long a process has to end by itself after SIGTERM.
const STOP_TIME_MAX: Duration = Duration::from_secs(5);
/// How long a process stays down after it died, so that one sees what the gutter does meanwhile.
const RESTART_DELAY: Duration = Duration::from_secs(5);

/// One process of the region. Dropping it stops it.
pub struct Process {
    /// What it is called in messages, and its log file.
    pub name: String,
    program: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
    log_path: PathBuf,
    running: Option<Child>,
    died_at: Option<Instant>,
}

impl Process {
    /// Starts `program` from the folder in which this program lies; its log goes to `log_dir/name.log`. Secrets go into
    /// the environment, which only the same user can look at.
    pub fn start(
        name: &str,
        program: &str,
        arguments: Vec<String>,
        environment: Vec<(&'static str, String)>,
        log_dir: &Path,
    ) -> Result<Process> {
        let program = beside_this_program(program)?;
        let log_path = log_dir.join(format!("{name}.log"));
        let mut process =
            Process { name: name.to_owned(), program, arguments, environment, log_path, running: None, died_at: None };
        process.spawn()?;
        Ok(process)
    }

    fn spawn(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(&self.log_path);
        let log = log.with_context(|| format!("cannot write {}", self.log_path.display()))?;
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        parent_death::stops(&mut command);
        let child = command.spawn().with_context(|| format!("cannot start {}", self.program.display()))?;
        self.running = Some(child);
        Ok(())
    }

    /// The process's number while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.running.as_ref().map(Child::id)
    }

    /// Notices a death, and starts the process again a while after one. Returns what there is to say.
    pub fn watch(&mut self) -> Result<Option<String>> {
        if let Some(child) = &mut self.running {
            let Some(status) = child.try_wait()? else { return Ok(None) };
            self.running = None;
            self.died_at = Some(Instant::now());
            let wait_s = RESTART_DELAY.as_secs();
            return Ok(Some(format!("{} died ({status}); starting it again in {wait_s} s", self.name)));
        }
        if self.died_at.is_some_and(|died| died.elapsed() >= RESTART_DELAY) {
            self.died_at = None;
            self.spawn()?;
            return Ok(Some(format!("{} started again", self.name)));
        }
        Ok(None)
    }

    /// Fails with the end of its log if the process has ended.
    pub fn must_run(&mut self) -> Result<()> {
        match self.running.as_mut().map(Child::try_wait) {
            Some(Ok(None)) => Ok(()),
            Some(Ok(Some(status))) => bail!("{} ended ({status}): {}", self.name, self.last_words()),
            _ => bail!("{} does not run: {}", self.name, self.last_words()),
        }
    }

    fn last_words(&self) -> String {
        let log = std::fs::read_to_string(&self.log_path).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Asks the process to end.
    pub fn ask_to_stop(&self) {
        if let Some(pid) = self.pid().and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed())) {
            // It may have ended by itself; then there is nothing to ask.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }

    /// Waits for the process to end; ends it by force when it takes too long.
    fn wait_until_stopped(&mut self) -> Option<ExitStatus> {
        let mut child = self.running.take()?;
        let deadline = Instant::now() + STOP_TIME_MAX;
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
        self.ask_to_stop();
        self.wait_until_stopped();
    }
}

fn beside_this_program(program: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot tell where this program lies")?;
    let path = own.with_file_name(program);
    if !path.is_file() {
        bail!("{} is missing: build or install all of Lookaside's programs into one folder", path.display());
    }
    Ok(path)
}

/// A child must not outlive this process, however it ends: the kernel is told to stop it then.
mod parent_death {
    #![allow(unsafe_code)]

    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    use std::{io, os::unix::process::CommandExt, process::Command};

    pub(super) fn stops(command: &mut Command) {
        let parent = rustix::process::getpid();
        let before_exec = move || {
            set_parent_process_death_signal(Some(Signal::TERM))?;
            // The parent may have died before the signal was set up.
            if getppid() == Some(parent) { Ok(()) } else { Err(io::Error::other("the parent is gone")) }
        };
        // SAFETY: between fork and exec the closure makes system calls only, which are safe there; it allocates
        // nothing unless it fails, when the child ends without having run anything else.
        unsafe { command.pre_exec(before_exec) };
    }
}
