//! What the routers of a cluster say to each other: gets of keys that the router answers itself, over the port for clients.
//!
//! | get of `__mcrouter__.` and | its value |
//! |---|---|
//! | `spool_held(OWNER)` | the servers that are held for that router, a line each |
//! | `spool_hold(OWNER,NUMBER,SERVER)`, `spool_release(OWNER,NUMBER,SERVER)` | `ok` once that is on disk |
//! | `spool_delete(SERVER,HOLD_OFF_MS,IS_BASE64,KEY)` | `ok` if the server has carried it out |
//! | `spool_part(OWNER,NUMBER,BYTES)` | `ok`: the first bytes of a key that has no room in one question, for |
//! | `spool_delete_rest(OWNER,NUMBER,SERVER,HOLD_OFF_MS,IS_BASE64,BYTES)` | `ok` as above |
//!
//! A question is a key, so it has [`KEY_BYTES_MAX`] bytes and no white space: an address has % and hex for what no key may
//! have, or would end an argument. Whom there is no question for (an address of some 180 bytes) cannot be held.
//!
//! Sans-I/O.

use super::record::Deletion;
use super::server::Owner;
use crate::admin_key::ADMIN_KEY_PREFIX;
use bytes::Bytes;
use lookaside_protocol::KEY_BYTES_MAX;
use lookaside_routing::Address;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// First parts of keys that wait for their rest; of more, those that came first are forgotten, and what they belong to is not
/// passed on.
const PARTS_MAX: usize = 1_000;

/// Asks which servers are held for `owner`.
pub(super) fn held(owner: Owner) -> Vec<u8> {
    question(&format!("spool_held({:016x})", owner.0))
}

/// Has a server held, or released; nothing if there is no question for it.
pub(super) fn said(verb: &str, owner: Owner, number: u64, server: &Address) -> Option<Vec<u8>> {
    Some(question(&format!("spool_{verb}({:016x},{number},{})", owner.0, encoded(server))))
        .filter(|question| fits(question))
}

/// The questions that pass a delete on; nothing if there are none for it. A long key takes two, of that `number`.
pub(super) fn delete(
    owner: Owner,
    number: impl FnOnce() -> u64,
    server: &Address,
    deletion: &Deletion,
) -> Option<Vec<Vec<u8>>> {
    let how = format!("{},{},{}", encoded(server), deletion.hold_off_ms, u8::from(deletion.is_base64));
    let whole = with_bytes(&format!("spool_delete({how},"), &deletion.key);
    if fits(&whole) {
        return Some(vec![whole]);
    }
    let number = number();
    let part = format!("spool_part({:016x},{number},", owner.0);
    let room_bytes = KEY_BYTES_MAX - with_bytes(&part, b"").len();
    let (first, rest) = deletion.key.split_at_checked(room_bytes)?;
    let rest = with_bytes(&format!("spool_delete_rest({:016x},{number},{how},", owner.0), rest);
    fits(&rest).then(|| vec![with_bytes(&part, first), rest])
}

fn question(name: &str) -> Vec<u8> {
    [ADMIN_KEY_PREFIX, name.as_bytes()].concat()
}

fn with_bytes(beginning: &str, bytes: &[u8]) -> Vec<u8> {
    [ADMIN_KEY_PREFIX, beginning.as_bytes(), bytes, b")"].concat()
}

fn fits(question: &[u8]) -> bool {
    question.len() <= KEY_BYTES_MAX
}

/// First parts of keys, until their rest comes.
#[derive(Debug, Default)]
pub(super) struct Parts(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    /// Each with the number of its arrival.
    parts: BTreeMap<(Owner, u64), (u64, Vec<u8>)>,
    /// Whose turn it is to be forgotten: nobody's choice of an owner or number spares or dooms another's.
    by_age: BTreeMap<u64, (Owner, u64)>,
    arrivals: u64,
}

impl Waiting {
    fn insert(&mut self, place: (Owner, u64), bytes: Vec<u8>) {
        self.remove(place);
        self.arrivals += 1;
        self.parts.insert(place, (self.arrivals, bytes));
        self.by_age.insert(self.arrivals, place);
        while self.parts.len() > PARTS_MAX {
            let Some((_, oldest)) = self.by_age.pop_first() else { return };
            self.parts.remove(&oldest);
        }
    }

    fn remove(&mut self, place: (Owner, u64)) -> Option<Vec<u8>> {
        let (age, bytes) = self.parts.remove(&place)?;
        self.by_age.remove(&age);
        Some(bytes)
    }
}

impl Parts {
    /// Remembers a part: `name` is what comes behind `spool_`. False if that is no part.
    pub(super) fn take_up(&self, name: &[u8]) -> bool {
        let Some([owner, number, bytes]) = arguments(name, "part") else { return false };
        let Some(place) = place(owner, number) else { return false };
        // Nothing panics under the lock; if it did, the parts are still whole.
        let mut parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        parts.insert(place, bytes.to_vec());
        true
    }

    /// The server, and what another router asks to delete there.
    pub(super) fn deletion(&self, name: &[u8]) -> Option<(Address, Deletion)> {
        if let Some([server, hold_off_ms, is_base64, key]) = arguments(name, "delete") {
            return read(server, hold_off_ms, is_base64, Bytes::copy_from_slice(key));
        }
        let [owner, number, server, hold_off_ms, is_base64, rest] = arguments(name, "delete_rest")?;
        let mut parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let first = parts.remove(place(owner, number)?)?;
        read(server, hold_off_ms, is_base64, [&first, rest].concat().into())
    }
}

fn read(server: &[u8], hold_off_ms: &[u8], is_base64: &[u8], key: Bytes) -> Option<(Address, Deletion)> {
    let hold_off_ms = str::from_utf8(hold_off_ms).ok()?.parse().ok()?;
    Some((decoded(server)?, Deletion { key, is_base64: is_base64 == b"1", hold_off_ms }))
}

/// Who says, which number, of which server.
pub(super) fn saying(name: &[u8], verb: &str) -> Option<(Owner, u64, Address)> {
    let [owner, number, server] = arguments(name, verb)?;
    let (owner, number) = place(owner, number)?;
    Some((owner, number, decoded(server)?))
}

/// Who asks for what is held.
pub(super) fn asking(name: &[u8]) -> Option<Owner> {
    let [owner] = arguments(name, "held")?;
    owner_of(owner)
}

/// The arguments in `verb(a,b,c)`; the last may have commas.
fn arguments<'a, const COUNT: usize>(name: &'a [u8], verb: &str) -> Option<[&'a [u8]; COUNT]> {
    let arguments = name.strip_prefix(verb.as_bytes())?.strip_prefix(b"(")?.strip_suffix(b")")?;
    let arguments: Vec<&[u8]> = arguments.splitn(COUNT, |&byte| byte == b',').collect();
    arguments.try_into().ok()
}

fn owner_of(digits: &[u8]) -> Option<Owner> {
    u64::from_str_radix(str::from_utf8(digits).ok()?, 16).ok().map(Owner)
}

fn place(owner: &[u8], number: &[u8]) -> Option<(Owner, u64)> {
    Some((owner_of(owner)?, str::from_utf8(number).ok()?.parse().ok()?))
}

fn encoded(server: &Address) -> String {
    let mut text = String::new();
    for &byte in server.0.as_bytes() {
        match byte {
            b'%' | b',' | b'(' | b')' => text.push_str(&format!("%{byte:02X}")),
            b'!'..=b'~' => text.push(byte.into()),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

fn decoded(server: &[u8]) -> Option<Address> {
    let mut bytes = Vec::new();
    let mut rest = server;
    while let Some((&first, behind)) = rest.split_first() {
        rest = behind;
        bytes.push(match first {
            b'%' => {
                let (digits, behind) = rest.split_first_chunk::<2>()?;
                rest = behind;
                u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    Some(Address(String::from_utf8(bytes).ok()?.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(question: &[u8]) -> &[u8] {
        question.strip_prefix(ADMIN_KEY_PREFIX).and_then(|rest| rest.strip_prefix(b"spool_")).expect("ours")
    }

    #[test]
    fn what_is_asked_is_a_key_and_is_understood() {
        for server in ["10.0.0.7:11211", "[::1]:11211", "/run/a b", "a,(%):1", "/\u{e4}\n"] {
            let server = Address(server.into());
            let question = said("hold", Owner(7), u64::MAX, &server).expect("there is room");
            assert!(question.iter().all(u8::is_ascii_graphic), "{server}");
            assert_eq!(saying(name(&question), "hold"), Some((Owner(7), u64::MAX, server.clone())));
            for key_bytes in 1..=KEY_BYTES_MAX {
                let key = Bytes::from("k,(%)".repeat(50)).slice(..key_bytes);
                let deletion = Deletion { key, is_base64: true, hold_off_ms: u32::MAX };
                let parts = Parts::default();
                let mut found = None;
                for question in delete(Owner(u64::MAX), || u64::MAX, &server, &deletion).expect("there is room") {
                    assert!(question.len() <= KEY_BYTES_MAX && question.iter().all(u8::is_ascii_graphic));
                    found = if parts.take_up(name(&question)) { None } else { parts.deletion(name(&question)) };
                }
                assert_eq!(found, Some((server.clone(), deletion)));
                assert!(parts.0.lock().unwrap().parts.is_empty());
            }
        }
        assert_eq!(asking(name(&held(Owner(9)))), Some(Owner(9)));
        let long = Address("x".repeat(212).into());
        assert_eq!(said("hold", Owner(7), 1, &long), None);
        let deletion = Deletion { key: "k".into(), is_base64: false, hold_off_ms: 0 };
        assert!(delete(Owner(7), || 1, &long, &deletion).is_some(), "short enough for this");
        let deletion = Deletion { key: "k".repeat(100).into(), ..deletion };
        assert_eq!(delete(Owner(7), || 1, &long, &deletion), None);
    }

    #[test]
    fn nonsense_is_no_question() {
        let parts = Parts::default();
        for nonsense in ["", "hold", "hold()", "hold(x,1,a:1)", "hold(7,x,a:1)", "hold(7,1,%4)", "hold(7,1,%zz)"] {
            assert_eq!(saying(nonsense.as_bytes(), "hold"), None, "{nonsense}");
        }
        for nonsense in ["delete(a:1,0,0)", "delete(a:1,x,0,k)", "delete_rest(7,1,a:1,0,0,k)", "part(7,1)"] {
            assert!(!parts.take_up(nonsense.as_bytes()) && parts.deletion(nonsense.as_bytes()).is_none(), "{nonsense}");
        }
    }

    #[test]
    fn parts_that_nobody_comes_back_for_are_forgotten() {
        let parts = Parts::default();
        for number in 0..3 * PARTS_MAX {
            assert!(parts.take_up(format!("part(7,{number},k)").as_bytes()));
        }
        let waiting = parts.0.lock().unwrap();
        assert_eq!((waiting.parts.len(), waiting.by_age.len()), (PARTS_MAX, PARTS_MAX));
    }

    #[test]
    fn what_a_stranger_leaves_does_not_crowd_out_who_comes_back() {
        let parts = Parts::default();
        for number in 0..PARTS_MAX {
            assert!(parts.take_up(format!("part(ffffffffffffffff,{number},k)").as_bytes()));
        }
        assert!(parts.take_up(b"part(7,1,long-)"));
        let (_, deletion) = parts.deletion(b"delete_rest(7,1,a:1,0,0,key)").expect("the newest is there");
        assert_eq!(deletion.key, "long-key");
    }
}
