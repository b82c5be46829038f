//! The keys that a commit names: in comments of its statements, or in rows of an outbox or journal table.
//!
//! A key that servers refuse (too long, white space, control bytes) cannot be cached, so ignoring it loses no delete.
//! It may be a mistake of the application, so it is counted and logged.

mod flush;
mod sql_comment;
mod sql_mode;

pub use flush::{FLUSH_CLUSTER, Flush};
pub use sql_comment::extract_keys;
pub(crate) use sql_comment::{line_bytes, opens_line_comment};
pub use sql_mode::SqlMode;

use lookaside_protocol::check_key;

/// The most bytes of a rejected key in the log.
const LOGGED_BYTES_MAX: usize = 80;

/// Appends `key` to `out` if it is valid; otherwise counts it in `rejected` and logs why.
pub fn push_valid_key(key: &[u8], out: &mut Vec<Vec<u8>>, rejected: &mut u64) {
    match check_key(key) {
        Ok(()) => out.push(key.to_vec()),
        Err(why) => {
            *rejected += 1;
            let key = String::from_utf8_lossy(&key[..key.len().min(LOGGED_BYTES_MAX)]).into_owned();
            tracing::warn!(?key, %why, "ignoring invalid key in commit");
        }
    }
}

/// Sorts the keys and removes duplicates. Their order within a commit is irrelevant.
pub fn sort_and_dedup(keys: &mut Vec<Vec<u8>>) {
    keys.sort_unstable();
    keys.dedup();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_keys_are_counted() {
        let (mut keys, mut rejected) = (Vec::new(), 0);
        for key in [
            FLUSH_CLUSTER,
            &b"user:42"[..],
            b"two words",
            b"",
            &[b'k'; 251],
            b"bell\x07",
            "café".as_bytes(),
            &[b'k'; 250],
        ] {
            push_valid_key(key, &mut keys, &mut rejected);
        }
        assert_eq!(keys, [b"user:42".to_vec(), "café".as_bytes().to_vec(), vec![b'k'; 250]]);
        assert_eq!(rejected, 5);
    }

    #[test]
    fn duplicates_are_removed() {
        let mut keys = vec![b"b".to_vec(), b"a".to_vec(), b"b".to_vec()];
        sort_and_dedup(&mut keys);
        assert_eq!(keys, [b"a".to_vec(), b"b".to_vec()]);
    }
}
