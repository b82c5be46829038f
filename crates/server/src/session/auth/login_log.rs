//! Refused logins on their way into the log: as whom somebody came, and from where. Serves operators, and no request.
//!
//! The password is never told. A client that guesses could fill the log, so [`LINES_MAX`] lines are written in
//! [`WINDOW_MS`], and the next one after that says how many were left out; all of them count in `auth_errors`.

use crate::net::peer_address;
use std::os::fd::RawFd;
use std::sync::{Mutex, PoisonError};

/// How many lines are written in one window of time.
const LINES_MAX: u32 = 5;

/// Its length, in milliseconds.
const WINDOW_MS: u64 = 10_000;

/// How much of a user's name is told, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// What the log has been told lately.
#[derive(Debug, Default)]
pub(crate) struct LoginLog(Mutex<Window>);

#[derive(Debug, Default)]
struct Window {
    began_ms: u64,
    lines: u32,
    omitted: u64,
}

impl LoginLog {
    /// Tells the log, or counts. `user` is as whom somebody came, if that could be read.
    pub(crate) fn record(&self, user: Option<&[u8]>, descriptor: Option<RawFd>, unix_ms: u64) {
        let Some(omitted) = self.count_line(unix_ms) else { return };
        // A client on a Unix socket, or one that has gone.
        let from = descriptor.and_then(peer_address::endpoints).map_or("a client".to_string(), |(peer, _)| peer);
        tracing::warn!("{}", format_line(user, &from, omitted));
    }

    /// How many lines were left out before this one; `None` if this one is to be, too.
    fn count_line(&self, unix_ms: u64) -> Option<u64> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if unix_ms.saturating_sub(window.began_ms) >= WINDOW_MS {
            (window.began_ms, window.lines) = (unix_ms, 0);
        }
        if window.lines >= LINES_MAX {
            window.omitted += 1;
            return None;
        }
        window.lines += 1;
        Some(std::mem::take(&mut window.omitted))
    }
}

fn format_line(user: Option<&[u8]>, from: &str, omitted: u64) -> String {
    let user = match user {
        Some(name) => {
            let (logged, dots) =
                if name.len() > NAME_BYTES_MAX { (&name[..NAME_BYTES_MAX], "...") } else { (name, "") };
            format!("as \"{}{dots}\"", logged.escape_ascii())
        }
        None => "without a user and a password".to_string(),
    };
    let note = if omitted > 0 { format!("; {omitted} others before it were not told") } else { String::new() };
    format!("a login {user} from {from} was refused{note}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_are_told_and_the_others_counted() {
        let (refused, start_ms) = (LoginLog::default(), 1_700_000_000_000);
        let logged = |after_ms: u64| refused.count_line(start_ms + after_ms);
        let first: Vec<Option<u64>> = (0..20).map(logged).collect();
        assert_eq!(first.iter().flatten().count(), LINES_MAX as usize);
        assert_eq!(logged(WINDOW_MS - 1), None);
        assert_eq!((logged(WINDOW_MS), logged(WINDOW_MS)), (Some(20 - u64::from(LINES_MAX) + 1), Some(0)));
    }

    #[test]
    fn a_line_is_one_whatever_a_name_holds() {
        assert_eq!(format_line(Some(b"ada"), "tcp:[::1]:9", 0), "a login as \"ada\" from tcp:[::1]:9 was refused");
        let forged = format_line(Some(b"x\" ok\n\xff"), "a client", 3);
        assert_eq!(forged, r#"a login as "x\" ok\n\xff" from a client was refused; 3 others before it were not told"#);
        assert!(
            format_line(Some(&[b'a'; 500]), "a client", 0).contains(&format!("\"{}...\"", "a".repeat(NAME_BYTES_MAX)))
        );
    }
}
