//! The Rust of docs/clients.md, with the names that the page leaves out, so that it is compiled as printed.
//! `tests/python/test_documentation.py` compares the two.

/// ```no_run
/// # use lookaside_client::*;
/// # use lookaside_routing::{Address, DestinationRoute};
/// # use std::{io, sync::Arc};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct User;
/// # async fn load_user(id: u64) -> io::Result<Option<MessagePack<User>>> {
/// #     Ok((id == 42).then_some(MessagePack(User)))
/// # }
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let router = TcpDestination::new(Address("127.0.0.1:5000".into()), Arc::new(TcpNetwork), DestinationOptions::default());
/// let client = Client::new(Arc::new(DestinationRoute::new(Arc::new(router), true)));
/// let cache = TypedClient::new(client, Codec::default().with_compression(Compression::Zstd, 1_000));
///
/// // Reads, loads and fills under a lease. A row that does not exist is cached, too, for 30 seconds.
/// let user: Option<MessagePack<User>> = cache.get_or_load("user:42", &ReadOptions::default(), || load_user(42)).await?;
/// cache.delete("user:42").await?;
/// # assert!(user.is_some());
/// # Ok(())
/// # }
/// ```
struct RustSnippet;

/// ```no_run
/// # use bytes::Bytes;
/// # use lookaside_client::*;
/// # use std::{io, sync::Arc};
/// # struct Database;
/// # impl Database {
/// #     async fn execute(&self, sql: &str) -> io::Result<()> {
/// #         Err(io::Error::other(sql))
/// #     }
/// # }
/// # async fn load_user(_: &Database, _: u64) -> io::Result<Bytes> {
/// #     Ok("bob".into())
/// # }
/// # async fn example(
/// #     route: Arc<dyn lookaside_routing::Route>,
/// #     master: Database,
/// #     replica: Database,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// // The route sends keys with the prefix `marker:` to the regional pool.
/// let regional = RegionalClient::new(Client::new(route.clone()), route, MarkerSettings::default())?;
///
/// let write = regional.begin_write(&["user:42"]).await?;
/// // At the master, with the keys and their markers named: in MariaDB and MySQL by a comment, and in each database by a
/// // row of the outbox for each of write.keys().
/// let comment = write.sql_comment().expect("plain keys");
/// master.execute(&format!("UPDATE users SET name = 'bob' WHERE id = 42 {comment}")).await?;
/// write.finish().await?;
///
/// let user = regional.read("user:42", &ReadOptions::default(), |from| async move {
///     match from {
///         ReadFrom::Master => load_user(&master, 42).await,
///         ReadFrom::Replica => load_user(&replica, 42).await,
///     }
/// }).await?;
/// # assert_eq!(user.value, "bob");
/// # Ok(())
/// # }
/// ```
struct ReplicaRegionSnippet;

/// ```
/// # async fn show_page(page: &lookaside_client::Client) {
/// #     page.get_many(&["user:42", "user:43"]).await.expect("valid keys");
/// # }
/// # async fn example(client: lookaside_client::Client) {
/// let page = client.with_own_statistics();
/// show_page(&page).await;
/// let counted = page.statistics();
/// tracing::info!(round_trips = counted.round_trips, hits = counted.hits, misses = counted.misses, "page");
/// # assert_eq!((counted.round_trips, counted.hits, counted.misses), (1, 0, 2));
/// # }
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(example(
/// #     lookaside_client::Client::new(std::sync::Arc::new(lookaside_routing::NullRoute))
/// # ));
/// ```
struct StatisticsSnippet;

/// ```no_run
/// # async fn load(key: &str) -> std::io::Result<bytes::Bytes> {
/// #     Ok(key.to_owned().into())
/// # }
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use lookaside_client::{Client, ReadOptions, config::Source};
/// use lookaside_routing::Address;
///
/// let routers = ["10.0.0.1:5000", "10.0.0.2:5000"].map(|router| Address(router.into()));
/// let client = Client::from_config(Source::File("router.json".into()), routers).await?;
/// let options = ReadOptions::default();
/// let user = client.read("user:42", &options, || async { load("user:42").await }).await?;
/// client.delete("user:42").await?;
/// # assert_eq!(user.value, "user:42");
/// # Ok(())
/// # }
/// ```
struct DirectSnippet;
