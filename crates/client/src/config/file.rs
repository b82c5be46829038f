//! Watches the configuration file.
//!
//! The system's notification (inotify and the like) on the file's folder makes it fast; reading the file at an interval
//! makes it reliable: network file systems send no notifications, and a symbolic link may lead to a file elsewhere. The
//! content decides: a file rewritten with the same bytes has not changed; one renamed into place, or reached by another
//! link, has.
//!
//! A file that is being replaced is read again until two reads agree. One that never stays the same is given up after a
//! while, with an error, and is read when it no longer changes.

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, fs, io};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// How often the file is read without a notification.
pub const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Two reads this far apart must agree, so that a half-written file is not refused.
pub const DEBOUNCE: Duration = Duration::from_millis(20);
/// A file that was different at as many reads, or for as long, is given up: longer than any program takes to replace
/// some files.
const STABLE_READS_MAX: usize = 200;
const STABLE_READS_TIME_MAX: Duration = Duration::from_secs(10);
/// A larger file is refused: it is not a configuration.
pub const FILE_BYTES_MAX: u64 = 64 << 20;

/// A file that is different each time that it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnstableFile(PathBuf);

impl fmt::Display for UnstableFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} cannot be read: something writes it all the time: it was different at each of the last reads; write \
             another file, and rename that to this one",
            self.0.display()
        )
    }
}

/// Bounds how often, and for how long, files are read that are different each time.
#[derive(Debug)]
pub struct StableReadLimit {
    reads_left: usize,
    end: Instant,
}

impl StableReadLimit {
    /// The limit on reads that begin now.
    pub fn start() -> StableReadLimit {
        StableReadLimit { reads_left: STABLE_READS_MAX, end: Instant::now() + STABLE_READS_TIME_MAX }
    }

    /// Counts a read in which `path` was different. An error if it was the last one.
    pub fn record_difference(&mut self, path: &Path) -> Result<(), UnstableFile> {
        self.reads_left = self.reads_left.saturating_sub(1);
        match self.reads_left > 0 && Instant::now() < self.end {
            true => Ok(()),
            false => Err(UnstableFile(path.to_owned())),
        }
    }
}

/// Watches one file.
#[derive(Debug)]
pub struct FileWatcher {
    path: PathBuf,
    /// The content that was read last, or why it could not be read. `None` if the next is returned in any case.
    seen: Option<Result<String, String>>,
    notify: Arc<Notify>,
    /// `None` if the system can watch nothing. Then the file is only polled.
    _watcher: Option<RecommendedWatcher>,
}

impl FileWatcher {
    /// Watches `path`. `seen` is the content that was read before.
    pub fn new(path: &Path, seen: String) -> FileWatcher {
        let notify = Arc::new(Notify::new());
        let watcher = watch_folder(path, notify.clone());
        if let Err(error) = &watcher {
            let path = path.display();
            tracing::warn!(%error, "inotify unavailable; polling {path} every {POLL_INTERVAL:?}");
        }
        FileWatcher { path: path.to_owned(), seen: Some(Ok(seen)), notify, _watcher: watcher.ok() }
    }

    /// Makes [`FileWatcher::next_change`] read the file at once and return its content, changed or not.
    pub fn request_read(&mut self) {
        self.seen = None;
        self.notify.notify_one();
    }

    /// The next content that differs from the last one, or why it cannot be read.
    pub async fn next_change(&mut self) -> Result<String, String> {
        loop {
            let _ = tokio::time::timeout(POLL_INTERVAL, self.notify.notified()).await;
            if self.seen.as_ref() == Some(&read_config_file(&self.path)) {
                continue;
            }
            let content = read_stable(&self.path).await.unwrap_or_else(|unstable| Err(unstable.to_string()));
            if self.seen.as_ref() != Some(&content) {
                self.seen = Some(content.clone());
                return content;
            }
        }
    }
}

/// Reads a configuration file until two reads [`DEBOUNCE`] apart agree: a file that is being replaced is half written,
/// or absent for a moment. The text, or the error of [`read_config_file`].
pub async fn read_stable(path: &Path) -> Result<Result<String, String>, UnstableFile> {
    let mut content = read_config_file(path);
    // A pipe has its content once.
    if fs::metadata(path).is_ok_and(|file| !file.is_file()) {
        return Ok(content);
    }
    let mut limit = StableReadLimit::start();
    loop {
        sleep(DEBOUNCE).await;
        let again = read_config_file(path);
        if again == content {
            return Ok(content);
        }
        limit.record_difference(path)?;
        content = again;
    }
}

/// Reads a configuration file. The error names the file.
pub fn read_config_file(path: &Path) -> Result<String, String> {
    let describe = |error: io::Error| format!("{} cannot be read: {error}", path.display());
    let file_bytes = fs::metadata(path).map_err(describe)?.len();
    if file_bytes > FILE_BYTES_MAX {
        return Err(format!("{} has {file_bytes} bytes; the limit is {FILE_BYTES_MAX}", path.display()));
    }
    fs::read_to_string(path).map_err(describe)
}

fn watch_folder(path: &Path, notify: Arc<Notify>) -> notify::Result<RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Reading the file is itself an event; treating it as a change would never end.
        if !event.is_ok_and(|event| event.kind.is_access()) {
            notify.notify_one();
        }
    })?;
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    watcher.watch(folder, RecursiveMode::NonRecursive)?;
    Ok(watcher)
}
