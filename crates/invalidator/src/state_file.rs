//! Files of `--state-dir`, each replaced as a whole, and the lock of the directory.
//!
//! A replacement writes a temporary file, syncs it, renames it over the old one, and syncs the directory. After a crash
//! the file holds the old content or the new one, never a part. A temporary file left by a crash is ignored and
//! overwritten.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Write},
    path::Path,
};

/// The longest file of the invalidator, in bytes.
pub(crate) const FILE_BYTES_MAX: u64 = 1 << 20;

/// Locks the directory, which is created if it is missing, for as long as the result lives: two processes in it would
/// overwrite each other's files. The error names `program`.
pub fn lock_directory(directory: &Path, program: &str) -> Result<File, String> {
    let failed = |why: io::Error| format!("--state-dir {}: {why}", directory.display());
    fs::create_dir_all(directory)
        .map_err(|why| format!("--state-dir {} cannot be created: {why}", directory.display()))?;
    let lock = lock_file(&directory.join("lock")).map_err(failed)?;
    lock.ok_or_else(|| format!("--state-dir {} is in use by another {program}", directory.display()))
}

/// Locks a file, which is created if it is missing, for as long as the result lives; `None` if another process has it
/// locked.
pub fn lock_file(path: &Path) -> io::Result<Option<File>> {
    // Not truncated, because it may be a link to another user's file.
    let file = File::options().write(true).create(true).truncate(false).open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(why)) => Err(why),
    }
}

/// The content of the file, `None` if there is none. The error of one with more than `bytes_max` bytes is
/// [`io::ErrorKind::FileTooLarge`].
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.len() > bytes_max => {
            Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("{} bytes is too long", metadata.len())))
        }
        Ok(_) => fs::read(path).map(Some),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(why) => Err(why),
    }
}

/// Replaces the content; blocks until it is on disk.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
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
pub async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("reading and writing a file does not panic")
}
