//! Watches the configuration file.
//!
//! The system's notification (inotify and the like) on the file's folder makes it fast; reading the file at an interval
//! makes it reliable: network file systems send no notifications, and a symbolic link may lead to a file elsewhere. The
//! content decides: a file rewritten with the same bytes has not changed; one renamed into place, or reached by another
//! link, has.

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};
use tokio::sync::Notify;

/// How often the file is read without a notification.
pub const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Two reads this far apart must agree, so that a half-written file is not refused.
pub const DEBOUNCE: Duration = Duration::from_millis(20);
/// A larger file is refused: it is not a configuration.
pub const FILE_BYTES_MAX: u64 = 64 << 20;

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
            let content = read_stable(&self.path).await;
            if self.seen.as_ref() != Some(&content) {
                self.seen = Some(content.clone());
                return content;
            }
        }
    }
}

/// Reads a configuration file until two reads [`DEBOUNCE`] apart agree: a file that is being replaced is half written, or
/// absent for a moment. The error names the file.
pub async fn read_stable(path: &Path) -> Result<String, String> {
    let mut content = read_config_file(path);
    loop {
        tokio::time::sleep(DEBOUNCE).await;
        let again = read_config_file(path);
        if again == content {
            return content;
        }
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
