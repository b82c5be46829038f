//! The files of a spool: numbered segments in one folder. All calls block.
//!
//! ```text
//!   0000000000000007.commits    a segment
//!   0000000000000008.new        a segment that is being created, or what a crash left of one
//! ```

use lookaside_sync::Mutex;
use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Keys may be confidential.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
pub(super) const SUFFIX: &str = ".commits";
const NEW_SUFFIX: &str = ".new";
const DIGITS: usize = 16;

/// A folder of numbered files.
pub trait SegmentFiles: Send + Sync {
    /// The numbers of all files, in order.
    fn numbers(&self) -> io::Result<Vec<u64>>;
    /// Creates a file with these bytes, which survive a crash of the machine once this returns. Whatever ends it
    /// before: there is no file, or the whole one. One that is there already is replaced.
    fn create(&self, number: u64, bytes: &[u8]) -> io::Result<()>;
    /// Writes `bytes` at the offset `at`, which is the end of the file.
    fn append(&self, number: u64, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// When this returns all bytes of the file survive a crash of the machine, unless a sync of it has failed before:
    /// what that one did not write no later one does, although it can still be read.
    fn sync(&self, number: u64) -> io::Result<()>;
    /// Cuts off what is behind `bytes` bytes. After a crash of the machine it may be there again.
    fn truncate(&self, number: u64, bytes: u64) -> io::Result<()>;
    /// Reads from the offset `at`: `bytes_max` bytes, or less at the end of the file.
    fn read(&self, number: u64, at: u64, bytes_max: usize) -> io::Result<Vec<u8>>;
    /// Removes a file. A missing file is no error.
    fn remove(&self, number: u64) -> io::Result<()>;
    /// Removes a file that is whole and not needed any more, or keeps it under another name. A missing file is no
    /// error.
    fn retire(&self, number: u64) -> io::Result<()> {
        self.remove(number)
    }
    /// Removes all that was kept under another name.
    fn remove_retired(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The files in a folder of the file system.
#[derive(Clone, Debug)]
pub struct SegmentFolder {
    path: PathBuf,
    /// The file that was created last. It is open until the next one is created: the kernel reports a write that has
    /// failed to processes that have the file open, and once none has it may forget both the bytes and the failure.
    newest: Arc<Mutex<Option<OpenFile>>>,
}

#[derive(Debug)]
struct OpenFile {
    number: u64,
    file: Arc<File>,
}

impl SegmentFolder {
    /// The folder, which is created if it is missing.
    pub fn open(path: &Path) -> io::Result<SegmentFolder> {
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)?;
        // The entry of a new folder must survive a crash, as its files do.
        File::open(path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")))?
            .sync_all()?;
        Ok(SegmentFolder::existing(path.to_path_buf()))
    }

    /// The folder at `path`, to be read only.
    pub(super) fn existing(path: PathBuf) -> SegmentFolder {
        SegmentFolder { path, newest: Arc::default() }
    }

    pub(super) fn path(&self, number: u64, suffix: &str) -> PathBuf {
        self.path.join(format!("{number:0DIGITS$}{suffix}"))
    }

    fn segment(&self, number: u64) -> PathBuf {
        self.path(number, SUFFIX)
    }

    /// The numbers of all files with this suffix, in order.
    pub(super) fn numbers_with(&self, suffix: &str) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_suffix(suffix)?.parse::<u64>().ok());
            if entry.file_type()?.is_file() {
                numbers.extend(number);
            }
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// A file, to be extended or synced.
    fn writable(&self, number: u64) -> io::Result<Arc<File>> {
        match &*self.newest.lock() {
            Some(newest) if newest.number == number => Ok(newest.file.clone()),
            _ => OpenOptions::new().write(true).open(self.segment(number)).map(Arc::new),
        }
    }

    /// Removes a file. A missing file is no error.
    pub(super) fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })
    }
}

impl SegmentFiles for SegmentFolder {
    fn numbers(&self) -> io::Result<Vec<u64>> {
        self.numbers_with(SUFFIX)
    }

    fn create(&self, number: u64, bytes: &[u8]) -> io::Result<()> {
        let new = self.path(number, NEW_SUFFIX);
        let create = || {
            let file = OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(&new)?;
            file.write_all_at(bytes, 0)?;
            file.sync_all()?;
            fs::rename(&new, self.segment(number)).map(|()| file)
        };
        let file = create().inspect_err(|_| {
            // If this fails, too, the next segment of this number replaces it.
            let _ = self.remove_file(&new);
        })?;
        *self.newest.lock() = Some(OpenFile { number, file: Arc::new(file) });
        File::open(&self.path)?.sync_all()
    }

    fn append(&self, number: u64, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.writable(number)?.write_all_at(bytes, at)
    }

    fn sync(&self, number: u64) -> io::Result<()> {
        self.writable(number)?.sync_data()
    }

    fn truncate(&self, number: u64, bytes: u64) -> io::Result<()> {
        self.writable(number)?.set_len(bytes)
    }

    fn read(&self, number: u64, at: u64, bytes_max: usize) -> io::Result<Vec<u8>> {
        let file = File::open(self.segment(number))?;
        let mut bytes = vec![0; bytes_max];
        let mut filled = 0;
        while filled < bytes_max {
            match file.read_at(&mut bytes[filled..], at + filled as u64)? {
                0 => break,
                count => filled += count,
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        // A file that is open keeps its space.
        self.newest.lock().take_if(|newest| newest.number == number);
        self.remove_file(&self.segment(number))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::memory_files::MemoryFiles, *};

    #[test]
    fn files_are_created_extended_read_and_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let folder = SegmentFolder::open(&directory.path().join("spool")).expect("it is created");
        for files in [&folder as &dyn SegmentFiles, &MemoryFiles::default()] {
            files.create(2, b"abc").expect("it is created");
            files.create(11, b"x").expect("it is created");
            files.append(2, 3, b"def").expect("it is extended");
            files.sync(2).expect("it exists");
            assert_eq!(files.numbers().expect("it lists"), [2, 11]);
            assert_eq!(files.read(2, 2, 3).expect("it exists"), b"cde");
            assert_eq!(files.read(2, 4, 100).expect("it exists"), b"ef");
            files.truncate(2, 4).expect("it is cut off");
            assert_eq!(files.read(2, 2, 100).expect("it exists"), b"cd");
            for _ in 0..2 {
                files.remove(2).expect("a missing file is no error");
            }
            assert!(files.read(2, 0, 1).is_err());
        }
        fs::write(directory.path().join("spool/notes.txt"), "").expect("written");
        assert_eq!(folder.numbers().expect("it lists"), [11]);
    }
}
