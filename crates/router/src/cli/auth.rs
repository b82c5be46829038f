//! The options of passwords, by the server's names.

use crate::frontend::users::Users;
use clap::Args;
use lookaside_authentication::SASL_FILE_VARIABLE;
use std::path::PathBuf;

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
    /// Log in at the routers of --spool-peers (their -Y), with the line user:password in this file, which is read for
    /// each connection
    #[arg(long, value_name = "FILE", requires = "spool_peers")]
    pub spool_peers_login: Option<PathBuf>,
}

impl AuthOptions {
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
