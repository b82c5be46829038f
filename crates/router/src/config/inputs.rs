//! What macros of a configuration may use besides its text: constants of the command line, files beside it, and the
//! addresses of this host. Imported files are watched as the configuration is.

use super::router_config::{RouterConfig, md5_digest};
use lookaside_client::DestinationOptions;
use lookaside_client::config::{
    DEBOUNCE, POLL_INTERVAL, Source, StableReadLimit, UnstableFile, read_config_file, read_stable,
};
use lookaside_routing::{ConfigurationErrors, Defaults, MacroConstant, MacroInputs};
use lookaside_sync::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};
use tokio::{task::spawn_blocking, time::sleep};

/// The texts of files, or why they cannot be read, by path.
pub(crate) type Files = BTreeMap<PathBuf, Result<String, String>>;

/// Why a configuration is not taken from its source.
#[derive(Debug)]
pub(crate) enum ConfigLoadError {
    Invalid(ConfigurationErrors),
    /// A file that it imports.
    Unstable(UnstableFile),
}

impl fmt::Display for ConfigLoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigLoadError::Invalid(errors) => errors.fmt(f),
            ConfigLoadError::Unstable(file) => file.fmt(f),
        }
    }
}

/// The inputs of macros.
#[derive(Debug, Default)]
pub struct ConfigInputs {
    constants: BTreeMap<String, MacroConstant>,
    /// Where relative paths begin.
    folder: PathBuf,
    /// What the configuration that was parsed last has imported.
    imported: Mutex<Files>,
}

impl ConfigInputs {
    /// The inputs of the configuration in `source`: relative paths begin in its folder.
    pub fn new(source: &Source, constants: BTreeMap<String, MacroConstant>) -> ConfigInputs {
        let folder = match source {
            Source::File(path) => path.parent().map(Path::to_owned),
            Source::Etcd(_) | Source::Text(_) => None,
        };
        ConfigInputs { constants, folder: folder.unwrap_or_default(), imported: Mutex::default() }
    }

    /// Parses a configuration that may use these inputs.
    pub fn parse(
        &self,
        text: &str,
        defaults: &Defaults,
        options: &DestinationOptions,
    ) -> Result<RouterConfig, ConfigurationErrors> {
        self.parse_from(text, defaults, options, &|path| read_config_file(path))
    }

    /// The same, with imported files that `read` reads.
    pub(crate) fn parse_from(
        &self,
        text: &str,
        defaults: &Defaults,
        options: &DestinationOptions,
        read: &dyn Fn(&Path) -> Result<String, String>,
    ) -> Result<RouterConfig, ConfigurationErrors> {
        self.imported.lock().clear();
        let import = |path: &str| {
            let path = self.folder.join(path);
            let known = self.imported.lock().get(&path).cloned();
            let content = known.unwrap_or_else(|| read(&path));
            self.imported.lock().insert(path, content.clone());
            content
        };
        let inputs = MacroInputs { constants: &self.constants, import: &import, is_local_ip: &is_local_ip };
        let config = RouterConfig::parse_with(text, defaults, options, &inputs)?;
        let digest = |(path, text): (PathBuf, Result<String, String>)| {
            Some((path.display().to_string(), md5_digest(&text.ok()?)))
        };
        Ok(config.with_imported(self.imported().into_iter().filter_map(digest).collect()))
    }

    /// The same, while imported files may be replaced: the configuration is parsed until they stay as they were read
    /// for a moment. A file that is absent for as long as its replacement takes must not give an `@import` its default.
    /// One that never stays as it was read is an error, and [`ConfigInputs::wait_for_change`] resolves when it does.
    pub(crate) async fn parse_stable(
        &self,
        text: &str,
        defaults: &Defaults,
        options: &DestinationOptions,
    ) -> Result<RouterConfig, ConfigLoadError> {
        let mut limit = StableReadLimit::start();
        loop {
            let parsed = self.parse(text, defaults, options);
            if self.imported.lock().is_empty() {
                return parsed.map_err(ConfigLoadError::Invalid);
            }
            sleep(DEBOUNCE).await;
            let changed = self.find_changed().await;
            let Some(path) = changed.first() else { return parsed.map_err(ConfigLoadError::Invalid) };
            if let Err(unstable) = limit.record_difference(path) {
                // Whatever it is when it no longer changes, it was not read.
                let unread = |path| (path, Err(unstable.to_string()));
                self.imported.lock().extend(changed.into_iter().map(unread));
                return Err(ConfigLoadError::Unstable(unstable));
            }
        }
    }

    /// What the configuration that was parsed last has imported.
    pub(crate) fn imported(&self) -> Files {
        self.imported.lock().clone()
    }

    /// Watches these files instead of those that were imported last.
    pub(crate) fn watch(&self, imported: Files) {
        *self.imported.lock() = imported;
    }

    /// Resolves when an imported file has changed, and is not being replaced.
    pub(crate) async fn wait_for_change(&self) {
        loop {
            sleep(POLL_INTERVAL).await;
            for path in self.find_changed().await {
                // One that changes all the time is read when it no longer does.
                let Ok(stable) = read_stable(&path).await else { continue };
                if self.imported.lock().get(&path) != Some(&stable) {
                    return;
                }
            }
        }
    }

    /// The imported files that are not as they were when the configuration was parsed.
    async fn find_changed(&self) -> Vec<PathBuf> {
        let imported = self.imported();
        if imported.is_empty() {
            return Vec::new();
        }
        let is_changed = |(path, content): &(PathBuf, _)| read_config_file(path) != *content;
        let find = move || imported.into_iter().filter(is_changed).map(|(path, _)| path).collect();
        spawn_blocking(find).await.expect("reading does not panic")
    }
}

/// Whether a socket can be bound to the address.
fn is_local_ip(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok_and(|ip| !ip.is_unspecified() && UdpSocket::bind((ip, 0)).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::fs;
    use std::pin::pin;
    use tokio::time::timeout;

    #[test]
    fn addresses_of_this_host_are_known() {
        assert!(is_local_ip("127.0.0.1") && !is_local_ip("192.0.2.1") && !is_local_ip("0.0.0.0") && !is_local_ip("x"));
    }

    /// The text of a configuration in force is kept and read again without its files, after which those may be others.
    #[test]
    fn an_imported_file_is_part_of_the_text() {
        let folder = tempfile::tempdir().expect("a folder");
        let (main, part) = (folder.path().join("router.json"), folder.path().join("pool.json"));
        fs::write(&part, r#"{ "servers": ["a:%port%"] }"#).expect("written");
        let constants = BTreeMap::from([("port".to_owned(), MacroConstant::Text("7".to_owned()))]);
        let inputs = ConfigInputs::new(&Source::File(main), constants);
        let parse = |text: &str| inputs.parse(text, &Defaults::default(), &DestinationOptions::default());
        let text = r#"{ "pools": { "A": "@import(file:pool.json)" }, "route": "PoolRoute|A" }"#;
        let config = parse(text).expect("it is valid");
        assert_eq!(servers(&config), ["a:7"]);
        assert_eq!(inputs.imported().keys().collect::<Vec<_>>(), [&part]);
        fs::remove_file(&part).expect("there");
        let again = RouterConfig::parse(config.text(), &Defaults::default(), &DestinationOptions::default());
        assert_eq!(servers(&again.expect("its text is enough")), ["a:7"]);
        assert!(parse(text).is_err_and(|errors| errors.to_string().contains("pool.json")));
        let plain = r#"{ "route": "NullRoute" } // kept"#;
        assert_eq!(parse(plain).expect("valid").text(), plain, "a text without inputs stays as it is");
    }

    const WITH_DEFAULT: &str = r#"{
        "pools": { "A": { "type": "import", "path": "pool.json", "default": { "servers": ["default:1"] } } },
        "route": "PoolRoute|A"
    }"#;

    fn servers(config: &RouterConfig) -> Vec<String> {
        config.servers().into_iter().map(|server| server.to_string()).collect()
    }

    /// A program that deletes a file before it writes it again, or writes it in two steps, was caught in between: the
    /// default came into force, a resize began, and the file's next content was another change.
    #[tokio::test(start_paused = true)]
    async fn a_file_that_is_being_replaced_has_not_changed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (main, part) = (folder.path().join("router.json"), folder.path().join("pool.json"));
        fs::write(&part, r#"{ "servers": ["a:1"] }"#).expect("written");
        let inputs = ConfigInputs::new(&Source::File(main), BTreeMap::new());
        let config = inputs.parse(WITH_DEFAULT, &Defaults::default(), &DestinationOptions::default()).expect("valid");
        assert_eq!(servers(&config), ["a:1"]);
        fs::remove_file(&part).expect("there");
        let restore = async {
            sleep(POLL_INTERVAL + DEBOUNCE / 2).await;
            fs::write(&part, r#"{ "servers": ["a:1"] }"#).expect("written");
        };
        let waiting = tokio::time::timeout(POLL_INTERVAL * 5, inputs.wait_for_change());
        assert!(tokio::join!(waiting, restore).0.is_err(), "the file is as it was");
        fs::remove_file(&part).expect("there");
        tokio::time::timeout(POLL_INTERVAL * 5, inputs.wait_for_change()).await.expect("it stays removed");
    }

    /// A configuration and what it imports are often replaced together. The import was read once, and if that was in
    /// the middle of its replacement, the default was in force for a second.
    #[tokio::test(start_paused = true)]
    async fn a_file_that_is_being_replaced_is_read_when_it_is_complete() {
        let folder = tempfile::tempdir().expect("a folder");
        let (main, part) = (folder.path().join("router.json"), folder.path().join("pool.json"));
        let inputs = ConfigInputs::new(&Source::File(main), BTreeMap::new());
        let (defaults, options) = (Defaults::default(), DestinationOptions::default());
        let replace = async {
            for content in [r#"{ "servers": ["#, r#"{ "servers": ["a:1"] }"#] {
                sleep(DEBOUNCE / 2).await;
                fs::write(&part, content).expect("written");
            }
        };
        let (config, ()) = tokio::join!(inputs.parse_stable(WITH_DEFAULT, &defaults, &options), replace);
        let config = config.expect("it is valid when it is complete");
        assert_eq!((servers(&config), config.warnings()), (vec!["a:1".to_owned()], &[][..]));
        // One that stays away gives the default, with a warning.
        fs::remove_file(&part).expect("there");
        let config = inputs.parse_stable(WITH_DEFAULT, &defaults, &options).await.expect("valid");
        let warnings = config.warnings().iter().map(ToString::to_string).collect::<Vec<_>>();
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(warning.contains("pool.json") && warning.ends_with("; the default is used"), "{warning}");
        assert_eq!(servers(&config), ["default:1"]);
    }

    /// It was read without end: the router took no other configuration either, and logged nothing.
    #[tokio::test(start_paused = true)]
    async fn an_import_that_changes_all_the_time_is_refused_until_it_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let (main, part) = (folder.path().join("router.json"), folder.path().join("pool.json"));
        let inputs = ConfigInputs::new(&Source::File(main), BTreeMap::new());
        let (defaults, options) = (Defaults::default(), DestinationOptions::default());
        let write = |port: u16| fs::write(&part, format!(r#"{{ "servers": ["a:{port}"] }}"#)).expect("written");
        let last = Cell::new(0);
        let mut rewriting = pin!(async {
            for port in (1..=u16::MAX).cycle() {
                write(port);
                last.set(port);
                sleep(DEBOUNCE / 2).await;
            }
        });
        let loaded = tokio::select! {
            loaded = inputs.parse_stable(WITH_DEFAULT, &defaults, &options) => loaded,
            () = &mut rewriting => unreachable!("it does not end"),
        };
        let why = loaded.expect_err("no two reads agree").to_string();
        assert!(why.contains("pool.json") && why.contains("all the time"), "{why}");
        let refused_at = last.get();
        tokio::select! {
            changed = timeout(POLL_INTERVAL * 20, inputs.wait_for_change()) => assert!(changed.is_err(), "not yet"),
            () = &mut rewriting => unreachable!("it does not end"),
        }
        // Also if it stays as it was at the last of the reads for the configuration.
        for port in refused_at.saturating_sub(9)..=refused_at {
            write(port);
            timeout(POLL_INTERVAL * 5, inputs.wait_for_change()).await.expect("it stays");
        }
        assert!(inputs.parse_stable(WITH_DEFAULT, &defaults, &options).await.is_ok());
        assert!(timeout(POLL_INTERVAL * 5, inputs.wait_for_change()).await.is_err(), "it was read");
    }
}
