//! A write from a replica region, between its markers and its deletes.

use super::regional_client::RegionalClient;
use super::settings::MarkerForm;
use crate::look_aside::{Client, ClientError};
use bytes::Bytes;
use lookaside_protocol::KeyError;
use std::fmt;

/// Why a write was not begun. Nothing is to be written to the database then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarkError {
    /// The key is invalid; nothing was sent.
    BadKey(KeyError),
    /// The key is too long: its marker would not be a key. Nothing was sent.
    KeyTooLong {
        /// The key.
        key: Bytes,
        /// The longest key that can have a marker.
        bytes_max: usize,
    },
    /// The marker of a key could not be set.
    NotSet {
        /// The key.
        key: Bytes,
        /// The reason.
        why: ClientError,
    },
}

impl std::error::Error for MarkError {}

impl fmt::Display for MarkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MarkError::BadKey(error) => write!(f, "bad key: {error}"),
            MarkError::KeyTooLong { key, bytes_max } => {
                let key = String::from_utf8_lossy(key);
                write!(f, "{key} is too long for a remote marker: {} bytes, at most {bytes_max}", key.len())
            }
            MarkError::NotSet { key, why } => {
                write!(f, "the remote marker of {} could not be set: {why}", String::from_utf8_lossy(key))
            }
        }
    }
}

/// A write that has begun: its markers are set. Write to the master now, in a transaction that names [`keys`], and then
/// call [`finish`], whatever is known of the commit. Only if the transaction has certainly not committed, call
/// [`abort`].
///
/// If it is dropped without either, its markers stay until the replica has the transaction, or until they expire.
///
/// [`keys`]: RemoteWrite::keys
/// [`finish`]: RemoteWrite::finish
/// [`abort`]: RemoteWrite::abort
#[must_use = "name its keys in the transaction, then finish it"]
#[derive(Clone, Debug)]
pub struct RemoteWrite {
    client: RegionalClient,
    written: Vec<WrittenKey>,
    form: MarkerForm,
}

#[derive(Clone, Debug)]
pub(super) struct WrittenKey {
    pub(super) key: Bytes,
    pub(super) marker: Bytes,
    pub(super) result: Result<(), ClientError>,
}

impl RemoteWrite {
    pub(super) fn new(client: RegionalClient, written: Vec<WrittenKey>, form: MarkerForm) -> RemoteWrite {
        RemoteWrite { client, written, form }
    }

    /// The keys to name in the transaction, by comment, outbox or message: those that it makes stale, then their
    /// markers, and also those that may not have been set. Rules for rows cannot derive a marker: beside them, name at
    /// least the markers.
    pub fn keys(&self) -> impl Iterator<Item = &Bytes> {
        self.written.iter().map(|written| &written.key).chain(self.markers())
    }

    /// The markers among [`RemoteWrite::keys`], where rules name the keys.
    pub fn markers(&self) -> impl Iterator<Item = &Bytes> {
        self.written.iter().map(|written| &written.marker)
    }

    /// [`RemoteWrite::keys`] as a comment for a statement of the transaction; `None` if a key cannot be in one.
    pub fn sql_comment(&self) -> Option<String> {
        let mut comment = "/* lookaside:".to_owned();
        for key in self.keys() {
            let key = std::str::from_utf8(key).ok().filter(|key| !key.contains("*/") && !key.contains("/*"))?;
            comment.push(' ');
            comment.push_str(key);
        }
        comment.push_str(" */");
        Some(comment)
    }

    /// The keys whose markers could not be set, with the reasons: empty unless the settings say
    /// [`WhenNotSet::AcceptLag`](super::WhenNotSet::AcceptLag). Until the replica has the write, a read of them may be
    /// older; an application that must not see that reads them by [`RegionalClient::read_master`] until then.
    pub fn unmarked(&self) -> impl Iterator<Item = (&Bytes, &ClientError)> {
        self.written.iter().filter_map(|written| Some((&written.key, written.result.as_ref().err()?)))
    }

    /// The same write, which another client finishes: one with another deadline, say.
    pub fn with_client(&self, client: Client) -> RemoteWrite {
        RemoteWrite { client: self.client.with_client(client), ..self.clone() }
    }

    /// Deletes the keys in the local cluster. To be called after the commit, also if its outcome is unknown. After an
    /// error it may be called again; until it succeeds, or the replica has the write, reads may be older.
    pub async fn finish(&self) -> Result<(), ClientError> {
        let keys: Vec<&Bytes> = self.written.iter().map(|written| &written.key).collect();
        let deleted = self.client.client().delete_many(&keys).await?;
        deleted.into_iter().try_for_each(|deleted| deleted.map(|_| ()))
    }

    /// Removes the markers, so that reads go to the replica again. Only for a transaction that has certainly not
    /// committed. With one marker for each key, that stays, since it may be that of another write.
    pub async fn abort(&self) -> Result<(), ClientError> {
        if self.form == MarkerForm::PerKey {
            return Ok(());
        }
        let markers: Vec<&Bytes> = self.written.iter().map(|written| &written.marker).collect();
        let deleted = self.client.pool().delete_many(&markers).await?;
        deleted.into_iter().try_for_each(|deleted| deleted.map(|_| ()))
    }
}
