//! The options of passwords, by the server's names.

use crate::frontend::limits::LOGIN_TIMEOUT;
use crate::frontend::users::Users;
use clap::Args;
use lookaside_authentication::SASL_FILE_VARIABLE;
use std::path::PathBuf;
use std::time::Duration;

/// Whether clients must authenticate, and how this router does at others.
#[derive(Args, Clone, Debug, Default)]
pub struct AuthOptions {
    /// Require authentication (SASL PLAIN) in the binary protocol; the file named by MEMCACHED_SASL_PWDB has a line
    /// user:password for each user. Without -Y the text protocol is off then. SIGHUP reloads the file
    #[arg(short = 'S', long)]
    pub enable_sasl: bool,
    /// Require authentication in the text protocol: a first `set` of any key with `user password` as its value. The
    /// file has a line user:password for each user; a password may be a bcrypt hash (htpasswd -nB). Without -S the
    /// binary protocol is off then. SIGHUP reloads the file
    #[arg(short = 'Y', long, value_name = "FILE")]
    pub auth_file: Option<PathBuf>,
    /// With -S or -Y, close connections whose client has not logged in after this time, in milliseconds; 0 for no
    /// limit. The server's flag is --login-timeout, in seconds
    #[arg(long, value_name = "MS", default_value_t = LOGIN_TIMEOUT.as_millis() as u32, value_parser = clap::value_parser!(u32).range(0..=3_600_000))]
    pub login_timeout_ms: u32,
    /// Log in at the routers of --spool-peers (their -Y), with the line user:password in this file, which is read for
    /// each connection
    #[arg(long, value_name = "FILE", requires = "spool_peers")]
    pub spool_peers_login: Option<PathBuf>,
}

impl AuthOptions {
    /// The time for a client's login; `None` for no limit.
    pub(crate) fn login_timeout(&self) -> Option<Duration> {
        (self.login_timeout_ms > 0).then_some(Duration::from_millis(self.login_timeout_ms.into()))
    }

    /// Reads the users that clients may be; `None` if clients need not authenticate.
    pub(crate) fn open_users(&self) -> Result<Option<Users>, String> {
        let sasl_file = match self.enable_sasl {
            true => Some(std::env::var_os(SASL_FILE_VARIABLE).map(PathBuf::from).ok_or_else(|| {
                format!("-S needs a file of users: name it in {SASL_FILE_VARIABLE}; a line is user:password")
            })?),
            false => None,
        };
        Users::open(self.auth_file.as_deref(), sasl_file.as_deref())
    }
}
