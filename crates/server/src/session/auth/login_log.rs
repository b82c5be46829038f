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
pub(crate) struct RefusedLogins(Mutex<Window>);

#[derive(Debug, Default)]
struct Window {
    began_ms: u64,
    lines: u32,
    left_out: u64,
}

impl RefusedLogins {
    /// Tells the log, or counts. `user` is as whom somebody came, if that could be read.
    pub(crate) fn tell(&self, user: Option<&[u8]>, descriptor: Option<RawFd>, unix_ms: u64) {
        let Some(left_out) = self.take_turn(unix_ms) else { return };
        // A client on a Unix socket, or one that has gone.
        let from = descriptor.and_then(peer_address::of).map_or("a client".to_string(), |(peer, _)| peer);
        tracing::warn!("{}", line_of(user, &from, left_out));
    }

    /// How many lines were left out before this one; `None` if this one is to be, too.
    fn take_turn(&self, unix_ms: u64) -> Option<u64> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if unix_ms.saturating_sub(window.began_ms) >= WINDOW_MS {
            (window.began_ms, window.lines) = (unix_ms, 0);
        }
        if window.lines >= LINES_MAX {
            window.left_out += 1;
            return None;
        }
        window.lines += 1;
        Some(std::mem::take(&mut window.left_out))
    }
}

fn line_of(user: Option<&[u8]>, from: &str, left_out: u64) -> String {
    let as_whom = match user {
        Some(name) => {
            let (told, dots) = if name.len() > NAME_BYTES_MAX { (&name[..NAME_BYTES_MAX], "...") } else { (name, "") };
            format!("as \"{}{dots}\"", told.escape_ascii())
        }
        None => "without a user and a password".to_string(),
    };
    let others = if left_out > 0 { format!("; {left_out} others before it were not told") } else { String::new() };
    format!("a login {as_whom} from {from} was refused{others}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_are_told_and_the_others_counted() {
        let (refused, start_ms) = (RefusedLogins::default(), 1_700_000_000_000);
        let told = |after_ms: u64| refused.take_turn(start_ms + after_ms);
        let first: Vec<Option<u64>> = (0..20).map(told).collect();
        assert_eq!(first.iter().flatten().count(), LINES_MAX as usize);
        assert_eq!(told(WINDOW_MS - 1), None);
        assert_eq!((told(WINDOW_MS), told(WINDOW_MS)), (Some(20 - u64::from(LINES_MAX) + 1), Some(0)));
    }

    #[test]
    fn a_line_is_one_whatever_a_name_holds() {
        assert_eq!(line_of(Some(b"ada"), "tcp:[::1]:9", 0), "a login as \"ada\" from tcp:[::1]:9 was refused");
        let forged = line_of(Some(b"x\" ok\n\xff"), "a client", 3);
        assert_eq!(forged, r#"a login as "x\" ok\n\xff" from a client was refused; 3 others before it were not told"#);
        assert!(line_of(Some(&[b'a'; 500]), "a client", 0).contains(&format!("\"{}...\"", "a".repeat(NAME_BYTES_MAX))));
    }
}
