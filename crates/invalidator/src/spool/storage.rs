//! The files of a spool: numbered segments in one folder. All calls block.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// Keys may be confidential.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
pub(super) const SUFFIX: &str = ".commits";
const DIGITS: usize = 16;

/// A folder of numbered files.
pub trait SegmentFiles: Send + Sync {
    /// The numbers of all files, in order.
    fn numbers(&self) -> io::Result<Vec<u64>>;
    /// Creates a file with these bytes. When this returns they survive a crash of the machine.
    fn create(&self, number: u64, bytes: &[u8]) -> io::Result<()>;
    /// Writes `bytes` at the offset `at`, which is the end of the file.
    fn append(&self, number: u64, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// When this returns all bytes of the file survive a crash of the machine.
    fn sync(&self, number: u64) -> io::Result<()>;
    /// Reads from the offset `at`: `bytes_max` bytes, or less at the end of the file.
    fn read(&self, number: u64, at: u64, bytes_max: usize) -> io::Result<Vec<u8>>;
    /// Removes a file. A missing file is no error.
    fn remove(&self, number: u64) -> io::Result<()>;
    /// Removes a file that is whole and not needed any more, or keeps it under another name. A missing file is no error.
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
pub struct SegmentFolder(PathBuf);

impl SegmentFolder {
    /// The folder, which is created if it is missing.
    pub fn open(path: &Path) -> io::Result<SegmentFolder> {
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)?;
        // The entry of a new folder must survive a crash, as its files do.
        File::open(path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")))?
            .sync_all()?;
        Ok(SegmentFolder(path.to_path_buf()))
    }

    /// The folder at `path`, to be read only.
    pub(super) fn existing(path: PathBuf) -> SegmentFolder {
        SegmentFolder(path)
    }

    pub(super) fn path(&self, number: u64, suffix: &str) -> PathBuf {
        self.0.join(format!("{number:0DIGITS$}{suffix}"))
    }

    fn segment(&self, number: u64) -> PathBuf {
        self.path(number, SUFFIX)
    }

    /// The numbers of all files with this suffix, in order.
    pub(super) fn numbers_with(&self, suffix: &str) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.0)? {
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
        let file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(self.segment(number))?;
        file.write_all_at(bytes, 0)?;
        file.sync_all()?;
        File::open(&self.0)?.sync_all()
    }

    fn append(&self, number: u64, at: u64, bytes: &[u8]) -> io::Result<()> {
        OpenOptions::new().write(true).open(self.segment(number))?.write_all_at(bytes, at)
    }

    fn sync(&self, number: u64) -> io::Result<()> {
        File::open(self.segment(number))?.sync_data()
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
        self.remove_file(&self.segment(number))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use lookaside_sync::Mutex;
    use std::{
        collections::{BTreeMap, BTreeSet},
        sync::Arc,
    };

    /// Files in memory that outlive a spool, with faults.
    #[derive(Debug, Default)]
    pub struct MemoryFiles(pub Mutex<MemoryFilesState>, Mutex<u64>);

    /// The files as one process has them. A task that is aborted leaves its blocking call to a thread; as after the end
    /// of a process, it changes nothing once the next process has begun.
    pub struct FilesOfProcess {
        files: Arc<MemoryFiles>,
        process: u64,
    }

    #[derive(Debug, Default)]
    pub struct MemoryFilesState {
        /// The bytes of each file, and how many of them are synced.
        pub files: BTreeMap<u64, (Vec<u8>, usize)>,
        /// Free space; `None` if it is unlimited.
        pub free_bytes: Option<usize>,
        pub fails_to_sync: bool,
        /// Files whose next sync reports that a part of them was not written.
        pub unwritten: BTreeSet<u64>,
    }

    impl MemoryFiles {
        /// The files as the next process has them.
        pub fn next_process(self: &Arc<Self>) -> FilesOfProcess {
            let mut process = self.1.lock();
            *process += 1;
            FilesOfProcess { files: self.clone(), process: *process }
        }

        /// A crash of the machine: of its unsynced bytes each file keeps as many as `kept` returns for their number.
        pub fn crash(&self, mut kept: impl FnMut(usize) -> usize) {
            *self.1.lock() += 1;
            for (bytes, synced) in self.0.lock().files.values_mut() {
                let unsynced = bytes.len() - *synced;
                bytes.truncate(*synced + kept(unsynced).min(unsynced));
                *synced = bytes.len();
            }
        }

        /// A start on a disk that cannot sync fails. The next one does not.
        pub fn mend_syncs(&self) {
            let mut state = self.0.lock();
            state.fails_to_sync = false;
            state.unwritten.clear();
        }

        /// Reads see zeros, or the end of the file, in place of what is not synced: the kernel could not write it.
        pub fn drop_unsynced(&self, is_cut_off: bool) {
            let mut state = self.0.lock();
            let MemoryFilesState { files, unwritten, .. } = &mut *state;
            for (number, (bytes, synced)) in files.iter_mut().filter(|(_, (bytes, synced))| bytes.len() > *synced) {
                unwritten.insert(*number);
                match is_cut_off {
                    true => bytes.truncate(*synced),
                    false => bytes[*synced..].fill(0),
                }
            }
        }
    }

    impl MemoryFilesState {
        fn write(&mut self, number: u64, at: u64, bytes: &[u8]) -> io::Result<()> {
            let fitting = self.free_bytes.map_or(bytes.len(), |free| free.min(bytes.len()));
            self.free_bytes = self.free_bytes.map(|free| free - fitting);
            let (content, _) = self.files.entry(number).or_default();
            content.resize(at as usize, 0);
            content.extend_from_slice(&bytes[..fitting]);
            if fitting < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        }
    }

    impl SegmentFiles for MemoryFiles {
        fn numbers(&self) -> io::Result<Vec<u64>> {
            Ok(self.0.lock().files.keys().copied().collect())
        }

        fn create(&self, number: u64, bytes: &[u8]) -> io::Result<()> {
            assert!(!self.0.lock().files.contains_key(&number), "file {number} exists");
            self.0.lock().write(number, 0, bytes)?;
            self.sync(number)
        }

        fn append(&self, number: u64, at: u64, bytes: &[u8]) -> io::Result<()> {
            self.0.lock().write(number, at, bytes)
        }

        fn sync(&self, number: u64) -> io::Result<()> {
            let mut state = self.0.lock();
            if state.fails_to_sync {
                return Err(io::Error::other("a bad sector"));
            }
            if state.unwritten.remove(&number) {
                return Err(io::Error::other("a lost page write"));
            }
            let (bytes, synced) = state.files.get_mut(&number).ok_or(io::ErrorKind::NotFound)?;
            *synced = bytes.len();
            Ok(())
        }

        fn read(&self, number: u64, at: u64, bytes_max: usize) -> io::Result<Vec<u8>> {
            let state = self.0.lock();
            let (bytes, _) = state.files.get(&number).ok_or(io::ErrorKind::NotFound)?;
            Ok(bytes.iter().skip(at as usize).take(bytes_max).copied().collect())
        }

        fn remove(&self, number: u64) -> io::Result<()> {
            self.0.lock().files.remove(&number);
            Ok(())
        }
    }

    impl FilesOfProcess {
        fn run<T>(&self, work: impl FnOnce(&MemoryFiles) -> io::Result<T>) -> io::Result<T> {
            let newest = self.files.1.lock();
            if *newest == self.process { work(&self.files) } else { Err(io::Error::other("the process has ended")) }
        }
    }

    impl SegmentFiles for FilesOfProcess {
        fn numbers(&self) -> io::Result<Vec<u64>> {
            self.run(|files| files.numbers())
        }

        fn create(&self, number: u64, bytes: &[u8]) -> io::Result<()> {
            self.run(|files| files.create(number, bytes))
        }

        fn append(&self, number: u64, at: u64, bytes: &[u8]) -> io::Result<()> {
            self.run(|files| files.append(number, at, bytes))
        }

        fn sync(&self, number: u64) -> io::Result<()> {
            self.run(|files| files.sync(number))
        }

        fn read(&self, number: u64, at: u64, bytes_max: usize) -> io::Result<Vec<u8>> {
            self.run(|files| files.read(number, at, bytes_max))
        }

        fn remove(&self, number: u64) -> io::Result<()> {
            self.run(|files| files.remove(number))
        }
    }

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
            for _ in 0..2 {
                files.remove(2).expect("a missing file is no error");
            }
            assert!(files.read(2, 0, 1).is_err());
        }
        fs::write(directory.path().join("spool/notes.txt"), "").expect("written");
        assert_eq!(folder.numbers().expect("it lists"), [11]);
    }
}
