//! The application's client of one cluster. In a replica region it sets remote markers, so that users read their own
//! writes although the region's database may not have them yet (§5).

use anyhow::{Result, anyhow};
use bytes::Bytes;
use lookaside_client::{
    Client, DestinationOptions, MarkerSettings, ReadFrom, ReadOptions, RegionalClient, RemoteWrite, TcpDestination,
    TcpNetwork, Value,
};
use lookaside_routing::{Address, DestinationRoute};
use std::sync::Arc;

/// A client of one cluster.
#[derive(Clone)]
pub(super) enum ClusterClient {
    /// In the region of the master database.
    Master(Client),
    /// In the region of a replica. The cluster's router sends markers to the region's server of markers.
    Replica(RegionalClient),
}

/// A write that has begun.
pub(super) enum Write {
    Master { client: Client, key: String },
    Replica(RemoteWrite),
}

impl ClusterClient {
    /// A client that connects to a router, in a replica region or in the master's.
    pub(super) fn new(router: &str, seed: u64, is_in_replica: bool) -> Result<ClusterClient> {
        let options = DestinationOptions { seed, ..DestinationOptions::default() };
        let destination = TcpDestination::new(Address(router.into()), Arc::new(TcpNetwork), options);
        let route = Arc::new(DestinationRoute::new(Arc::new(destination), true));
        let client = Client::new(route.clone());
        match is_in_replica {
            false => Ok(ClusterClient::Master(client)),
            true => Ok(ClusterClient::Replica(RegionalClient::new(client, route, MarkerSettings::default())?)),
        }
    }

    /// Its markers; `None` in the region of the master database.
    pub(super) fn regional(&self) -> Option<&RegionalClient> {
        match self {
            ClusterClient::Master(_) => None,
            ClusterClient::Replica(regional) => Some(regional),
        }
    }

    /// Reads values, in the order of the keys. `load` gets the keys that have missed, and the database to read them
    /// from.
    pub(super) async fn read_many<L>(
        &self,
        keys: &[String],
        load: impl Fn(ReadFrom, Vec<Bytes>) -> L + Send + Sync,
    ) -> Result<Vec<Value>>
    where
        L: Future<Output = Result<Vec<Bytes>>> + Send,
    {
        let options = ReadOptions::default();
        let values = match self {
            // This region's own database is the master.
            ClusterClient::Master(client) => {
                client.read_many(keys, &options, |missed| load(ReadFrom::Replica, missed)).await
            }
            ClusterClient::Replica(regional) => regional.read_many(keys, &options, &load).await,
        };
        values.map_err(|error| anyhow!("{error}"))
    }

    /// Sets the marker of a key in a replica region.
    pub(super) async fn begin_write(&self, key: String) -> Result<Write> {
        match self {
            ClusterClient::Master(client) => Ok(Write::Master { client: client.clone(), key }),
            ClusterClient::Replica(regional) => Ok(Write::Replica(regional.begin_write(&[key]).await?)),
        }
    }
}

impl Write {
    /// The markers that the transaction must name besides the key.
    pub(super) fn markers(&self) -> Vec<String> {
        let to_text = |marker: &Bytes| String::from_utf8_lossy(marker).into_owned();
        match self {
            Write::Master { .. } => Vec::new(),
            Write::Replica(write) => write.markers().map(to_text).collect(),
        }
    }

    /// Deletes the key in the writer's own cluster, after the commit. The invalidators delete it in the others.
    pub(super) async fn finish(self) -> Result<()> {
        match self {
            Write::Master { client, key } => client.delete(key).await.map(drop)?,
            Write::Replica(write) => write.finish().await?,
        }
        Ok(())
    }
}
