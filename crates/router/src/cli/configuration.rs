//! The options of the configuration: where it is, and when it is read.

use clap::Args;
use lookaside_client::config::{EtcdLocation, Source, without_user};
use std::path::PathBuf;
use std::str::FromStr;

/// Where the configuration is.
#[derive(Args, Clone, Debug)]
pub struct ConfigurationOptions {
    /// The configuration: `file:PATH`, a key in etcd, `etcd://[USER@]HOST:PORT[,HOST:PORT...]/KEY` (`etcds://` for
    /// TLS), or the JSON itself. File and key are watched. It overrides the next two
    #[arg(long, value_name = "file:PATH|etcd://...")]
    pub config: Option<String>,
    /// The configuration file. It is watched; an invalid change is refused
    #[arg(short = 'f', long, value_name = "PATH")]
    pub config_file: Option<PathBuf>,
    /// The configuration itself
    #[arg(long, value_name = "JSON")]
    pub config_str: Option<String>,
    /// Save the last good configuration to this file, and start from it if the configuration cannot be read or is
    /// invalid
    #[arg(long, value_name = "PATH")]
    pub config_cache: Option<PathBuf>,
    /// Share the history of the configuration's changes with the other routers of the cluster in this key of etcd and
    /// below it, `etcd://[USER@]HOST:PORT[,HOST:PORT...]/KEY` (`etcds://` for TLS). Routers whose configuration is in
    /// etcd do so without this option, with the configuration's key and `.history` as KEY
    #[arg(long, value_name = "etcd://...")]
    pub config_history: Option<String>,
    /// The password of the user in etcd://USER@...; better given in the environment, which other users cannot see
    #[arg(long, value_name = "PASSWORD", env = "LOOKASIDE_ETCD_PASSWORD", hide_env_values = true)]
    pub etcd_password: Option<String>,
    /// Keep a copy of each file of the configuration in force below this folder, in DIR/SERVICE/PORT, and start from it
    /// if a file cannot be read or is wrong; not used with --config-cache
    #[arg(long, value_name = "DIR")]
    pub config_dump_root: Option<PathBuf>,
    /// Do not start from copies that are older than this, in seconds; 0 for never
    #[arg(long, value_name = "SECONDS", default_value_t = 43_200)]
    pub max_dumped_config_age: u64,
    /// Constants for the macros of the configuration, as text
    #[arg(long, value_name = "NAME:VALUE[,NAME:VALUE...]", value_delimiter = ',', value_parser = parse_constant)]
    pub config_params: Vec<(String, String)>,
    /// The same; overrides --config-params
    #[arg(long, value_name = "NAME:VALUE[,NAME:VALUE...]", value_delimiter = ',', value_parser = parse_constant)]
    pub additional_config_params: Vec<(String, String)>,
    /// Read the configuration once, at the start
    #[arg(long)]
    pub disable_reload_configs: bool,
    /// Check the configuration. `exit`, the default: print its errors, and exit with status 0 or 3. `run`: exit with
    /// status 3 if it is wrong, even if there is a last good one, and serve otherwise
    #[arg(long, value_name = "exit|run", num_args = 0..=1, require_equals = true, default_missing_value = "exit")]
    pub validate_config: Option<Validation>,
}

fn parse_constant(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("expected NAME:VALUE")?;
    Ok((name.trim().to_owned(), value.to_owned()))
}

/// The value of `--validate-config`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validation {
    /// Exit after the check.
    Exit,
    /// Serve if there are no errors.
    Run,
}

impl FromStr for Validation {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Validation, Self::Err> {
        match text {
            "exit" => Ok(Validation::Exit),
            "run" => Ok(Validation::Run),
            _ => Err("expected exit or run"),
        }
    }
}

impl ConfigurationOptions {
    /// The source of the configuration.
    pub fn source(&self) -> Result<Source, String> {
        if let Some(location) = self.config.as_deref().and_then(EtcdLocation::parse) {
            let location = location.map_err(|why| format!("--config: {why}"))?;
            return Ok(Source::Etcd(location.with_password(self.etcd_password.as_deref())));
        }
        match (&self.config, &self.config_file, &self.config_str) {
            (Some(config), _, _) => match config.strip_prefix("file:") {
                Some(path) => Ok(Source::File(path.into())),
                None if config.trim_start().starts_with(['{', '/']) => Ok(Source::Text(config.clone())),
                None => Err(format!(
                    "--config {}: neither file:PATH nor etcd:// nor JSON; give a path with -f PATH",
                    without_user(config)
                )),
            },
            (_, Some(_), Some(_)) => Err("-f and --config-str are both given: expected one of them".to_owned()),
            (_, Some(path), _) => match path.to_str().filter(|path| path.contains("://")) {
                Some(path) => {
                    Err(format!("-f {}: not the path of a file; use --config for etcd://", without_user(path)))
                }
                None => Ok(Source::File(path.clone())),
            },
            (_, _, Some(text)) => Ok(Source::Text(text.clone())),
            _ => Err("no configuration; give one with -f PATH, --config or --config-str".to_owned()),
        }
    }

    /// Where the history of changes of the configuration in `source` is, of all clusters that share it; `None` if
    /// routers share none.
    pub(crate) fn history(&self, source: &Source) -> Result<Option<EtcdLocation>, String> {
        let beside = match source {
            Source::Etcd(location) => {
                Some(EtcdLocation { key: format!("{}.history", location.key), ..location.clone() })
            }
            Source::File(_) | Source::Text(_) => None,
        };
        let Some(text) = &self.config_history else { return Ok(beside) };
        let location = EtcdLocation::parse(text).ok_or_else(|| {
            format!("--config-history {}: expected etcd://HOST:PORT[,HOST:PORT...]/KEY", without_user(text))
        })?;
        let location = location.map_err(|why| format!("--config-history: {why}"))?;
        let location = location.with_password(self.etcd_password.as_deref());
        match beside {
            Some(beside) if beside != location => Err(format!(
                "--config-history {location}: the configuration is in etcd, and the history of its changes is beside \
                 it, at {beside} for the user of --config; remove --config-history"
            )),
            _ => Ok(Some(location)),
        }
    }
}
