//! Reads certificates and users, while the process still has the rights of the user that started it.

use crate::cli::Arguments;
use crate::cli::tls::parse_tls_options;
use crate::clock::Clock;
use crate::net::tls::certificates::Certificates;
use crate::shared::Secrets;
use anyhow::Context;
use lookaside_authentication::{Credentials, SASL_FILE_VARIABLE};
use std::path::PathBuf;

pub(crate) fn read_secrets(arguments: &Arguments, clock: Clock) -> anyhow::Result<Secrets> {
    Ok(Secrets {
        certificates: read_certificates(arguments, clock)?,
        sasl_users: read_sasl_users(arguments)?,
        text_users: read_text_users(arguments)?,
    })
}

fn read_certificates(arguments: &Arguments, clock: Clock) -> anyhow::Result<Option<Certificates>> {
    if !arguments.tls {
        return Ok(None);
    }
    let (options, ignored) = parse_tls_options(arguments.compatible.extended()).map_err(anyhow::Error::msg)?;
    ignored.iter().for_each(|line| tracing::info!("{line}"));
    if options.authorities_path.is_none() && arguments.has_mutual_tls() {
        tracing::warn!(
            "no client can connect where -l says mtls: there is no -o ssl_ca_cert=FILE to verify certificates against"
        );
    }
    Ok(Some(Certificates::read(options, clock.now().unix_ms)?))
}

/// The users of `-Y`.
fn read_text_users(arguments: &Arguments) -> anyhow::Result<Option<Credentials>> {
    let Some(path) = &arguments.auth_path else { return Ok(None) };
    let users = Credentials::open(path).context("-Y")?;
    tracing::info!("{} can authenticate with a set", users.describe_count());
    Ok(Some(users))
}

/// The users of `-S`.
fn read_sasl_users(arguments: &Arguments) -> anyhow::Result<Option<Credentials>> {
    if !arguments.enable_sasl {
        return Ok(None);
    }
    let Some(path) = std::env::var_os(SASL_FILE_VARIABLE).map(PathBuf::from) else {
        anyhow::bail!("-S needs a file of users: {SASL_FILE_VARIABLE} is not set");
    };
    let users = Credentials::open(&path).with_context(|| format!("-S ({SASL_FILE_VARIABLE})"))?;
    tracing::info!("{} can authenticate with SASL", users.describe_count());
    Ok(Some(users))
}
