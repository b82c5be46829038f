//! The users of clients that must authenticate (`-Y`, `-S`), as on `lookaside-server`.

use crate::stats::counters::Counters;
use lookaside_authentication::{Credentials, LoginAttempt, LoginLog};
use std::fmt;
use std::net::IpAddr;
use std::path::Path;

/// Clients' users. A router without any serves every client.
pub struct Users {
    /// Of the text protocol; `None` if it is not served.
    text: Option<Credentials>,
    /// Of the binary protocol; `None` if it is not served.
    sasl: Option<Credentials>,
    log: LoginLog,
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users").finish_non_exhaustive()
    }
}

impl Users {
    /// Reads the users' files. `None` without any file.
    pub fn open(text: Option<&Path>, sasl: Option<&Path>) -> Result<Option<Users>, String> {
        if text.is_none() && sasl.is_none() {
            return Ok(None);
        }
        let open = |path: Option<&Path>, option| {
            path.map(Credentials::open).transpose().map_err(|error| format!("{option}: {error:#}"))
        };
        Ok(Some(Users { text: open(text, "-Y")?, sasl: open(sasl, "-S")?, log: LoginLog::default() }))
    }

    /// Reloads the files. One that cannot be used is logged, and its users stay.
    pub(crate) fn reload_and_log(&self) {
        self.text.iter().chain(&self.sasl).for_each(Credentials::reload_and_log);
    }

    pub(super) fn text(&self) -> Option<&Credentials> {
        self.text.as_ref()
    }

    pub(super) fn sasl(&self) -> Option<&Credentials> {
        self.sasl.as_ref()
    }

    /// Whether a client speaks the binary protocol: only the protocols that have users are served. `None` if its first
    /// byte decides.
    pub(super) fn is_binary(&self) -> Option<bool> {
        match (&self.text, &self.sasl) {
            (Some(_), Some(_)) => None,
            (_, sasl) => Some(sasl.is_some()),
        }
    }

    /// Counts a login, and logs it if it was refused.
    pub(super) fn record(&self, attempt: LoginAttempt<'_>, peer: Option<IpAddr>, now_ms: u64, counters: &Counters) {
        counters.auth_cmds.add(1);
        if let LoginAttempt::Refused { user } = attempt {
            counters.auth_errors.add(1);
            self.log.record(user, || peer.map(|peer| peer.to_string()), now_ms);
        }
    }
}
