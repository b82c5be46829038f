//! Logs refused logins: the user name that was given, and the client's address.
//!
//! Passwords are never logged. A client that guesses passwords could fill the log, so at most [`LINES_MAX`] lines are
//! written in [`WINDOW`], and the next line says how many were suppressed. `auth_errors` counts all refused logins.

use lookaside_sync::Mutex;
use lookaside_telemetry::LogThrottle;
use std::time::Duration;

/// At most this many lines in each [`WINDOW`].
const LINES_MAX: u32 = 5;

const WINDOW: Duration = Duration::from_secs(10);

/// At most this many bytes of a user name are logged.
const NAME_BYTES_MAX: usize = 64;

/// The log of refused logins.
#[derive(Debug)]
pub struct LoginLog(Mutex<LogThrottle<Duration>>);

impl Default for LoginLog {
    fn default() -> LoginLog {
        LoginLog(Mutex::new(LogThrottle::new(LINES_MAX, WINDOW)))
    }
}

impl LoginLog {
    /// Logs or counts a refused login. `user` is `None` if no name could be read. `peer` looks up the client's address;
    /// `None` for a client on a Unix socket, or one that has disconnected.
    pub fn record(&self, user: Option<&[u8]>, peer: impl FnOnce() -> Option<String>, now_ms: u64) {
        let Some(suppressed) = self.0.lock().allow(Duration::from_millis(now_ms)) else { return };
        let peer = peer().unwrap_or_else(|| "a client".to_string());
        tracing::warn!("{}", format_line(user, &peer, suppressed));
    }
}

fn format_line(user: Option<&[u8]>, peer: &str, suppressed: u64) -> String {
    let user = match user {
        Some(name) => {
            let (shown, dots) = if name.len() > NAME_BYTES_MAX { (&name[..NAME_BYTES_MAX], "...") } else { (name, "") };
            format!("as \"{}{dots}\"", shown.escape_ascii())
        }
        None => "without a user and a password".to_string(),
    };
    let note = if suppressed > 0 { format!("; {suppressed} others before it were not logged") } else { String::new() };
    format!("a login {user} from {peer} was refused{note}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_name_cannot_forge_a_line() {
        assert_eq!(format_line(Some(b"ada"), "tcp:[::1]:9", 0), "a login as \"ada\" from tcp:[::1]:9 was refused");
        let forged = format_line(Some(b"x\" ok\n\xff"), "a client", 3);
        assert_eq!(
            forged,
            r#"a login as "x\" ok\n\xff" from a client was refused; 3 others before it were not logged"#
        );
        let long = format_line(Some(&[b'a'; 500]), "a client", 0);
        assert!(long.contains(&format!("\"{}...\"", "a".repeat(NAME_BYTES_MAX))));
    }

    #[test]
    fn lines_are_limited_and_the_others_counted() {
        let (log, mut logged) = (LoginLog::default(), 0);
        let mut record = |after_ms: u64| {
            let now_ms = 1_700_000_000_000 + after_ms;
            log.record(
                None,
                || {
                    logged += 1;
                    None
                },
                now_ms,
            );
        };
        (0..20).for_each(&mut record);
        record(9_999);
        record(10_000);
        assert_eq!(logged, LINES_MAX + 1);
    }
}
