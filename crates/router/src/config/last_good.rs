//! The last good configuration on disk, so that a router can start while its configuration cannot be read: etcd is
//! down, the key was deleted, or its value is invalid. No request passes here.
//!
//! The file holds the configuration's text and nothing else: `-f FILE` and `lookaside check-config FILE` can read it.
//! It is replaced by a rename: after a crash it is the old or the new one.

use lookaside_client::config::read_config_file;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// The file's mode: only the router's user may read it.
pub(crate) const MODE: u32 = 0o600;

#[derive(Debug)]
pub(crate) struct LastGoodConfig(PathBuf);

impl LastGoodConfig {
    /// The file at `path`, which need not exist yet.
    pub(crate) fn new(path: &Path) -> LastGoodConfig {
        LastGoodConfig(path.to_owned())
    }

    /// The saved text, or why there is none.
    pub(crate) fn read(&self) -> Result<String, String> {
        read_config_file(&self.0)
    }

    /// Saves `text`. A failure is logged only: the running router does not need the file.
    pub(crate) fn save(&self, text: &str) {
        if fs::read_to_string(&self.0).is_ok_and(|saved| saved == text) {
            return;
        }
        if let Err(error) = replace_file(&self.0, text, MODE) {
            tracing::error!(cache = %self, %error, "cannot save the configuration: a router cannot start from it while its source is down");
        }
    }
}

/// Replaces the file at `path`, which survives a crash of the machine from then on. It has `mode`, whatever the umask.
pub(crate) fn replace_file(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let beside = beside(path, ".new");
    write_new(&beside, text, mode)?.sync_all()?;
    fs::rename(&beside, path)?;
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// The same without a wait for the disk: after a crash of the machine the file may be empty. Another thread or process
/// may replace the same file meanwhile.
pub(crate) fn replace_file_unsynced(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let beside = beside(path, &format!(".{:016x}.new", fastrand::u64(..)));
    write_new(&beside, text, mode)?;
    fs::rename(&beside, path)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(suffix);
    beside.into()
}

fn write_new(path: &Path, text: &str, mode: u32) -> io::Result<File> {
    // An existing file, or a link to another user's file, must not be written to.
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(text.as_bytes())?;
    Ok(file)
}

impl std::fmt::Display for LastGoodConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_text_is_saved() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = LastGoodConfig::new(&folder.path().join("last.json"));
        assert!(file.read().is_err_and(|why| why.contains("last.json")));
        file.save("{\"a\": 1}");
        file.save("{}");
        assert_eq!(file.read().as_deref(), Ok("{}"));
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn a_file_is_replaced_by_several_threads_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("stats");
        let texts: Vec<String> = (0..4).map(|number| number.to_string().repeat(100_000)).collect();
        replace_file_unsynced(&path, &texts[0], 0o664).expect("replaced");
        std::thread::scope(|scope| {
            for text in &texts {
                scope.spawn(|| (0..20).for_each(|_| replace_file_unsynced(&path, text, 0o664).expect("replaced")));
            }
            for _ in 0..50 {
                assert!(texts.contains(&fs::read_to_string(&path).expect("always there")), "never a part of it");
            }
        });
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o664);
    }

    #[test]
    fn link_beside_the_file_is_not_followed_and_the_file_is_private() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().expect("a folder");
        let (path, other) = (folder.path().join("last.json"), folder.path().join("other"));
        fs::write(&other, "another's").expect("written");
        symlink(&other, folder.path().join("last.json.new")).expect("a link");
        let file = LastGoodConfig::new(&path);
        file.save("{}");
        assert_eq!(fs::read_to_string(&other).expect("there"), "another's");
        let saved = fs::symlink_metadata(&path).expect("it is saved");
        assert!(saved.is_file());
        assert_eq!((saved.permissions().mode() & 0o777, file.read().as_deref()), (0o600, Ok("{}")));
    }
}
