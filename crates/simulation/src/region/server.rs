//! A cache server: the production session and store behind a simulated listener.

use super::SimulatedRegion;
use super::guarantee::DisabledGuarantee;
use super::names::{address, markers_host};
use crate::{
    item_log::{ItemLog, mentioned_keys},
    process::Process,
    value::version_of,
};
use bytes::Bytes;
use lookaside_client::Stream;
use lookaside_server::{Counters, Session, SessionContext, SessionState};
use lookaside_store::{Now, Options, Store};
use std::{sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
};

pub(super) const BOOT_UNIX_MS: u64 = 1_700_000_000_000;
/// Small, so that items are evicted.
const MEMORY_BYTES: usize = 2 << 20;
/// Long enough for herds to form, short enough that the lease of a dead holder expires within a run.
const LEASE_INTERVAL_MS: u32 = 500;
const STALE_MS: u32 = 1_000;
/// How often the daemon notes which items are stored by now.
const MARK_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(super) struct ServerMemory {
    store: Arc<Store>,
    options: Arc<Options>,
}

impl ServerMemory {
    /// Of a server that evicts nothing (`-M`) and shows no stale values, in a pool of remote markers.
    fn new(seed: u64, is_of_marker_pool: bool) -> ServerMemory {
        let options = Options {
            memory_bytes_max: MEMORY_BYTES,
            item_bytes_max: 64 << 10,
            lease_interval_ms: LEASE_INTERVAL_MS,
            stale_ms: if is_of_marker_pool { 0 } else { STALE_MS },
            evictions: !is_of_marker_pool,
            seed,
            ..Options::default()
        };
        ServerMemory {
            store: Arc::new(Store::new(options.clone()).expect("these options fit")),
            options: Arc::new(options),
        }
    }

    /// The version that a plain get of `key` would return; `None` on a miss.
    pub(super) fn version(&self, key: &str, now: Now) -> Option<u64> {
        let reader = self.store.reader(now);
        reader.get(self.store.hasher().hash(key.as_bytes()), |item| {
            version_of(&item.value.pieces().flatten().copied().collect::<Vec<u8>>())
        })
    }

    /// The CAS unique of the item that a plain get of `key` would return; `None` on a miss.
    fn cas(&self, key: &[u8], now: Now) -> Option<u64> {
        self.store.reader(now).get(self.store.hasher().hash(key), |item| item.cas.0)
    }
}

impl SimulatedRegion {
    pub(crate) fn start_server(&self, host: &str, seed: u64) {
        let memory = ServerMemory::new(seed, host == markers_host(self.index));
        if let Some(items) = &self.items {
            items.clear(host);
        }
        self.stores.borrow_mut().insert(host.to_owned(), memory.clone());
        self.run_server(host, memory);
    }

    /// Starts a server with the items of the process before it (`--warm-restart`).
    pub(super) fn start_server_with_its_items(&self, host: &str) {
        self.void_leases(host);
        let memory = self.stores.borrow()[host].clone();
        self.run_server(host, memory);
    }

    /// Leases do not outlast the process that has granted them.
    pub(super) fn void_leases(&self, host: &str) {
        self.stores.borrow()[host].store.void_leases(self.now());
    }

    fn run_server(&self, host: &str, memory: ServerMemory) {
        let process = Process::default();
        let network = self.network.host(host);
        let (region, address, name) = (self.clone(), address(host), Arc::<str>::from(host));
        self.programs.start(host, process.clone(), async move {
            let mut listener = network.listen(&address).await.expect("a simulated network listens");
            let mut connections = JoinSet::new();
            if let Some(items) = region.items.clone() {
                connections.spawn_local(process.task(mark_ages(name.clone(), items, memory.clone(), region.clone())));
            }
            while let Ok(stream) = listener.accept().await {
                let serving = serve(stream, name.clone(), memory.clone(), region.clone());
                connections.spawn_local(process.task(serving));
                while connections.try_join_next().is_some() {}
            }
        });
    }
}

impl SimulatedRegion {
    /// Records what a server has under keys that requests mention.
    fn record_items<'a>(
        &self,
        host: &Arc<str>,
        memory: &ServerMemory,
        mentioned: impl Iterator<Item = &'a (Bytes, bool)>,
    ) {
        for (key, is_asked) in mentioned {
            if let Some(items) = &self.items {
                items.record(host, key.clone(), memory.cas(key, self.now()), *is_asked);
            }
        }
    }
}

/// What the daemon's main thread does for `me KEY a`.
async fn mark_ages(host: Arc<str>, items: ItemLog, memory: ServerMemory, region: SimulatedRegion) {
    loop {
        memory.store.mark_ages(|| region.now());
        items.record_mark(&host);
        tokio::time::sleep(MARK_INTERVAL).await;
    }
}

async fn serve(mut stream: Box<dyn Stream>, host: Arc<str>, memory: ServerMemory, region: SimulatedRegion) {
    let counters = Counters::default();
    let mut session = Session::new();
    let (mut input, mut output) = (Vec::new(), Vec::new());
    while matches!(stream.read_buf(&mut input).await, Ok(read) if read > 0) {
        if region.disabled == DisabledGuarantee::LeaseVoids && input == b"lease-void-all\r\n" {
            // The same reply, without an effect.
            input = b"verbosity 1\r\n".to_vec();
        }
        let mentioned = if region.items.is_some() { mentioned_keys(&input) } else { Vec::new() };
        // Between requests of the same round an item may change: it is recorded before and after them.
        region.record_items(&host, &memory, mentioned.iter().filter(|(_, is_asked)| *is_asked));
        let service = SessionContext::new(&memory.store, &memory.options, &counters);
        let state = session.serve(&mut input, &service, region.now(), &mut output);
        region.record_items(&host, &memory, mentioned.iter());
        if stream.write_all(&output).await.is_err() || state == SessionState::Close {
            return;
        }
        output.clear();
    }
}
