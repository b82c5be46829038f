//! What macros of a configuration may use besides its text: constants of the command line, files beside it, and the
//! addresses of this host. Imported files are watched as the configuration is.

use super::router_config::{RouterConfig, md5_digest};
use lookaside_client::DestinationOptions;
use lookaside_client::config::{POLL_INTERVAL, Source, read_config_file};
use lookaside_routing::{ConfigurationErrors, Defaults, MacroConstant, MacroInputs};
use lookaside_sync::Mutex;
use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};
use tokio::time::sleep;

/// The texts of files, or why they cannot be read, by path.
pub(crate) type Files = BTreeMap<PathBuf, Result<String, String>>;

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

    /// What the configuration that was parsed last has imported.
    pub(crate) fn imported(&self) -> Files {
        self.imported.lock().clone()
    }

    /// Resolves when an imported file has changed.
    pub(crate) async fn wait_for_change(&self) {
        loop {
            sleep(POLL_INTERVAL).await;
            let imported = self.imported();
            if imported.iter().any(|(path, content)| read_config_file(path) != *content) {
                return;
            }
        }
    }
}

/// Whether a socket can be bound to the address.
fn is_local_ip(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok_and(|ip| !ip.is_unspecified() && UdpSocket::bind((ip, 0)).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

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
        let servers =
            |config: &RouterConfig| config.servers().into_iter().map(|server| server.to_string()).collect::<Vec<_>>();
        assert_eq!(servers(&config), ["a:7"]);
        assert_eq!(inputs.imported().keys().collect::<Vec<_>>(), [&part]);
        fs::remove_file(&part).expect("there");
        let again = RouterConfig::parse(config.text(), &Defaults::default(), &DestinationOptions::default());
        assert_eq!(servers(&again.expect("its text is enough")), ["a:7"]);
        assert!(parse(text).is_err_and(|errors| errors.to_string().contains("pool.json")));
        let plain = r#"{ "route": "NullRoute" } // kept"#;
        assert_eq!(parse(plain).expect("valid").text(), plain, "a text without inputs stays as it is");
    }
}
