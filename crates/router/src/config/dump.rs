//! mcrouter's dump of the configuration (`--config-dump-root`): a copy of each file that a configuration in force was
//! read from, for a start while the files cannot be read or are wrong.
//!
//! ```text
//!   ROOT/SERVICE/ROUTER/file-%2Fetc%2Frouter.json       /mcrouter/5000, for example
//! ```
//!
//! A file is replaced by a rename. Its age is the time since its configuration was last taken.

use super::last_good::replace_file;
use lookaside_client::config::read_config_file;
use lookaside_protocol::percent;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Others may read the dump, as in mcrouter.
const MODE: u32 = 0o664;

#[derive(Debug)]
pub(crate) struct ConfigDump {
    folder: PathBuf,
    /// `None`: none is used.
    age_max: Option<Duration>,
}

impl ConfigDump {
    /// The dump of the router `router` of `service` under `root`. One older than `age_max` is not used.
    pub(crate) fn new(root: &Path, service: &str, router: &str, age_max: Option<Duration>) -> ConfigDump {
        ConfigDump { folder: root.join(service).join(router), age_max }
    }

    /// The copy of the file at `path`, or why there is none that may be used.
    pub(crate) fn read(&self, path: &Path) -> Result<String, String> {
        let copy = self.copy_of(path);
        let age_max = self.age_max.ok_or("dumps are not used (--max-dumped-config-age 0)")?;
        let written = fs::metadata(&copy).and_then(|file| file.modified());
        let written = written.map_err(|error| format!("there is no dump {}: {error}", copy.display()))?;
        // A file of the future is new.
        let age = SystemTime::now().duration_since(written).unwrap_or_default();
        match age > age_max {
            true => Err(format!(
                "the dump {} is {} s old, older than --max-dumped-config-age",
                copy.display(),
                age.as_secs()
            )),
            false => read_config_file(&copy),
        }
    }

    /// Copies the file at `path`, which has this text. A failure is logged only: the running router does not need it.
    pub(crate) fn save(&self, path: &Path, text: &str) {
        let copy = self.copy_of(path);
        let is_known = fs::read_to_string(&copy).is_ok_and(|saved| saved == text);
        let saved = match is_known {
            true => File::options().append(true).open(&copy).and_then(|file| file.set_modified(SystemTime::now())),
            false => fs::create_dir_all(&self.folder).and_then(|()| replace_file(&copy, text, MODE)),
        };
        if let Err(error) = saved {
            tracing::error!(dump = %copy.display(), %error, "cannot dump the configuration; check --config-dump-root");
        }
    }

    /// Removes the copy of the file at `path`, if there is one.
    pub(crate) fn remove(&self, path: &Path) {
        let copy = self.copy_of(path);
        match fs::remove_file(&copy) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::error!(dump = %copy.display(), %error, "cannot remove from the dump; check --config-dump-root");
            }
            _ => {}
        }
    }

    fn copy_of(&self, path: &Path) -> PathBuf {
        self.folder.join(format!("file-{}", percent::encode(path.as_os_str().as_encoded_bytes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_dump_is_the_exact_text_by_service_and_router() {
        let root = tempfile::tempdir().expect("a folder");
        let dump = ConfigDump::new(root.path(), "mcrouter", "0", Some(Duration::from_secs(60)));
        let path = Path::new("/etc/a b.json");
        assert!(dump.read(path).is_err_and(|why| why.contains("no dump")));
        dump.save(path, "{} // exact");
        let copy = root.path().join("mcrouter/0/file-%2Fetc%2Fa%20b.json");
        assert_eq!(fs::read_to_string(&copy).expect("written"), "{} // exact");
        assert_eq!(fs::metadata(&copy).expect("there").permissions().mode() & 0o777, 0o664);
        assert_eq!(dump.read(path).as_deref(), Ok("{} // exact"));
        dump.remove(path);
        assert!(dump.read(path).is_err() && !copy.exists());
        dump.remove(path);
    }

    #[test]
    fn an_old_dump_is_not_used_until_its_configuration_is_taken_again() {
        let root = tempfile::tempdir().expect("a folder");
        let dump = ConfigDump::new(root.path(), "mcrouter", "5000", Some(Duration::from_secs(60)));
        let path = Path::new("/r.json");
        dump.save(path, "{}");
        let copy = File::options().append(true).open(dump.copy_of(path)).expect("there");
        copy.set_modified(SystemTime::now() - Duration::from_secs(90)).expect("it is ours");
        assert!(dump.read(path).is_err_and(|why| why.contains("--max-dumped-config-age")));
        dump.save(path, "{}");
        assert_eq!(dump.read(path).as_deref(), Ok("{}"));
        let never = ConfigDump::new(root.path(), "mcrouter", "5000", None);
        assert!(never.read(path).is_err());
    }
}
