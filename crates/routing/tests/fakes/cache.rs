//! A server with a memory.

use super::Fake;
use bytes::Bytes;
use lookaside_protocol::{
    LeaseToken, Operation, Reply, StoreMode,
    meta::{MetaReply, MetaStatus, MetaVerb},
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// A server that stores values, issues token 7, and refuses adds of keys that start with `held`.
pub fn cache(name: &str) -> Arc<Fake> {
    let stored: Mutex<BTreeMap<Bytes, (u32, Bytes)>> = Mutex::default();
    Fake::new(name, move |request| {
        let mut stored = stored.lock().unwrap();
        let found = stored.get(&request.key).cloned();
        let value = found.clone().map(|(flags, value)| Reply::Value { flags, cas: None, value });
        Ok(match &request.operation {
            Operation::Get { .. } | Operation::GetAndTouch { .. } => value.unwrap_or(Reply::Miss),
            Operation::LeaseGet => {
                let token = if request.key.starts_with(b"hot") { LeaseToken::HOT_MISS } else { LeaseToken(7) };
                value.unwrap_or(Reply::Lease { token, flags: 0, stale: None })
            }
            Operation::Store { mode: StoreMode::Add, .. } if found.is_some() || request.key.starts_with(b"held") => {
                Reply::NotStored
            }
            Operation::Store { flags, value, .. } => {
                stored.insert(request.key.clone(), (*flags, value.clone()));
                Reply::Stored
            }
            Operation::Delete { .. } if stored.remove(&request.key).is_some() => Reply::Deleted,
            Operation::Meta(meta) if meta.verb == MetaVerb::Get => match found {
                Some((_, value)) => {
                    Reply::Meta(MetaReply { status: MetaStatus::Value, flags: Bytes::new(), value: Some(value) })
                }
                None => Reply::Meta(MetaReply { status: MetaStatus::Miss, flags: Bytes::new(), value: None }),
            },
            _ => Reply::NotFound,
        })
    })
}
