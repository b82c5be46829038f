//! A router's configuration, read where there is no router: `lookaside check-config` and `lookaside route`.

pub mod check;
pub mod route;

use anyhow::{Result, anyhow};
use lookaside_client::DestinationOptions;
use lookaside_router::{Plan, Source};
use lookaside_routing::{ConfigurationError, Defaults, RoutingPrefix};
use std::{io::Read as _, path::Path};

/// The largest configuration that is taken from standard input, in bytes.
const STDIN_BYTES_MAX: u64 = 64 << 20;

/// Which configuration, and how it is to be read.
#[derive(Clone, Debug, clap::Args)]
pub struct Which {
    /// The prefix of keys that come without one, as the router is started with
    #[arg(short = 'R', long, value_name = "PREFIX", default_value = "/././")]
    route_prefix: String,
}

/// What came of reading a configuration.
pub struct Read {
    /// Where it was read from, for messages.
    pub source: String,
    pub plan: Result<Plan, ConfigurationError>,
}

impl Which {
    /// Reads the configuration in `file`, `-` for standard input. An error here is one of the file or of the command
    /// line, not of what the file says.
    pub fn read(&self, file: &Path) -> Result<Read> {
        let prefix = RoutingPrefix::parse(&self.route_prefix).map_err(|error| anyhow!("--route-prefix: {error}"))?;
        let defaults = Defaults { prefix, ..Defaults::default() };
        let (source, text) = if file.as_os_str() == "-" {
            let mut text = String::new();
            std::io::stdin().take(STDIN_BYTES_MAX).read_to_string(&mut text)?;
            ("standard input".to_owned(), text)
        } else {
            let source = Source::File(file.to_owned());
            let text = source.read().map_err(|why| anyhow!(source.blame(&why)))?;
            (source.to_string(), text)
        };
        Ok(Read { source, plan: Plan::read(&text, &defaults, &DestinationOptions::default()) })
    }
}
