//! Where the keys of a commit come from: comments in its statements, or rows of an outbox or journal table.
//!
//! A key that no server would take (too long, white space, control bytes) cannot be cached under that name either, so
//! leaving it out loses nothing; but somebody meant something by it, so it is counted and logged.

mod sql_comment;

pub use sql_comment::keys_in;

use lookaside_protocol::check_key;

/// So many bytes of a rejected key are shown in the log.
const SHOWN_BYTES_MAX: usize = 80;

/// Appends `key` to `out` if a server would take it; otherwise counts it in `rejected` and logs why.
pub fn accept(key: &[u8], out: &mut Vec<Vec<u8>>, rejected: &mut u64) {
    match check_key(key) {
        Ok(()) => out.push(key.to_vec()),
        Err(why) => {
            *rejected += 1;
            let shown = String::from_utf8_lossy(&key[..key.len().min(SHOWN_BYTES_MAX)]).into_owned();
            tracing::warn!(key = ?shown, %why, "a commit names a key that cannot exist; it is left out");
        }
    }
}

/// Leaves each key once; the order of the rest is by bytes, as the order within one commit means nothing.
pub fn each_once(keys: &mut Vec<Vec<u8>>) {
    keys.sort_unstable();
    keys.dedup();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_a_key_is_counted() {
        let (mut keys, mut rejected) = (Vec::new(), 0);
        for key in [&b"user:42"[..], b"two words", b"", &[b'k'; 251], b"bell\x07", "café".as_bytes(), &[b'k'; 250]] {
            accept(key, &mut keys, &mut rejected);
        }
        assert_eq!(keys, [b"user:42".to_vec(), "café".as_bytes().to_vec(), vec![b'k'; 250]]);
        assert_eq!(rejected, 4);
    }

    #[test]
    fn each_key_stays_once() {
        let mut keys = vec![b"b".to_vec(), b"a".to_vec(), b"b".to_vec()];
        each_once(&mut keys);
        assert_eq!(keys, [b"a".to_vec(), b"b".to_vec()]);
    }
}
