//! Small files of `--state-dir`, each replaced as a whole.
//!
//! A replacement writes a temporary file, syncs it, renames it over the old one, and syncs the directory. After a crash the
//! file holds the old content or the new one, never a part. A temporary file left by a crash is ignored and overwritten.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

/// Longer files are refused.
pub(crate) const FILE_BYTES_MAX: u64 = 1 << 20;

/// The content of the file, `None` if there is none. The error of one that is too long is [`io::ErrorKind::FileTooLarge`].
pub(crate) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.len() > FILE_BYTES_MAX => {
            Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("{} bytes is too long", metadata.len())))
        }
        Ok(_) => fs::read(path).map(Some),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(why) => Err(why),
    }
}

/// Replaces the content; blocks until it is on disk.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("json.new");
    // An existing file, or a link to another user's file, must not be written to.
    if let Err(why) = fs::remove_file(&temporary)
        && why.kind() != io::ErrorKind::NotFound
    {
        return Err(why);
    }
    let mut file = File::create_new(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// Runs file operations on a blocking thread: a sync takes milliseconds, which must not delay other clusters.
pub(crate) async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("reading and writing a file does not panic")
}
