//! The application's client with values of Rust types instead of bytes. Serves reads and writes of [`crate::values`].

use super::read_through::check_loaded;
use super::{Client, ClientError, Origin, ReadError, ReadOptions};
use crate::values::{Codec, DecodeError, EncodeError, Encoded, FromContent, ToContent};
use bytes::Bytes;
use std::fmt;

/// A look-aside client whose values have types. Cheap to clone.
///
/// `Option<T>` as the type of a value caches rows that do not exist, too: `None` is stored for
/// [`ReadOptions::absent_exptime`] seconds, under the same lease as a value, so that a row that is inserted and deleted
/// from the cache is found at once.
///
/// ```
/// # #[cfg(feature = "messagepack")]
/// # mod example {
/// use lookaside_client::{Client, Codec, MessagePack, ReadOptions, TypedClient};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct User {
///     name: String,
/// }
///
/// async fn name_of(client: &TypedClient, id: u64) -> Result<Option<String>, Box<dyn std::error::Error>> {
///     let options = ReadOptions::default();
///     let user = client.get_or_load(format!("user:{id}"), &options, || async move {
///         // SELECT name FROM user WHERE id = ?
///         let name = (id == 42).then(|| "alice".to_owned());
///         Ok::<_, std::io::Error>(name.map(|name| MessagePack(User { name })))
///     });
///     Ok(user.await?.map(|MessagePack(user)| user.name))
/// }
///
/// # pub
/// fn connect(route: std::sync::Arc<dyn lookaside_routing::Route>) -> TypedClient {
///     TypedClient::new(Client::new(route), Codec::default())
/// }
/// # pub async fn test(client: TypedClient) {
/// #     assert_eq!(name_of(&client, 42).await.unwrap().as_deref(), Some("alice"));
/// #     assert_eq!(name_of(&client, 43).await.unwrap(), None);
/// # }
/// # }
/// # #[cfg(feature = "messagepack")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// #     example::test(example::connect(std::sync::Arc::new(lookaside_routing::NullRoute))).await
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct TypedClient {
    client: Client,
    codec: Codec,
}

/// Why a value could not be read or stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TypedError {
    /// The cache has none, or refused it.
    Client(ClientError),
    /// The value cannot be written in its format.
    Encode(EncodeError),
    /// What is stored is not a value of the type.
    Decode(DecodeError),
}

impl std::error::Error for TypedError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TypedError::Client(error) => Some(error),
            TypedError::Encode(error) => Some(error),
            TypedError::Decode(error) => Some(error),
        }
    }
}

impl fmt::Display for TypedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TypedError::Client(error) => error.fmt(f),
            TypedError::Encode(error) => error.fmt(f),
            TypedError::Decode(error) => error.fmt(f),
        }
    }
}

impl From<ClientError> for TypedError {
    fn from(error: ClientError) -> TypedError {
        TypedError::Client(error)
    }
}

/// Why a loader's value was not cached and returned.
#[derive(Debug)]
enum LoadError<E> {
    Load(E),
    Encode(EncodeError),
}

/// Why [`TypedClient::get_or_load`] returned no value. A failing cache is no reason: then the value is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TypedReadError<E> {
    /// The key, the loader, or the deadline.
    Read(ReadError<E>),
    /// The loaded value cannot be written in its format.
    Encode(EncodeError),
}

impl<E: std::error::Error + 'static> std::error::Error for TypedReadError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TypedReadError::Read(error) => Some(error),
            TypedReadError::Encode(error) => Some(error),
        }
    }
}

impl<E: fmt::Display> fmt::Display for TypedReadError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TypedReadError::Read(error) => error.fmt(f),
            TypedReadError::Encode(error) => error.fmt(f),
        }
    }
}

impl<E> From<ReadError<LoadError<E>>> for TypedReadError<E> {
    fn from(error: ReadError<LoadError<E>>) -> TypedReadError<E> {
        match error {
            ReadError::BadKey(error) => TypedReadError::Read(ReadError::BadKey(error)),
            ReadError::Load(LoadError::Load(error)) => TypedReadError::Read(ReadError::Load(error)),
            ReadError::Load(LoadError::Encode(error)) => TypedReadError::Encode(error),
            ReadError::LoadedCount { keys, loaded } => TypedReadError::Read(ReadError::LoadedCount { keys, loaded }),
            ReadError::DeadlineExceeded => TypedReadError::Read(ReadError::DeadlineExceeded),
        }
    }
}

impl TypedClient {
    /// A client that stores and reads values by `codec`.
    pub fn new(client: Client, codec: Codec) -> TypedClient {
        TypedClient { client, codec }
    }

    /// The client underneath, of bytes and flags.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The live value of a key; `None` on a miss. It takes no lease: to fill a miss, use
    /// [`TypedClient::get_or_load`].
    pub async fn get<T: FromContent>(&self, key: impl AsRef<[u8]>) -> Result<Option<T>, TypedError> {
        let mut values = self.get_many(&[key]).await?;
        values.pop().expect("one value per key")
    }

    /// The live values of keys, in order. If a key is invalid, the call fails and nothing is sent.
    pub async fn get_many<T: FromContent, K: AsRef<[u8]>>(
        &self,
        keys: &[K],
    ) -> Result<Vec<Result<Option<T>, TypedError>>, TypedError> {
        let found = self.client.get_live(keys).await?;
        let decode = |found: Result<_, ClientError>| match found? {
            None => Ok(None),
            Some(Encoded { value, flags }) => self.decode(value, flags).map(Some).map_err(TypedError::Decode),
        };
        Ok(found.into_iter().map(decode).collect())
    }

    /// Reads a value from the cache, or else with `load`, and fills the cache if this client holds the lease.
    ///
    /// A value in the cache that cannot be decoded is counted (`undecodable`), and loaded without a fill: it stays
    /// until it expires or is deleted. Give keys a new name when the type of their values changes.
    pub async fn get_or_load<T, E, F, L>(
        &self,
        key: impl AsRef<[u8]>,
        options: &ReadOptions,
        load: F,
    ) -> Result<T, TypedReadError<E>>
    where
        T: FromContent + ToContent,
        F: FnOnce() -> L,
        L: Future<Output = Result<T, E>>,
    {
        let mut load = Some(load);
        let load_once = |_: Vec<Bytes>| {
            let load = load.take().expect("one key is loaded at most once");
            async move { Ok(vec![load().await?]) }
        };
        let mut values = self.get_or_load_many(&[key], options, load_once).await?;
        Ok(values.pop().expect("one value per key"))
    }

    /// Reads values from the cache, or else with `load`, in order. `load` gets the keys whose values must come from the
    /// database, and returns them in that order; it may be called several times, as that of
    /// [`Client::read_many`], but never twice for one key that is named once.
    pub async fn get_or_load_many<T, E, K, F, L>(
        &self,
        keys: &[K],
        options: &ReadOptions,
        mut load: F,
    ) -> Result<Vec<T>, TypedReadError<E>>
    where
        T: FromContent + ToContent,
        K: AsRef<[u8]>,
        F: FnMut(Vec<Bytes>) -> L,
        L: Future<Output = Result<Vec<T>, E>>,
    {
        self.client
            .limit(self.read_typed(keys, options, &mut load))
            .await
            .unwrap_or_else(|| Err(TypedReadError::Read(ReadError::DeadlineExceeded)))
    }

    async fn read_typed<T, E, K, F, L>(
        &self,
        keys: &[K],
        options: &ReadOptions,
        load: &mut F,
    ) -> Result<Vec<T>, TypedReadError<E>>
    where
        T: FromContent + ToContent,
        K: AsRef<[u8]>,
        F: FnMut(Vec<Bytes>) -> L,
        L: Future<Output = Result<Vec<T>, E>>,
    {
        let codec = self.codec;
        let load_encoded = |missed| {
            let loaded = load(missed);
            async move {
                let loaded = loaded.await.map_err(LoadError::Load)?;
                let encoded: Result<Vec<Encoded>, EncodeError> =
                    loaded.iter().map(|value| codec.encode(value)).collect();
                encoded.map_err(LoadError::Encode)
            }
        };
        let found = self.client.read_encoded(keys, options, load_encoded).await?;
        let mut undecodable = Vec::new();
        let mut values: Vec<Option<T>> = Vec::with_capacity(found.len());
        for (at, found) in found.into_iter().enumerate() {
            let is_loaded = found.origin == Origin::Database;
            match self.decode(found.value, found.flags) {
                Ok(value) => values.push(Some(value)),
                // The codec cannot read what it has just written.
                Err(error) if is_loaded => {
                    let why = format!("it cannot be read back: {error}");
                    return Err(TypedReadError::Encode(EncodeError::Failed { what: "value", why }));
                }
                Err(_) => {
                    undecodable.push(at);
                    values.push(None);
                }
            }
        }
        if !undecodable.is_empty() {
            let missed: Vec<Bytes> = undecodable.iter().map(|&at| Bytes::copy_from_slice(keys[at].as_ref())).collect();
            self.client.count_loads(missed.len());
            let loaded = check_loaded(missed.len(), load(missed).await).map_err(TypedReadError::Read)?;
            for (at, value) in undecodable.into_iter().zip(loaded) {
                values[at] = Some(value);
            }
        }
        Ok(values.into_iter().map(|value| value.expect("each was found or loaded")).collect())
    }

    /// Stores a value unconditionally; see [`Client::set`] for what that may overwrite.
    pub async fn set<T: ToContent + ?Sized>(
        &self,
        key: impl AsRef<[u8]>,
        value: &T,
        exptime: i64,
    ) -> Result<(), TypedError> {
        let Encoded { value, flags } = self.codec.encode(value).map_err(TypedError::Encode)?;
        Ok(self.client.set(key, value, flags, exptime).await?)
    }

    /// Stores a value if there is none; see [`Client::add`].
    pub async fn add<T: ToContent + ?Sized>(
        &self,
        key: impl AsRef<[u8]>,
        value: &T,
        exptime: i64,
    ) -> Result<bool, TypedError> {
        let Encoded { value, flags } = self.codec.encode(value).map_err(TypedError::Encode)?;
        Ok(self.client.add(key, value, flags, exptime).await?)
    }

    /// Stores values in one round trip; see [`Client::set_many`]. If one cannot be written in its format, nothing is
    /// sent.
    pub async fn set_many<K: AsRef<[u8]>, T: ToContent>(
        &self,
        values: impl IntoIterator<Item = (K, T)>,
        exptime: i64,
    ) -> Result<Vec<Result<(), ClientError>>, TypedError> {
        let encode = |(key, value)| Ok((key, self.codec.encode(&value)?));
        let encoded: Result<Vec<_>, EncodeError> = values.into_iter().map(encode).collect();
        Ok(self.client.set_many(encoded.map_err(TypedError::Encode)?, exptime).await?)
    }

    /// Deletes a key; see [`Client::delete`].
    pub async fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool, ClientError> {
        self.client.delete(key).await
    }

    fn decode<T: FromContent>(&self, value: Bytes, flags: u32) -> Result<T, DecodeError> {
        self.codec.decode(value, flags).inspect_err(|_| self.client.count_undecodable())
    }
}
