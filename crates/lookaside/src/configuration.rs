//! Loads a router's configuration without a router, for `lookaside check-config` and `lookaside route`.

pub mod check;
pub mod route;
mod running_routers;

use anyhow::{Result, anyhow};
use lookaside_client::DestinationOptions;
use lookaside_client::config::{EtcdLocation, Source};
use lookaside_client::tree::HostInfo;
use lookaside_router::{CertificatePaths, ConfigInputs, Options as RouterOptions, RouterConfig, read_source};
use lookaside_routing::{ConfigurationErrors, Defaults, RoutingPrefix};
use std::{
    io::Read as _,
    path::{Path, PathBuf},
};

const STDIN_BYTES_MAX: u64 = 64 << 20;

/// Options of how a configuration is read.
#[derive(Clone, Debug, clap::Args)]
pub struct ConfigArgs {
    /// The default routing prefix, as given to the router
    #[arg(short = 'R', long, value_name = "PREFIX", default_value = "/././")]
    route_prefix: String,
    /// Constants for the macros of the configuration, as given to the router
    #[arg(long, value_name = "NAME:VALUE[,NAME:VALUE...]")]
    config_params: Option<String>,
    /// The certificate to present to etcd with etcds://, as given to the router
    #[arg(long, value_name = "FILE")]
    pem_cert_path: Option<PathBuf>,
    /// Its private key [default: in the certificate's file]
    #[arg(long, value_name = "FILE", requires = "pem_cert_path")]
    pem_key_path: Option<PathBuf>,
    /// The CAs that sign etcd's certificate with etcds://, as given to the router
    #[arg(long, value_name = "FILE")]
    pem_ca_path: Option<PathBuf>,
}

/// A configuration, or why it is invalid.
pub struct LoadedConfig {
    /// The name of its source, for messages.
    pub source: String,
    pub plan: Result<RouterConfig, ConfigurationErrors>,
}

impl ConfigArgs {
    /// Loads the configuration in `file`: a path, an `etcd://` or `etcds://` location, or `-` for standard input. Its
    /// macros have the constants of a router on the host named `host`. Fails if it cannot be read or an option is
    /// invalid; an invalid configuration is in the result.
    pub fn load(&self, file: &Path, host: &str) -> Result<LoadedConfig> {
        let prefix = RoutingPrefix::parse(&self.route_prefix).map_err(|error| anyhow!("--route-prefix: {error}"))?;
        let defaults = Defaults { prefix, ..Defaults::default() };
        let params = self.config_params.as_deref().unwrap_or_default();
        let host_id = HostInfo::from_name(host, 0).id;
        let constants =
            RouterOptions::constants_without_router(&self.route_prefix, params, host_id).map_err(|why| anyhow!(why))?;
        let (source, text, inputs) = if file.as_os_str() == "-" {
            let mut text = String::new();
            std::io::stdin().take(STDIN_BYTES_MAX).read_to_string(&mut text)?;
            let inputs = ConfigInputs::new(&Source::Text(String::new()), constants);
            ("standard input".to_owned(), text, inputs)
        } else {
            let location = file.to_str().and_then(EtcdLocation::parse).transpose().map_err(|why| anyhow!(why))?;
            let password = std::env::var("LOOKASIDE_ETCD_PASSWORD").ok();
            let source = match location {
                Some(location) => Source::Etcd(location.with_password(password.as_deref())),
                None => Source::File(file.to_owned()),
            };
            let certificates = CertificatePaths {
                chain: self.pem_cert_path.clone(),
                key: self.pem_key_path.clone(),
                authorities: self.pem_ca_path.clone(),
            };
            let text = read_source(&source, certificates).map_err(|why| anyhow!(source.error_context(&why)))?;
            (source.to_string(), text, ConfigInputs::new(&source, constants))
        };
        Ok(LoadedConfig { source, plan: inputs.parse(&text, &defaults, &DestinationOptions::default()) })
    }
}
