//! Notices that the configuration file has changed.
//!
//! The system's notice (inotify and its like) on the file's folder makes it quick; reading the file at an interval
//! makes it sure: folders on network file systems give no notice, and a file may be a symbolic link whose far end
//! changes elsewhere. What counts is the content: a file rewritten with the same bytes has not changed, and one
//! renamed into place, or reached by another link, has.

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};
use tokio::sync::Notify;

/// How often the file is read without any notice.
pub const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Two reads this far apart must agree, so that a file that is being written is not taken for a bad one.
pub const SETTLE: Duration = Duration::from_millis(20);
/// A configuration larger than this is refused: nobody has written one, so it is another file.
pub const FILE_BYTES_MAX: u64 = 64 << 20;

/// Watches one file.
#[derive(Debug)]
pub struct FileWatch {
    path: PathBuf,
    /// What was read last: the content, or why it could not be read.
    seen: Result<String, String>,
    notice: Arc<Notify>,
    /// Gone where the system can watch nothing; then only the interval is left.
    _watcher: Option<RecommendedWatcher>,
}

impl FileWatch {
    /// Watches `path`, whose content is known to be `seen`.
    pub fn new(path: &Path, seen: String) -> FileWatch {
        let notice = Arc::new(Notify::new());
        let watcher = watch_folder(path, notice.clone());
        if let Err(error) = &watcher {
            let path = path.display();
            tracing::warn!(%error, "no notice of changes to {path}: it is read every {POLL_INTERVAL:?} instead");
        }
        FileWatch { path: path.to_owned(), seen: Ok(seen), notice, _watcher: watcher.ok() }
    }

    /// The content as it is now; it has been seen then.
    pub fn read(&mut self) -> Result<String, String> {
        self.seen = read_configuration(&self.path);
        self.seen.clone()
    }

    /// The next content that differs from the one before, or why there is none to be read.
    pub async fn changed(&mut self) -> Result<String, String> {
        loop {
            let _ = tokio::time::timeout(POLL_INTERVAL, self.notice.notified()).await;
            let mut content = read_configuration(&self.path);
            if content == self.seen {
                continue;
            }
            loop {
                tokio::time::sleep(SETTLE).await;
                let again = read_configuration(&self.path);
                if again == content {
                    break;
                }
                content = again;
            }
            if content != self.seen {
                self.seen = content.clone();
                return content;
            }
        }
    }
}

/// Reads a configuration file. The error says what to do about it.
pub fn read_configuration(path: &Path) -> Result<String, String> {
    let in_words = |error: io::Error| format!("{} cannot be read: {error}", path.display());
    let file_bytes = fs::metadata(path).map_err(in_words)?.len();
    if file_bytes > FILE_BYTES_MAX {
        return Err(format!("{} has {file_bytes} bytes; the limit is {FILE_BYTES_MAX}", path.display()));
    }
    fs::read_to_string(path).map_err(in_words)
}

fn watch_folder(path: &Path, notice: Arc<Notify>) -> notify::Result<RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Reading the file is itself an event; to take it for a change would never end.
        if !event.is_ok_and(|event| event.kind.is_access()) {
            notice.notify_one();
        }
    })?;
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    watcher.watch(folder, RecursiveMode::NonRecursive)?;
    Ok(watcher)
}
