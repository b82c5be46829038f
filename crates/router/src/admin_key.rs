//! Keys that the router answers itself. Clients read them (`admin`), and routers of a cluster exchange their fences by
//! them (`spool`).

pub(crate) const ADMIN_KEY_PREFIX: &[u8] = b"__mcrouter__.";

/// Whether the router answers a get of `key` itself.
pub(crate) fn is_admin_key(key: &[u8]) -> bool {
    key.starts_with(ADMIN_KEY_PREFIX)
}
