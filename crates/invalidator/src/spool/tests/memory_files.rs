//! Files in memory that outlive a spool, with the faults of disks and of the page cache before them.

use super::SegmentFiles;
use lookaside_sync::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
};

/// The files, and the number of the process that has them.
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
    /// The bytes of each file, and how many of them are synced, as far as a sync tells.
    pub files: BTreeMap<u64, (Vec<u8>, usize)>,
    /// Free space; `None` if it is unlimited.
    pub free_bytes: Option<usize>,
    pub fails_to_sync: bool,
    /// Files whose next sync reports that a part of them was not written.
    pub unwritten: BTreeSet<u64>,
    /// Files whose reads fail with this error of the system.
    pub unreadable: BTreeMap<u64, i32>,
    /// How much of a file is on disk whose sync has failed. The rest can be read, and later syncs succeed.
    pub on_disk: BTreeMap<u64, usize>,
}

impl MemoryFiles {
    /// The files as the next process has them.
    pub fn next_process(self: &Arc<Self>) -> FilesOfProcess {
        let mut process = self.1.lock();
        *process += 1;
        FilesOfProcess { files: self.clone(), process: *process }
    }

    /// A crash of the machine: of its unsynced bytes each file keeps as many as `kept` returns for their number, and
    /// none of those that a failed sync has not written.
    pub fn crash(&self, mut kept: impl FnMut(usize) -> usize) {
        *self.1.lock() += 1;
        let mut state = self.0.lock();
        let MemoryFilesState { files, unwritten, on_disk, .. } = &mut *state;
        for (number, (bytes, synced)) in files {
            let unsynced = bytes.len() - *synced;
            let kept = *synced + kept(unsynced).min(unsynced);
            bytes.truncate(on_disk.remove(number).unwrap_or(kept));
            *synced = bytes.len();
        }
        unwritten.clear();
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
        let (content, _) = self.files.entry(number).or_default();
        content.resize(at as usize, 0);
        content.extend_from_slice(&bytes[..fitting]);
        self.free_bytes = self.free_bytes.map(|free| free - fitting);
        if fitting < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn sync(&mut self, number: u64) -> io::Result<()> {
        let (bytes, synced) = self.files.get_mut(&number).ok_or(io::ErrorKind::NotFound)?;
        let is_unwritten = self.unwritten.remove(&number);
        if self.fails_to_sync || is_unwritten {
            if bytes.len() > *synced || is_unwritten {
                self.on_disk.entry(number).or_insert(*synced);
            }
            return Err(io::Error::other("a bad sector"));
        }
        *synced = bytes.len();
        Ok(())
    }

    fn truncate(&mut self, number: u64, bytes: u64) -> io::Result<()> {
        let (content, synced) = self.files.get_mut(&number).ok_or(io::ErrorKind::NotFound)?;
        let bytes = (bytes as usize).min(content.len());
        self.free_bytes = self.free_bytes.map(|free| free + content.len() - bytes);
        content.truncate(bytes);
        *synced = (*synced).min(bytes);
        if self.on_disk.get(&number).is_some_and(|on_disk| *on_disk >= bytes) {
            self.on_disk.remove(&number);
        }
        Ok(())
    }

    fn remove(&mut self, number: u64) {
        let bytes = self.files.remove(&number).map_or(0, |(bytes, _)| bytes.len());
        self.free_bytes = self.free_bytes.map(|free| free + bytes);
        self.on_disk.remove(&number);
        self.unwritten.remove(&number);
        self.unreadable.remove(&number);
    }
}

impl SegmentFiles for MemoryFiles {
    fn numbers(&self) -> io::Result<Vec<u64>> {
        Ok(self.0.lock().files.keys().copied().collect())
    }

    fn create(&self, number: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.0.lock();
        assert!(!state.files.contains_key(&number), "file {number} exists");
        let created = state.write(number, 0, bytes).and_then(|()| state.sync(number));
        created.inspect_err(|_| state.remove(number))
    }

    fn append(&self, number: u64, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.lock().write(number, at, bytes)
    }

    fn sync(&self, number: u64) -> io::Result<()> {
        self.0.lock().sync(number)
    }

    fn truncate(&self, number: u64, bytes: u64) -> io::Result<()> {
        self.0.lock().truncate(number, bytes)
    }

    fn read(&self, number: u64, at: u64, bytes_max: usize) -> io::Result<Vec<u8>> {
        let state = self.0.lock();
        if let Some(error) = state.unreadable.get(&number) {
            return Err(io::Error::from_raw_os_error(*error));
        }
        let (bytes, _) = state.files.get(&number).ok_or(io::ErrorKind::NotFound)?;
        Ok(bytes.iter().skip(at as usize).take(bytes_max).copied().collect())
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        self.0.lock().remove(number);
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

    fn truncate(&self, number: u64, bytes: u64) -> io::Result<()> {
        self.run(|files| files.truncate(number, bytes))
    }

    fn read(&self, number: u64, at: u64, bytes_max: usize) -> io::Result<Vec<u8>> {
        self.run(|files| files.read(number, at, bytes_max))
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        self.run(|files| files.remove(number))
    }
}
