//! A cache server: the production session and store behind a simulated listener.

use super::SimulatedRegion;
use super::guarantee::DisabledGuarantee;
use super::names::address;
use crate::{process::Process, value::version_of};
use lookaside_client::Stream;
use lookaside_server::{Counters, Session, SessionContext, SessionState};
use lookaside_store::{HashedKey, Now, Options, Store};
use std::sync::Arc;
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

#[derive(Clone)]
pub(super) struct ServerMemory {
    store: Arc<Store>,
    options: Arc<Options>,
}

impl ServerMemory {
    fn new(seed: u64) -> ServerMemory {
        let options = Options {
            memory_bytes_max: MEMORY_BYTES,
            item_bytes_max: 64 << 10,
            lease_interval_ms: LEASE_INTERVAL_MS,
            stale_ms: STALE_MS,
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
        reader.get(HashedKey::new(key.as_bytes()), |item| {
            version_of(&item.value.pieces().flatten().copied().collect::<Vec<u8>>())
        })
    }
}

impl SimulatedRegion {
    pub(super) fn start_server(&self, host: &str, seed: u64) {
        let memory = ServerMemory::new(seed);
        self.stores.borrow_mut().insert(host.to_owned(), memory.clone());
        let process = Process::default();
        let network = self.network.host(host);
        let (region, address) = (self.clone(), address(host));
        self.programs.start(host, process.clone(), async move {
            let mut listener = network.listen(&address).await.expect("a simulated network listens");
            let mut connections = JoinSet::new();
            while let Ok(stream) = listener.accept().await {
                connections.spawn_local(process.task(serve(stream, memory.clone(), region.clone())));
                while connections.try_join_next().is_some() {}
            }
        });
    }
}

async fn serve(mut stream: Box<dyn Stream>, memory: ServerMemory, region: SimulatedRegion) {
    let counters = Counters::default();
    let mut session = Session::new();
    let (mut input, mut output) = (Vec::new(), Vec::new());
    while matches!(stream.read_buf(&mut input).await, Ok(read) if read > 0) {
        if region.disabled == DisabledGuarantee::LeaseVoids && input == b"lease-void-all\r\n" {
            // The same reply, without an effect.
            input = b"verbosity 1\r\n".to_vec();
        }
        let service = SessionContext::new(&memory.store, &memory.options, &counters);
        let state = session.serve(&mut input, &service, region.now(), &mut output);
        if stream.write_all(&output).await.is_err() || state == SessionState::Close {
            return;
        }
        output.clear();
    }
}
