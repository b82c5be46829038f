//! `lookaside check-config`: reports errors in a configuration before it is deployed.

use super::{ConfigArgs, LoadedConfig};
use anyhow::{Result, bail};
use lookaside_router::RouterConfig;
use lookaside_routing::{ConfigurationErrors, RoutingPrefix};
use serde_json::{Value, json};
use std::{io::Write as _, path::PathBuf};

const EXAMPLES: &str = "Examples:
  lookaside check-config /etc/lookaside/router.json
  render-template router.json.in | lookaside check-config -
  lookaside check-config etcd://10.0.0.4:2379/lookaside/one
  lookaside check-config etcds://10.0.0.4:2379/lookaside/one --pem-ca-path ca.pem
  lookaside check-config --json router.json | jq .errors

Exit status: 0 the configuration is valid; 1 it is not; 2 usage error.";

/// Options of `lookaside check-config`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// The configuration: a file, - for standard input, or etcd://[USER@]HOST:PORT/KEY (the password in
    /// LOOKASIDE_ETCD_PASSWORD; etcds:// for TLS)
    #[allow(rustdoc::broken_intra_doc_links, reason = "the text of --help")]
    file: PathBuf,
    #[command(flatten)]
    config_args: ConfigArgs,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Checks the configuration. Fails with line, column and reason of each error.
pub fn run(options: &Options) -> Result<()> {
    let LoadedConfig { source, plan } = options.config_args.load(&options.file, "")?;
    let mut out = std::io::stdout().lock();
    if options.json {
        writeln!(out, "{}", report(&source, &plan))?;
    }
    let plan = match plan {
        Ok(plan) => plan,
        Err(errors) if errors.iter().count() == 1 => bail!("{source}: {errors}"),
        Err(errors) => {
            errors.iter().for_each(|error| eprintln!("lookaside: {source}: {error}"));
            let (more, count) = (if errors.has_more() { "more than " } else { "" }, errors.iter().count());
            bail!("{source}: the configuration has {more}{count} errors")
        }
    };
    if !options.json {
        for warning in plan.warnings() {
            eprintln!("lookaside: {source}: {warning}");
        }
        writeln!(out, "{source}: the configuration is good: {}", summarize(&plan))?;
    }
    Ok(())
}

fn summarize(plan: &RouterConfig) -> String {
    let prefixes = plan.configuration().trees.iter().flat_map(|(prefixes, _)| prefixes);
    let prefixes: Vec<&str> = prefixes.map(RoutingPrefix::as_str).collect();
    let servers = match plan.servers().len() {
        1 => "1 server".to_owned(),
        servers => format!("{servers} servers"),
    };
    format!("{servers}, routing prefixes {}", prefixes.join(" "))
}

fn report(source: &str, plan: &Result<RouterConfig, ConfigurationErrors>) -> Value {
    let finding = |line, column, path: &str, message: &str| json!({ "line": line, "column": column, "path": path, "message": message });
    let (mut errors, mut warnings, mut addresses) = (Vec::new(), Vec::new(), Vec::new());
    match plan {
        Ok(plan) => {
            let findings = plan.warnings().iter();
            warnings = findings.map(|one| finding(one.line, one.column, &one.path, &one.message)).collect();
            addresses = plan.servers().into_iter().map(|address| address.to_string()).collect();
        }
        Err(found) => {
            errors = found.iter().map(|one| finding(one.line, one.column, &one.path, &one.message)).collect();
        }
    }
    json!({ "source": source, "good": plan.is_ok(), "errors": errors, "warnings": warnings, "servers": addresses })
}
