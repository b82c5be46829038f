//! The updates of the application's client: one request for each key, and several keys in one round trip.
//!
//! | call | value before | a lease of the key |
//! |---|---|---|
//! | [`Client::set`] | replaced | void |
//! | [`Client::add`] | kept; stored if there is none, or only a stale one | void if it is stored |
//! | [`Client::incr`], [`Client::decr`] | changed; if there is none, or only a stale one: `None` | stays |
//! | [`Client::touch`] | kept, with the new exptime; if there is none, or only a stale one: `false` | stays |
//! | [`Client::delete`] | removed, kept as a stale one for a while | void |
//!
//! None of them takes or needs a lease. A value that an application has read from a database must be stored under one
//! ([`Client::read`]): a set or an add may store what was read before a delete.

use super::{
    client::{Client, check_and_copy_key, check_and_copy_keys},
    error::{ClientError, unexpected},
};
use crate::values::Encoded;
use bytes::Bytes;
use lookaside_protocol::{Direction, Operation, Reply, Request, StoreMode};
use lookaside_routing::{Batch, Outcome};

impl Client {
    /// Stores a value unconditionally. A set without a lease can overwrite a newer value with an older one: for data
    /// of a database prefer [`Client::read`] and [`Client::delete`].
    pub async fn set(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
        flags: u32,
        exptime: i64,
    ) -> Result<(), ClientError> {
        let operation = store(StoreMode::Set, value.into(), flags, exptime);
        self.update(key.as_ref(), operation, to_stored).await
    }

    /// Stores a value if there is none; returns whether it was stored. It is not stored during the hold-off after a
    /// delete, nor by a router that takes leases for plain clients, if it has not seen a miss of this client before.
    pub async fn add(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
        flags: u32,
        exptime: i64,
    ) -> Result<bool, ClientError> {
        let operation = store(StoreMode::Add, value.into(), flags, exptime);
        let to_added = |reply| match reply {
            Reply::Stored => Ok(true),
            Reply::NotStored => Ok(false),
            other => Err(unexpected("add", Ok(other))),
        };
        self.update(key.as_ref(), operation, to_added).await
    }

    /// Adds `delta` to a decimal number; it wraps at 2^64. Returns the new number, `None` if there is no value. A
    /// value that is no number is an error. If there is no reply, it may have been executed, and is not repeated.
    pub async fn incr(&self, key: impl AsRef<[u8]>, delta: u64) -> Result<Option<u64>, ClientError> {
        self.update(key.as_ref(), Operation::Arithmetic { direction: Direction::Up, delta }, to_number).await
    }

    /// Subtracts `delta` from a decimal number; it stops at 0. As [`Client::incr`] otherwise.
    pub async fn decr(&self, key: impl AsRef<[u8]>, delta: u64) -> Result<Option<u64>, ClientError> {
        self.update(key.as_ref(), Operation::Arithmetic { direction: Direction::Down, delta }, to_number).await
    }

    /// Sets when a value expires; returns whether there is one.
    pub async fn touch(&self, key: impl AsRef<[u8]>, exptime: i64) -> Result<bool, ClientError> {
        let to_touched = |reply| match reply {
            Reply::Touched => Ok(true),
            Reply::NotFound => Ok(false),
            other => Err(unexpected("touch", Ok(other))),
        };
        self.update(key.as_ref(), Operation::Touch { exptime }, to_touched).await
    }

    /// Deletes a key and voids its lease, after a database write: this client's next read is not older than the
    /// write. Returns whether there was a value. The invalidator deletes the key as well, once it has read the commit
    /// log: after an error here, a stale value lives for moments, not permanently.
    pub async fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool, ClientError> {
        self.update(key.as_ref(), Operation::Delete { hold_off_ms: 0 }, to_deleted).await
    }

    /// Stores values unconditionally, in one round trip: one result for each, in order. If a key is invalid, the call
    /// fails and nothing is sent.
    pub async fn set_many<K: AsRef<[u8]>>(
        &self,
        values: impl IntoIterator<Item = (K, Encoded)>,
        exptime: i64,
    ) -> Result<Vec<Result<(), ClientError>>, ClientError> {
        let request = |(key, Encoded { value, flags }): (K, Encoded)| {
            let key = check_and_copy_key(key.as_ref()).map_err(ClientError::BadKey)?;
            Ok(Request { key, operation: store(StoreMode::Set, value, flags, exptime) })
        };
        let batch: Batch = values.into_iter().map(request).collect::<Result<_, ClientError>>()?;
        self.update_all(batch, to_stored).await
    }

    /// Deletes keys in one round trip, each as [`Client::delete`] does: one result for each, in order. If a key is
    /// invalid, the call fails and nothing is sent.
    pub async fn delete_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Result<bool, ClientError>>, ClientError> {
        let keys = check_and_copy_keys(keys).map_err(ClientError::BadKey)?;
        let delete = |key| Request { key, operation: Operation::Delete { hold_off_ms: 0 } };
        self.update_all(keys.into_iter().map(delete).collect(), to_deleted).await
    }

    async fn update<T>(
        &self,
        key: &[u8],
        operation: Operation<Bytes>,
        parse: impl Fn(Reply<Bytes>) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let key = check_and_copy_key(key).map_err(ClientError::BadKey)?;
        let mut results = self.update_all(vec![Request { key, operation }], parse).await?;
        results.pop().expect("one result per request")
    }

    async fn update_all<T>(
        &self,
        batch: Batch,
        parse: impl Fn(Reply<Bytes>) -> Result<T, ClientError>,
    ) -> Result<Vec<Result<T, ClientError>>, ClientError> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let outcomes = self.limit(self.send(batch)).await.ok_or(ClientError::DeadlineExceeded)?;
        let parse = |outcome: Outcome| {
            outcome.map_err(ClientError::from).and_then(&parse).map_err(|error| self.count_error(error))
        };
        Ok(outcomes.into_iter().map(parse).collect())
    }
}

fn store(mode: StoreMode, value: Bytes, flags: u32, exptime: i64) -> Operation<Bytes> {
    Operation::Store { mode, flags, exptime, value, cas: false }
}

fn to_stored(reply: Reply<Bytes>) -> Result<(), ClientError> {
    match reply {
        Reply::Stored => Ok(()),
        Reply::NotStored => Err(ClientError::NotStored),
        other => Err(unexpected("set", Ok(other))),
    }
}

fn to_deleted(reply: Reply<Bytes>) -> Result<bool, ClientError> {
    match reply {
        Reply::Deleted => Ok(true),
        Reply::NotFound => Ok(false),
        other => Err(unexpected("delete", Ok(other))),
    }
}

fn to_number(reply: Reply<Bytes>) -> Result<Option<u64>, ClientError> {
    match reply {
        Reply::Number(number) => Ok(Some(number)),
        Reply::NotFound => Ok(None),
        other => Err(unexpected("incr or decr", Ok(other))),
    }
}
