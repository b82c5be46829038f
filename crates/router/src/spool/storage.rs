//! The storage of a spool: one folder per server, with small files. [`FileDisk`] is the file system; a simulation uses
//! [`MemoryDisk`], which can lose what a crash would lose.
//!
//! All calls block. In the daemon the writer's thread and the main thread make them; a proxy thread does so only to
//! remove the folder of an idle, unconfigured server.

use lookaside_sync::Mutex;
use rustix::fs::OFlags;
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::MutexGuard;

/// A folder of folders of files.
pub trait Disk: Send + Sync {
    /// The names of all folders, in order.
    fn folders(&self) -> io::Result<Vec<String>>;
    /// The names of the files in a folder, in order.
    fn files(&self, folder: &str) -> io::Result<Vec<String>>;
    /// The content of a file.
    fn read(&self, folder: &str, file: &str) -> io::Result<Vec<u8>>;
    /// Writes `bytes` at the offset `at`, which is the end of the file. At 0 the file and its folder are created. With
    /// `sync` the bytes survive a crash of the machine.
    fn write(&self, folder: &str, file: &str, at: u64, bytes: &[u8], sync: bool) -> io::Result<()>;
    /// When this returns, bytes that were written without `sync` survive a crash of the machine.
    fn sync(&self, folder: &str, file: &str) -> io::Result<()>;
    /// Truncates a file to `bytes`.
    fn truncate(&self, folder: &str, file: &str, bytes: u64) -> io::Result<()>;
    /// Removes a file. A missing file is no error.
    fn remove(&self, folder: &str, file: &str) -> io::Result<()>;
    /// Removes an empty folder. A missing folder, or one with files, is no error.
    fn remove_folder(&self, folder: &str) -> io::Result<()>;
    /// Releases the lock: this process no longer uses the storage, and another may.
    fn release(&self) -> io::Result<()>;
}

/// A directory of the file system, locked by this process.
#[derive(Debug)]
pub struct FileDisk {
    directory: PathBuf,
    /// Holds the lock until it is closed, however the process ends.
    lock: File,
}

const LOCK_FILE: &str = "lock";
/// Keys may be confidential.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// The target of a link may be another user's file.
const NOT_THROUGH_LINKS: i32 = OFlags::NOFOLLOW.bits() as i32;

impl FileDisk {
    /// Opens and locks `directory`, and creates it if it is missing. The error tells the operator what to do.
    pub fn open(directory: &Path) -> Result<FileDisk, String> {
        let shown = directory.display();
        let failed = |error: io::Error| format!("cannot use the spool {shown}: {error}; choose another --spool");
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(directory).map_err(failed)?;
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false).mode(FILE_MODE).custom_flags(NOT_THROUGH_LINKS);
        let lock = options.open(directory.join(LOCK_FILE)).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => Ok(FileDisk { directory: directory.to_owned(), lock }),
            Err(fs::TryLockError::WouldBlock) => {
                Err(format!("the spool {shown} is in use by another router; give each router its own --spool"))
            }
            Err(fs::TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    fn path(&self, folder: &str, file: &str) -> PathBuf {
        self.directory.join(folder).join(file)
    }

    fn create(&self, folder: &str, file: &str) -> io::Result<File> {
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(self.directory.join(folder))?;
        OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(self.path(folder, file))
    }

    fn open_to_write(&self, folder: &str, file: &str) -> io::Result<File> {
        OpenOptions::new().write(true).custom_flags(NOT_THROUGH_LINKS).open(self.path(folder, file))
    }

    fn sync_folders(&self, folder: &str) -> io::Result<()> {
        File::open(self.directory.join(folder))?.sync_all()?;
        File::open(&self.directory)?.sync_all()
    }
}

fn list_names(directory: &Path, is_wanted: impl Fn(&fs::FileType) -> bool) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if is_wanted(&entry.file_type()?)
            && let Ok(name) = entry.file_name().into_string()
        {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

impl Disk for FileDisk {
    fn folders(&self) -> io::Result<Vec<String>> {
        list_names(&self.directory, fs::FileType::is_dir)
    }

    fn files(&self, folder: &str) -> io::Result<Vec<String>> {
        list_names(&self.directory.join(folder), fs::FileType::is_file)
    }

    fn read(&self, folder: &str, file: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path(folder, file))
    }

    fn write(&self, folder: &str, file: &str, at: u64, bytes: &[u8], sync: bool) -> io::Result<()> {
        let handle = match at {
            0 => self.create(folder, file)?,
            _ => self.open_to_write(folder, file)?,
        };
        handle.write_all_at(bytes, at)?;
        if sync {
            handle.sync_data()?;
            if at == 0 {
                self.sync_folders(folder)?;
            }
        }
        Ok(())
    }

    fn sync(&self, folder: &str, file: &str) -> io::Result<()> {
        ignore_missing(File::open(self.path(folder, file)).and_then(|file| file.sync_data()))?;
        self.sync_folders(folder)
    }

    fn truncate(&self, folder: &str, file: &str, bytes: u64) -> io::Result<()> {
        let handle = self.open_to_write(folder, file)?;
        handle.set_len(bytes)?;
        handle.sync_all()
    }

    fn remove(&self, folder: &str, file: &str) -> io::Result<()> {
        ignore_missing(fs::remove_file(self.path(folder, file)))
    }

    fn remove_folder(&self, folder: &str) -> io::Result<()> {
        ignore_missing(fs::remove_dir(self.directory.join(folder)))
            .or_else(|error| if error.kind() == io::ErrorKind::DirectoryNotEmpty { Ok(()) } else { Err(error) })
    }

    fn release(&self) -> io::Result<()> {
        self.lock.unlock()
    }
}

/// Files in memory, for simulations and tests. Like a disk it outlives the router that writes to it.
#[derive(Debug, Default)]
pub struct MemoryDisk(Mutex<MemoryDiskState>);

#[derive(Debug, Default)]
struct MemoryDiskState {
    files: BTreeMap<(String, String), MemoryFile>,
    /// Free space. `None`: unlimited.
    free_bytes: Option<usize>,
    /// The error of every read. `None`: reads succeed.
    read_failure: Option<io::ErrorKind>,
    syncs: u64,
}

#[derive(Clone, Debug, Default)]
struct MemoryFile {
    bytes: Vec<u8>,
    synced_bytes: usize,
}

impl MemoryDisk {
    /// An empty disk.
    pub fn new() -> MemoryDisk {
        MemoryDisk::default()
    }

    /// Simulates a crash of the machine: of its unsynced bytes, each file keeps as many as `kept` returns for their
    /// number.
    pub fn crash(&self, mut kept: impl FnMut(usize) -> usize) {
        for file in self.memory().files.values_mut() {
            let unsynced_bytes = file.bytes.len() - file.synced_bytes;
            file.bytes.truncate(file.synced_bytes + kept(unsynced_bytes).min(unsynced_bytes));
            file.synced_bytes = file.bytes.len();
        }
    }

    /// Limits the free space from now on. A write beyond it is torn and fails.
    pub fn limit_free_bytes(&self, free_bytes: Option<usize>) {
        self.memory().free_bytes = free_bytes;
    }

    /// From now on every read fails with this error. `None`: reads succeed.
    pub fn fail_reads(&self, failure: Option<io::ErrorKind>) {
        self.memory().read_failure = failure;
    }

    /// Changes the bytes of every file, by folder and name.
    pub fn damage(&self, mut change: impl FnMut(&str, &str, &mut Vec<u8>)) {
        for ((folder, name), file) in &mut self.memory().files {
            change(folder, name, &mut file.bytes);
            file.synced_bytes = file.bytes.len();
        }
    }

    /// The number of syncs so far.
    pub fn syncs(&self) -> u64 {
        self.memory().syncs
    }

    fn memory(&self) -> MutexGuard<'_, MemoryDiskState> {
        self.0.lock()
    }

    fn with_file<T>(&self, folder: &str, file: &str, run: impl FnOnce(&mut MemoryFile) -> T) -> io::Result<T> {
        let mut memory = self.memory();
        let file = memory.files.get_mut(&(folder.to_owned(), file.to_owned()));
        file.map(run).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Disk for MemoryDisk {
    fn folders(&self) -> io::Result<Vec<String>> {
        let mut folders: Vec<String> = self.memory().files.keys().map(|(folder, _)| folder.clone()).collect();
        folders.dedup();
        Ok(folders)
    }

    fn files(&self, folder: &str) -> io::Result<Vec<String>> {
        let memory = self.memory();
        Ok(memory.files.keys().filter(|(of, _)| of == folder).map(|(_, file)| file.clone()).collect())
    }

    fn read(&self, folder: &str, file: &str) -> io::Result<Vec<u8>> {
        if let Some(failure) = self.memory().read_failure {
            return Err(failure.into());
        }
        self.with_file(folder, file, |file| file.bytes.clone())
    }

    fn write(&self, folder: &str, file: &str, at: u64, bytes: &[u8], sync: bool) -> io::Result<()> {
        let mut memory = self.memory();
        let fitting = memory.free_bytes.map_or(bytes.len(), |free| free.min(bytes.len()));
        memory.free_bytes = memory.free_bytes.map(|free| free - fitting);
        memory.syncs += u64::from(sync);
        let entry = memory.files.entry((folder.to_owned(), file.to_owned())).or_default();
        entry.bytes.truncate(at as usize);
        entry.bytes.extend_from_slice(&bytes[..fitting]);
        if fitting < bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if sync {
            entry.synced_bytes = entry.bytes.len();
        }
        Ok(())
    }

    fn sync(&self, folder: &str, file: &str) -> io::Result<()> {
        self.memory().syncs += 1;
        ignore_missing(self.with_file(folder, file, |file| file.synced_bytes = file.bytes.len()))
    }

    fn truncate(&self, folder: &str, file: &str, bytes: u64) -> io::Result<()> {
        self.with_file(folder, file, |file| {
            file.bytes.truncate(bytes as usize);
            file.synced_bytes = file.bytes.len();
        })
    }

    fn remove(&self, folder: &str, file: &str) -> io::Result<()> {
        self.memory().files.remove(&(folder.to_owned(), file.to_owned()));
        Ok(())
    }

    fn remove_folder(&self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn release(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn files_are_written_read_truncated_and_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let on_files = FileDisk::open(&directory.path().join("spool")).expect("it is created");
        for disk in [&on_files as &dyn Disk, &MemoryDisk::new()] {
            disk.write("a", "1", 0, b"abc", true).expect("it is created");
            disk.write("a", "1", 3, b"def", false).expect("it is extended");
            disk.sync("a", "1").expect("it exists");
            disk.write("b", "2", 0, b"x", false).expect("it is created");
            assert_eq!(disk.folders().expect("it lists"), ["a", "b"]);
            assert_eq!(disk.files("a").expect("it lists"), ["1"]);
            assert_eq!(disk.read("a", "1").expect("it exists"), b"abcdef");
            disk.truncate("a", "1", 2).expect("it is truncated");
            assert_eq!(disk.read("a", "1").expect("it exists"), b"ab");
            disk.remove_folder("a").expect("a folder with files is no error");
            for _ in 0..2 {
                disk.remove("a", "1").expect("a missing file is no error");
            }
            disk.remove_folder("a").expect("it is empty");
            assert_eq!(disk.folders().expect("it lists"), ["b"]);
        }
    }

    #[test]
    fn a_file_behind_a_link_is_neither_locked_nor_written() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, other) = (directory.path().join("spool"), directory.path().join("other"));
        fs::write(&other, "another's").expect("written");
        let disk = FileDisk::open(&path).expect("it is created");
        disk.write("a", "1", 0, b"abc", false).expect("it is created");
        fs::remove_file(path.join("a/1")).expect("removed");
        std::os::unix::fs::symlink(&other, path.join("a/1")).expect("a link");
        assert!(disk.write("a", "1", 0, b"x", false).is_err());
        assert!(disk.write("a", "1", 3, b"x", false).is_err());
        assert!(disk.truncate("a", "1", 0).is_err());
        assert!(disk.files("a").expect("it lists").is_empty());
        drop(disk);
        fs::remove_file(path.join(LOCK_FILE)).expect("removed");
        std::os::unix::fs::symlink(&other, path.join(LOCK_FILE)).expect("a link");
        assert!(FileDisk::open(&path).expect_err("a link").contains("--spool"));
        assert_eq!(fs::read_to_string(&other).expect("it exists"), "another's");
    }

    #[test]
    fn a_spool_belongs_to_one_router_and_one_user() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("spool");
        let disk = FileDisk::open(&path).expect("it is created");
        disk.write("a", "1", 0, b"abc", false).expect("it is created");
        assert!(FileDisk::open(&path).expect_err("it is locked").contains("another router"));
        let mode = |path: &Path| fs::metadata(path).expect("it exists").permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&path.join("a")), mode(&path.join("a/1"))), (0o700, 0o700, 0o600));
        disk.release().expect("it was locked");
        let next = FileDisk::open(&path).expect("the lock is free");
        drop(disk);
        assert!(FileDisk::open(&path).is_err(), "the next owner has locked it");
        drop(next);
        FileDisk::open(&path).expect("the lock is free");
        assert!(FileDisk::open(Path::new("/dev/null/spool")).expect_err("no directory").contains("--spool"));
    }
}
