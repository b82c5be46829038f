//! The state file: what was found, the samples, and where the log is read from.
//!
//! It is replaced as a whole, so it holds the state before a crash or after it, never a part. Its size is bounded by
//! the number of samples (`--pending-max`).

use crate::sampling::{Moment, SavedSampler};
use lookaside_invalidator::state_file;
use lookaside_sync::Mutex;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The name of the file in `--state-dir`.
pub const FILE_NAME: &str = "monitor.json";
/// The version of the format.
pub const VERSION: u32 = 2;
/// The longest file. A longer one is neither written nor read.
pub const FILE_BYTES_MAX: u64 = 4 << 30;
/// A number that changes with each boot of the host.
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";

/// The content of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedState {
    /// [`VERSION`].
    pub version: u32,
    /// The boot of the host that times are of.
    pub boot: String,
    /// The region whose log is read.
    pub region: String,
    /// The deletes, one in how many.
    pub sample: u32,
    /// The rest.
    pub sampler: SavedSampler,
}

/// What all versions of the format have.
#[derive(Deserialize)]
struct FileVersion {
    version: u32,
}

/// The file of one monitor.
#[derive(Clone, Debug)]
pub struct StateFile {
    path: PathBuf,
    /// Locked while the file is replaced. Clones share it.
    writing: Arc<Mutex<()>>,
}

impl StateFile {
    /// The file in this directory.
    pub fn in_directory(directory: &Path) -> StateFile {
        StateFile { path: directory.join(FILE_NAME), writing: Arc::default() }
    }

    /// The saved state; `None` if there is none. The error names the file.
    pub fn load(&self) -> Result<Option<SavedState>, String> {
        let failed = |why: String| format!("{}: {why}", self.path.display());
        let read = state_file::read(&self.path, FILE_BYTES_MAX).map_err(|why| failed(why.to_string()))?;
        let Some(bytes) = read else { return Ok(None) };
        let lost = "Move it away to begin new curves: what it has counted is not taken over";
        let no_state = |why: serde_json::Error| failed(format!("it is no state of a monitor: {why}. {lost}"));
        let FileVersion { version } = serde_json::from_slice(&bytes).map_err(no_state)?;
        if version != VERSION {
            return Err(failed(format!(
                "it has the version {version} of the format, and this release reads {VERSION}. {lost}; or run the release \
                 that has written it"
            )));
        }
        serde_json::from_slice(&bytes).map(Some).map_err(no_state)
    }

    /// Replaces the file by what `state` returns; blocks until it is on disk. Of several saves at a time one follows
    /// the other, and the state is that of the moment at which its own begins: the last one to end has the newest.
    pub fn save(&self, state: impl FnOnce() -> SavedState) -> Result<(), String> {
        self.save_up_to(state, FILE_BYTES_MAX)
    }

    /// A state that could not be read again does not replace one that can.
    fn save_up_to(&self, state: impl FnOnce() -> SavedState, bytes_max: u64) -> Result<(), String> {
        let failed = |why: String| format!("{}: {why}", self.path.display());
        // Two writers of one temporary file would mix their states, or fail.
        let _writing = self.writing.lock();
        let bytes = serde_json::to_vec(&state()).expect("the state can be written as JSON");
        if bytes.len() as u64 > bytes_max {
            return Err(failed(format!(
                "the state of {} bytes is over the limit of {bytes_max}; lower --pending-max",
                bytes.len()
            )));
        }
        state_file::replace(&self.path, &bytes).map_err(|why| failed(why.to_string()))
    }
}

/// The boot of this host.
pub fn boot_id() -> Result<String, String> {
    let id = fs::read_to_string(BOOT_ID_FILE).map_err(|why| format!("{BOOT_ID_FILE}: {why}"))?;
    Ok(id.trim().to_owned())
}

/// The monitor's clock: the time since the boot of the host, which goes on while the host is suspended.
pub fn now() -> Moment {
    let since_boot = clock_gettime(ClockId::Boottime);
    Moment { ms: since_boot.tv_sec as u64 * 1_000 + since_boot.tv_nsec as u64 / 1_000_000 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::{Sampler, SamplerOptions};
    use std::{sync::mpsc, thread, time::Duration};

    fn state() -> SavedState {
        let options = SamplerOptions { one_in: 1, ages_s: vec![1], pending_max: 1 };
        let sampler = Sampler::new(options, [("one", "here")]).save();
        SavedState { version: VERSION, boot: "b".into(), region: "here".into(), sample: 1, sampler }
    }

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = StateFile::in_directory(directory.path());
        assert_eq!(file.load(), Ok(None));
        file.save(state).expect("saved");
        assert_eq!(file.load(), Ok(Some(state())));
    }

    #[test]
    fn a_file_that_is_no_state_is_refused_and_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = StateFile::in_directory(directory.path());
        let unknown = serde_json::to_string(&SavedState { version: VERSION + 1, ..state() }).expect("JSON");
        for bad in ["", "{}", "[1]", &unknown] {
            fs::write(directory.path().join(FILE_NAME), bad).expect("written");
            let why = file.load().expect_err(bad);
            assert!(why.contains(FILE_NAME), "{why}");
            assert_eq!(fs::read_to_string(directory.path().join(FILE_NAME)).expect("read"), bad);
        }
        // Of another version nothing else is known: it may have other fields.
        fs::write(directory.path().join(FILE_NAME), r#"{"version":1,"clusters":[]}"#).expect("written");
        let why = file.load().expect_err("version 1");
        assert!(why.contains("version 1 of the format") && why.contains("is not taken over"), "{why}");
    }

    #[test]
    fn a_state_that_is_too_long_to_be_read_does_not_replace_the_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = StateFile::in_directory(directory.path());
        file.save(state).expect("saved");
        let why = file.save_up_to(|| SavedState { sample: 7, ..state() }, 100).expect_err("too long");
        assert!(why.contains("--pending-max") && why.contains(FILE_NAME), "{why}");
        assert_eq!(file.load(), Ok(Some(state())));
    }

    /// The last save at the end began while the one before was still running: both wrote the same temporary file, and
    /// the older state could replace the newer one.
    #[test]
    fn saves_at_a_time_follow_each_other_and_the_newest_state_stays() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = StateFile::in_directory(directory.path());
        let (first_runs, first_is_running) = mpsc::channel();
        let (second_runs, second_is_running) = mpsc::channel();
        thread::scope(|scope| {
            let first = file.clone();
            scope.spawn(move || {
                first.save(move || {
                    first_runs.send(()).expect("the test waits");
                    let is_overtaken = second_is_running.recv_timeout(Duration::from_millis(200)).is_ok();
                    assert!(!is_overtaken, "the second save did not wait");
                    SavedState { sample: 1, ..state() }
                })
            });
            first_is_running.recv().expect("it runs");
            let second = || {
                // Without a receiver the first save is done.
                let _ = second_runs.send(());
                SavedState { sample: 2, ..state() }
            };
            file.save(second).expect("saved");
        });
        assert_eq!(file.load().map(|state| state.map(|state| state.sample)), Ok(Some(2)));
    }

    #[test]
    fn the_clock_goes_on() {
        let before = now();
        assert!(now() >= before && before.ms > 0);
        assert!(!boot_id().expect("Linux has one").is_empty());
    }
}
