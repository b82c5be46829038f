//! What stands between a stranger and the cache: certificates, and the users of either dialect. Read at the start, while
//! the process has whatever rights it was started with, and anew at SIGHUP.

use crate::cli::Arguments;
use crate::cli::tls::TlsOptions;
use crate::clock::Clock;
use crate::net::tls::certificates::Certificates;
use crate::session::auth::credentials::Credentials;
use anyhow::Context;
use rustix::rand::{GetRandomFlags, getrandom};
use std::path::{Path, PathBuf};

/// Where memcached, built with a password file for SASL, finds it.
pub(crate) const SASL_FILE_VARIABLE: &str = "MEMCACHED_SASL_PWDB";

/// All that a client may be asked for.
pub(crate) struct Secrets {
    /// There if TLS is served.
    pub(crate) certificates: Option<Certificates>,
    /// Whom clients of the binary dialect must prove to be, if anyone.
    pub(crate) users: Option<Credentials>,
    /// The same for clients of the text dialect.
    pub(crate) text_users: Option<Credentials>,
}

impl Secrets {
    /// Reads what the options name.
    pub(crate) fn read(arguments: &Arguments, clock: Clock) -> anyhow::Result<Secrets> {
        Ok(Secrets {
            certificates: read_certificates(arguments, clock)?,
            users: read_sasl_users(arguments)?,
            text_users: read_text_users(arguments)?,
        })
    }

    /// Reads anew what may have changed on disk. What cannot be used is told, and the old stays.
    pub(crate) fn reload(&self, clock: Clock) {
        if let Some(certificates) = &self.certificates {
            match certificates.refresh(clock.now().unix_ms) {
                Ok(()) => tracing::info!("the certificates have been read anew"),
                Err(error) => tracing::error!("the certificates stay as they were: {error}"),
            }
        }
        for users in self.users.iter().chain(&self.text_users) {
            match users.reload() {
                Ok(()) => tracing::info!("{} read anew", users.describe_count()),
                Err(error) => tracing::error!("the users stay as they were: {error}"),
            }
        }
    }
}

fn read_certificates(arguments: &Arguments, clock: Clock) -> anyhow::Result<Option<Certificates>> {
    if !arguments.tls {
        return Ok(None);
    }
    let (options, ignored) = TlsOptions::parse(arguments.compatible.extended()).map_err(anyhow::Error::msg)?;
    ignored.iter().for_each(|line| tracing::info!("{line}"));
    Ok(Some(Certificates::read(options, clock.now().unix_ms)?))
}

/// The users of `-Y`.
fn read_text_users(arguments: &Arguments) -> anyhow::Result<Option<Credentials>> {
    let Some(path) = &arguments.auth_path else { return Ok(None) };
    let users = read_users(path).context("-Y")?;
    tracing::info!("{} may authenticate by a set", users.describe_count());
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
    let users = read_users(&path).with_context(|| format!("-S ({SASL_FILE_VARIABLE})"))?;
    tracing::info!("{} may authenticate by SASL", users.describe_count());
    Ok(Some(users))
}

fn read_users(path: &Path) -> anyhow::Result<Credentials> {
    let mut key = [0; 32];
    getrandom(&mut key, GetRandomFlags::empty()).context("cannot get random bytes from the kernel")?;
    Ok(Credentials::read(path, key)?)
}
