//! The last good configuration, kept on disk, so that a router can start while its configuration cannot be read: etcd is
//! down, the key was deleted, what stands there now is wrong. No request passes here.
//!
//! The file holds the configuration as it was read and nothing else: `-f FILE` and `lookaside check-config FILE` take it as
//! it is. It is replaced whole, by a rename: a crash leaves the old one or the new one.

use crate::config::file::read_configuration;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Who may read what is kept: the router's user alone.
const MODE: u32 = 0o600;

/// One file.
#[derive(Debug)]
pub(crate) struct Cache(PathBuf);

impl Cache {
    /// The file at `path`, which need not be there yet.
    pub(crate) fn new(path: &Path) -> Cache {
        Cache(path.to_owned())
    }

    /// What is kept, or why there is nothing.
    pub(crate) fn read(&self) -> Result<String, String> {
        read_configuration(&self.0)
    }

    /// Keeps `text`. That it cannot be kept is said in the log: the router that runs does not need it.
    pub(crate) fn keep(&self, text: &str) {
        if fs::read_to_string(&self.0).is_ok_and(|kept| kept == text) {
            return;
        }
        if let Err(error) = self.replace(text) {
            tracing::error!(cache = %self, %error, "the configuration cannot be kept: a router cannot start from it");
        }
    }

    fn replace(&self, text: &str) -> io::Result<()> {
        let mut beside = self.0.clone().into_os_string();
        beside.push(".new");
        // Whatever stands there, a link to another's file even, is not written to.
        if let Err(error) = fs::remove_file(&beside)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, &self.0)?;
        let folder = self.0.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()
    }
}

impl std::fmt::Display for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_is_kept_and_nothing_beside_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::new(&folder.path().join("last.json"));
        assert!(cache.read().is_err_and(|why| why.contains("last.json")));
        cache.keep("{\"a\": 1}");
        cache.keep("{}");
        assert_eq!(cache.read().as_deref(), Ok("{}"));
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn a_link_beside_it_leads_nowhere_and_nobody_else_reads_it() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let folder = tempfile::tempdir().expect("a folder");
        let (path, other) = (folder.path().join("last.json"), folder.path().join("other"));
        fs::write(&other, "another's").expect("written");
        symlink(&other, folder.path().join("last.json.new")).expect("a link");
        let cache = Cache::new(&path);
        cache.keep("{}");
        assert_eq!(fs::read_to_string(&other).expect("there"), "another's");
        let kept = fs::symlink_metadata(&path).expect("it is kept");
        assert!(kept.is_file());
        assert_eq!((kept.permissions().mode() & 0o777, cache.read().as_deref()), (0o600, Ok("{}")));
    }
}
