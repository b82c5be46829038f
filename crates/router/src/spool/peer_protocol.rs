//! The requests between the routers of a cluster: gets of keys that the router answers itself, on the port for clients.
//!
//! | get of `__mcrouter__.` and | its value |
//! |---|---|
//! | `spool_fenced(ROUTER)` | the servers that are fenced for that router, one per line |
//! | `spool_fence_for(ROUTER,NUMBER,MS,SERVER)`, `spool_release(ROUTER,NUMBER,SERVER)` | `ok` once it is on disk, and no client reads the server; until then `permits in use` |
//! | `spool_fence(ROUTER,NUMBER,SERVER)` | the same for the time that this router fences for itself: of earlier versions |
//! | `spool_delete(SERVER,HOLD_OFF_MS,IS_BASE64,KEY)` | `ok` if the server has applied the delete |
//! | `spool_flush(SERVER)` | `ok` if the server was flushed |
//! | `spool_part(ROUTER,NUMBER,BYTES)` | `ok`: the first bytes of a key that is too long for one request, for |
//! | `spool_delete_rest(ROUTER,NUMBER,SERVER,HOLD_OFF_MS,IS_BASE64,BYTES)` | `ok` as above |
//!
//! A request is a key, so it has at most [`KEY_BYTES_MAX`] bytes and no white space: bytes of an address that no key
//! may have, or that would end an argument, are % and hex. A server whose encoded address is too long (about 180
//! bytes) cannot be fenced by a peer.
//!
//! Sans-I/O.

use super::ids::RouterId;
use super::record::Deletion;
use crate::admin_key::ADMIN_KEY_PREFIX;
use bytes::Bytes;
use lookaside_protocol::{KEY_BYTES_MAX, check_key, percent};
use lookaside_routing::Address;
use lookaside_sync::Mutex;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

/// The most first parts of keys that wait for their rest. Beyond it the oldest is dropped, and its delete is not
/// forwarded.
const FRAGMENTS_MAX: usize = 1_000;

/// The longest fence: any client can ask for one. It is the longest of `--spool-peer-timeout`, too.
pub(super) const FENCE_MAX: Duration = Duration::from_secs(3_600);

/// The reply to a request for a fence that is on disk, while clients may read the server by a permit from before. The
/// request is to be repeated in a moment.
pub(super) const PERMITS_IN_USE: &[u8] = b"permits in use";

pub(super) fn fenced_query(router: RouterId) -> Vec<u8> {
    [ADMIN_KEY_PREFIX, format!("spool_fenced({router})").as_bytes()].concat()
}

/// A request to fence a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FenceRequest {
    pub(super) router: RouterId,
    pub(super) number: u64,
    /// How long the fence lasts unless it is renewed. `None` in a request of an earlier version: as long as those of
    /// the receiver.
    pub(super) duration: Option<Duration>,
    pub(super) server: Address,
}

impl FenceRequest {
    /// `None` if the address is too long.
    pub(super) fn to_key(&self) -> Option<Vec<u8>> {
        let FenceRequest { router, number, duration, server } = self;
        let Some(duration) = duration else { return server_request("fence", *router, *number, server) };
        let name = format!("spool_fence_for({router},{number},{},{})", duration.as_millis(), encode_address(server));
        Some([ADMIN_KEY_PREFIX, name.as_bytes()].concat()).filter(|key| fits(key))
    }

    /// `name` is the key behind `spool_`. `None` if it is another request.
    pub(super) fn parse(name: &[u8]) -> Option<FenceRequest> {
        if let Some((router, number, server)) = parse_server_request(name, "fence") {
            return Some(FenceRequest { router, number, duration: None, server });
        }
        let [router, number, duration_ms, server] = parse_arguments(name, "fence_for")?;
        let (router, number) = parse_message_id(router, number)?;
        let duration = Duration::from_millis(str::from_utf8(duration_ms).ok()?.parse().ok()?).min(FENCE_MAX);
        Some(FenceRequest { router, number, duration: Some(duration), server: decode_address(server)? })
    }
}

/// The request to release a server. `None` if the address is too long.
pub(super) fn release_request(router: RouterId, number: u64, server: &Address) -> Option<Vec<u8>> {
    server_request("release", router, number, server)
}

fn server_request(verb: &str, router: RouterId, number: u64, server: &Address) -> Option<Vec<u8>> {
    let name = format!("spool_{verb}({router},{number},{})", encode_address(server));
    Some([ADMIN_KEY_PREFIX, name.as_bytes()].concat()).filter(|key| fits(key))
}

/// The requests that forward a delete. `None` if the address is too long for it. A long key takes two requests, linked
/// by `number`.
pub(super) fn delete_requests(
    router: RouterId,
    number: impl FnOnce() -> u64,
    server: &Address,
    deletion: &Deletion,
) -> Option<Vec<Vec<u8>>> {
    let arguments = format!("{},{},{}", encode_address(server), deletion.hold_off_ms, u8::from(deletion.is_base64));
    let whole = request_with_bytes(&format!("spool_delete({arguments},"), &deletion.key);
    if fits(&whole) {
        return Some(vec![whole]);
    }
    let number = number();
    let part = format!("spool_part({router},{number},");
    let part_bytes_max = KEY_BYTES_MAX - request_with_bytes(&part, b"").len();
    let (first, rest) = deletion.key.split_at_checked(part_bytes_max)?;
    let rest = request_with_bytes(&format!("spool_delete_rest({router},{number},{arguments},"), rest);
    fits(&rest).then(|| vec![request_with_bytes(&part, first), rest])
}

/// The request that forwards a flush. `None` if the address is too long for it.
pub(super) fn flush_request(server: &Address) -> Option<Vec<u8>> {
    Some(request_with_bytes("spool_flush(", encode_address(server).to_string().as_bytes())).filter(|key| fits(key))
}

/// The server of a request to flush it: `name` is the key behind `spool_`. `None` if it is another request.
pub(super) fn parse_flush(name: &[u8]) -> Option<Address> {
    let [server] = parse_arguments(name, "flush")?;
    decode_address(server)
}

fn request_with_bytes(start: &str, bytes: &[u8]) -> Vec<u8> {
    [ADMIN_KEY_PREFIX, start.as_bytes(), bytes, b")"].concat()
}

fn fits(key: &[u8]) -> bool {
    key.len() <= KEY_BYTES_MAX
}

pub(super) fn parse_release(name: &[u8]) -> Option<(RouterId, u64, Address)> {
    parse_server_request(name, "release")
}

fn parse_server_request(name: &[u8], verb: &str) -> Option<(RouterId, u64, Address)> {
    let [router, number, server] = parse_arguments(name, verb)?;
    let (router, number) = parse_message_id(router, number)?;
    Some((router, number, decode_address(server)?))
}

pub(super) fn parse_fenced_query(name: &[u8]) -> Option<RouterId> {
    let [router] = parse_arguments(name, "fenced")?;
    parse_router(router)
}

/// First parts of keys that wait for their rest.
#[derive(Debug, Default)]
pub(super) struct KeyFragments(Mutex<FragmentTable>);

#[derive(Debug, Default)]
struct FragmentTable {
    /// Each with its arrival number.
    fragments: BTreeMap<(RouterId, u64), (u64, Vec<u8>)>,
    /// The order of removal: a router's choice of id or message number does not affect how long a fragment stays.
    by_age: BTreeMap<u64, (RouterId, u64)>,
    arrivals: u64,
}

impl FragmentTable {
    fn insert(&mut self, id: (RouterId, u64), bytes: Vec<u8>) {
        self.remove(id);
        self.arrivals += 1;
        self.fragments.insert(id, (self.arrivals, bytes));
        self.by_age.insert(self.arrivals, id);
        while self.fragments.len() > FRAGMENTS_MAX {
            let Some((_, oldest)) = self.by_age.pop_first() else { return };
            self.fragments.remove(&oldest);
        }
    }

    fn remove(&mut self, id: (RouterId, u64)) -> Option<Vec<u8>> {
        let (age, bytes) = self.fragments.remove(&id)?;
        self.by_age.remove(&age);
        Some(bytes)
    }
}

impl KeyFragments {
    /// Stores a first part: `name` is the key behind `spool_`. False if it is another request.
    pub(super) fn insert(&self, name: &[u8]) -> bool {
        let Some([router, number, bytes]) = parse_arguments(name, "part") else { return false };
        let Some(id) = parse_message_id(router, number) else { return false };
        self.0.lock().insert(id, bytes.to_vec());
        true
    }

    /// The server and the delete of a request to forward. `None` if it is another request.
    pub(super) fn parse_delete(&self, name: &[u8]) -> Option<(Address, Deletion)> {
        if let Some([server, hold_off_ms, is_base64, key]) = parse_arguments(name, "delete") {
            return parse_deletion(server, hold_off_ms, is_base64, Bytes::copy_from_slice(key));
        }
        let [router, number, server, hold_off_ms, is_base64, rest] = parse_arguments(name, "delete_rest")?;
        let mut table = self.0.lock();
        let first = table.remove(parse_message_id(router, number)?)?;
        parse_deletion(server, hold_off_ms, is_base64, [&first, rest].concat().into())
    }
}

fn parse_deletion(server: &[u8], hold_off_ms: &[u8], is_base64: &[u8], key: Bytes) -> Option<(Address, Deletion)> {
    let hold_off_ms = str::from_utf8(hold_off_ms).ok()?.parse().ok()?;
    // The parts of a long key are keys themselves, but together they may be too long.
    check_key(&key).ok()?;
    Some((decode_address(server)?, Deletion { key, is_base64: is_base64 == b"1", hold_off_ms }))
}

/// The arguments in `verb(a,b,c)`. The last may contain commas.
fn parse_arguments<'a, const COUNT: usize>(name: &'a [u8], verb: &str) -> Option<[&'a [u8]; COUNT]> {
    let arguments = name.strip_prefix(verb.as_bytes())?.strip_prefix(b"(")?.strip_suffix(b")")?;
    let arguments: Vec<&[u8]> = arguments.splitn(COUNT, |&byte| byte == b',').collect();
    arguments.try_into().ok()
}

fn parse_router(digits: &[u8]) -> Option<RouterId> {
    u64::from_str_radix(str::from_utf8(digits).ok()?, 16).ok().map(RouterId)
}

fn parse_message_id(router: &[u8], number: &[u8]) -> Option<(RouterId, u64)> {
    Some((parse_router(router)?, str::from_utf8(number).ok()?.parse().ok()?))
}

fn encode_address(server: &Address) -> impl Display {
    percent::encode_except(server.0.as_bytes(), |byte| byte.is_ascii_graphic() && !b"%,()".contains(&byte))
}

fn decode_address(server: &[u8]) -> Option<Address> {
    Some(Address(String::from_utf8(percent::decode(server)?).ok()?.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(request: &[u8]) -> &[u8] {
        let name = request.strip_prefix(ADMIN_KEY_PREFIX).and_then(|rest| rest.strip_prefix(b"spool_"));
        name.expect("it is a request of the spool")
    }

    #[test]
    fn requests_are_valid_keys_and_parsing_reverses_composing() {
        for server in ["10.0.0.7:11211", "[::1]:11211", "/run/a b", "a,(%):1", "/\u{e4}\n"] {
            let server = Address(server.into());
            for duration in [None, Some(Duration::from_millis(1_500)), Some(FENCE_MAX)] {
                let fence = FenceRequest { router: RouterId(7), number: u64::MAX, duration, server: server.clone() };
                let request = fence.to_key().expect("it fits");
                assert!(request.iter().all(u8::is_ascii_graphic), "{server}");
                assert_eq!(FenceRequest::parse(name(&request)), Some(fence));
            }
            for key_bytes in 1..=KEY_BYTES_MAX {
                let key = Bytes::from("k,(%)".repeat(50)).slice(..key_bytes);
                let deletion = Deletion { key, is_base64: true, hold_off_ms: u32::MAX };
                let fragments = KeyFragments::default();
                let mut parsed = None;
                for request in delete_requests(RouterId(u64::MAX), || u64::MAX, &server, &deletion).expect("it fits") {
                    assert!(request.len() <= KEY_BYTES_MAX && request.iter().all(u8::is_ascii_graphic));
                    let is_fragment = fragments.insert(name(&request));
                    parsed = if is_fragment { None } else { fragments.parse_delete(name(&request)) };
                }
                assert_eq!(parsed, Some((server.clone(), deletion)));
                assert!(fragments.0.lock().fragments.is_empty());
            }
        }
        assert_eq!(parse_fenced_query(name(&fenced_query(RouterId(9)))), Some(RouterId(9)));
        let long = Address("x".repeat(212).into());
        let fence = FenceRequest { router: RouterId(7), number: 1, duration: None, server: long.clone() };
        assert_eq!((fence.to_key(), FenceRequest { duration: Some(FENCE_MAX), ..fence }.to_key()), (None, None));
        let deletion = Deletion { key: "k".into(), is_base64: false, hold_off_ms: 0 };
        assert!(delete_requests(RouterId(7), || 1, &long, &deletion).is_some(), "short enough for this");
        let deletion = Deletion { key: "k".repeat(100).into(), ..deletion };
        assert_eq!(delete_requests(RouterId(7), || 1, &long, &deletion), None);
    }

    #[test]
    fn malformed_requests_are_ignored() {
        let fragments = KeyFragments::default();
        let malformed = ["", "fence", "fence()", "fence(x,1,a:1)", "fence(7,x,a:1)", "fence(7,1,%4)", "fence(7,1,%zz)"];
        for name in malformed {
            assert_eq!(FenceRequest::parse(name.as_bytes()), None, "{name}");
        }
        assert_eq!(FenceRequest::parse(b"fence_for(7,1,x,a:1)"), None);
        let endless = FenceRequest::parse(b"fence_for(7,1,99999999999,a:1)").expect("a request");
        assert_eq!(endless.duration, Some(FENCE_MAX));
        for name in ["delete(a:1,0,0)", "delete(a:1,x,0,k)", "delete_rest(7,1,a:1,0,0,k)", "part(7,1)"] {
            assert!(!fragments.insert(name.as_bytes()) && fragments.parse_delete(name.as_bytes()).is_none(), "{name}");
        }
    }

    #[test]
    fn parts_that_are_too_long_together_are_no_key() {
        let fragments = KeyFragments::default();
        for (rest_bytes, is_key) in [(50, true), (51, false)] {
            assert!(fragments.insert(format!("part(7,1,{})", "k".repeat(200)).as_bytes()));
            let rest = format!("delete_rest(7,1,a:1,0,0,{})", "k".repeat(rest_bytes));
            assert_eq!(fragments.parse_delete(rest.as_bytes()).is_some(), is_key);
        }
    }

    #[test]
    fn the_number_of_waiting_fragments_is_bounded() {
        let fragments = KeyFragments::default();
        for number in 0..3 * FRAGMENTS_MAX {
            assert!(fragments.insert(format!("part(7,{number},k)").as_bytes()));
        }
        let table = fragments.0.lock();
        assert_eq!((table.fragments.len(), table.by_age.len()), (FRAGMENTS_MAX, FRAGMENTS_MAX));
    }

    #[test]
    fn fragments_of_one_router_do_not_push_out_a_newer_one_of_another() {
        let fragments = KeyFragments::default();
        for number in 0..FRAGMENTS_MAX {
            assert!(fragments.insert(format!("part(ffffffffffffffff,{number},k)").as_bytes()));
        }
        assert!(fragments.insert(b"part(7,1,long-)"));
        let (_, deletion) = fragments.parse_delete(b"delete_rest(7,1,a:1,0,0,key)").expect("the newest is stored");
        assert_eq!(deletion.key, "long-key");
    }
}
