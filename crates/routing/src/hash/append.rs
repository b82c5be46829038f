//! A key with something appended, hashed without an allocation.

/// Keys with an appended salt fit into this, unless the salt is unusually long.
const APPENDED_BYTES: usize = 512;

pub(super) fn with_appended<T>(key: &[u8], suffix: &[u8], read: impl FnOnce(&[u8]) -> T) -> T {
    let total = key.len() + suffix.len();
    let mut buffer = [0; APPENDED_BYTES];
    match buffer.get_mut(..total) {
        Some(salted) => {
            salted[..key.len()].copy_from_slice(key);
            salted[key.len()..].copy_from_slice(suffix);
            read(salted)
        }
        None => read(&[key, suffix].concat()),
    }
}
