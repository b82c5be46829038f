//! A store that is sent as a `lease-set`, and its reply to the client.

use crate::{
    Outcome,
    meta::{empty_cache_reply, token},
};
use bytes::Bytes;
use lookaside_protocol::{
    LeaseToken, Operation, Reply, Request, StoreMode,
    meta::{MetaOperation, MetaReply, MetaStatus, meta_flags},
};

/// The client's form of a store that is sent as a `lease-set`.
pub(super) struct Fill {
    key: Bytes,
    /// `None` if it was a classic command.
    meta: Option<MetaOperation<Bytes>>,
}

/// The flags of an `ms` that a `lease-set` can do without, or the reply can repeat.
const EXPRESSIBLE: &[u8] = b"FTMOkcq";

impl Fill {
    /// The `lease-set` for a `set`, `add` or `ms`. `None` for a store that a `lease-set` cannot express, and for one
    /// that replaces: there is no value while the token holds.
    pub(super) fn new(request: &Request<Bytes>, lease: LeaseToken) -> Option<(Fill, Request<Bytes>)> {
        let (flags, exptime, value, meta) = match &request.operation {
            Operation::Store { mode: StoreMode::Set | StoreMode::Add, flags, exptime, value, .. } => {
                (*flags, *exptime, value.clone(), None)
            }
            Operation::Meta(meta) => {
                let (flags, exptime) = arguments_of(meta)?;
                (flags, exptime, meta.value.clone()?, Some(meta.clone()))
            }
            _ => return None,
        };
        let operation = Operation::LeaseSet { token: lease, flags, exptime, value };
        let key = request.key.clone();
        Some((Fill { key: key.clone(), meta }, Request { key, operation }))
    }

    /// The reply to the client. The value that a void token has refreshed is stale: to this client it is not stored.
    pub(super) fn client_reply(&self, outcome: Outcome) -> Outcome {
        match (outcome, &self.meta) {
            (Ok(Reply::Stored), Some(meta)) => Ok(Reply::Meta(stored_reply(&self.key, meta))),
            (Ok(Reply::NotStored | Reply::StaleStored), Some(meta)) => {
                Ok(Reply::Meta(empty_cache_reply(&self.key, meta)))
            }
            (Ok(Reply::StaleStored), None) => Ok(Reply::NotStored),
            (outcome, _) => outcome,
        }
    }
}

/// Flags and exptime of an `ms`; `None` if a `lease-set` cannot express it.
fn arguments_of(meta: &MetaOperation<Bytes>) -> Option<(u32, i64)> {
    let is_replace = token(&meta.flags, b'M').is_some_and(|mode| mode.first() == Some(&b'R'));
    if is_replace || meta_flags(&meta.flags).any(|flag| !EXPRESSIBLE.contains(&flag.letter)) {
        return None;
    }
    let number = |letter| match token(&meta.flags, letter) {
        Some(text) => str::from_utf8(text).ok()?.parse::<i64>().ok(),
        None => Some(0),
    };
    Some((number(b'F')?.try_into().ok()?, number(b'T')?))
}

/// The reply to an `ms` that was stored. The CAS unique is not known: 0 is none.
fn stored_reply(key: &[u8], meta: &MetaOperation<Bytes>) -> MetaReply<Bytes> {
    let repeated = meta_flags(&meta.flags).filter_map(|flag| match flag.letter {
        b'O' => Some([b"O", flag.token].concat()),
        b'k' => Some([b"k", key].concat()),
        b'c' => Some(b"c0".to_vec()),
        _ => None,
    });
    let flags = repeated.collect::<Vec<_>>().join(&b' ').into();
    MetaReply { status: MetaStatus::Done, flags, value: None }
}

/// The outcome of a store that is not sent.
pub(super) fn refuse(request: &Request<Bytes>) -> Outcome {
    Ok(match &request.operation {
        Operation::Meta(meta) => Reply::Meta(empty_cache_reply(&request.key, meta)),
        _ => Reply::NotStored,
    })
}

/// The store as an `add`.
pub(super) fn as_add(mut request: Request<Bytes>) -> Request<Bytes> {
    match &mut request.operation {
        Operation::Store { mode, .. } => *mode = StoreMode::Add,
        Operation::Meta(meta) => {
            let others = meta_flags(&meta.flags).filter(|flag| flag.letter != b'M');
            let others = others.map(|flag| [&[flag.letter], flag.token].concat());
            meta.flags = others.chain([b"ME".to_vec()]).collect::<Vec<_>>().join(&b' ').into();
        }
        _ => {}
    }
    request
}

/// Whether a fill's reply to the client says that it was stored.
pub(super) fn is_stored(reply: &Outcome) -> bool {
    match reply {
        Ok(Reply::Stored) => true,
        Ok(Reply::Meta(meta)) => meta.status == MetaStatus::Done,
        _ => false,
    }
}
