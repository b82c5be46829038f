//! The simulated network: hung processes, slow links.

use lookaside_client::{Network, Stream};
use lookaside_routing::Address;
use lookaside_simulation::{
    network::{LinkModel, SimulatedNetwork},
    process::Process,
};
use std::{sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{Instant, timeout},
};

const SERVER: &str = "server";
const CLIENT: &str = "client";
const LINK_MODEL: LinkModel = LinkModel { delay_us_min: 1_000, delay_us_max: 2_000, late_one_in: 0, late_us_max: 0 };
/// Longer than a request and its reply take.
const ROUND_TRIP_MAX: Duration = Duration::from_millis(20);

struct Fixture {
    network: SimulatedNetwork,
    client: Arc<dyn Network>,
    server: Process,
    address: Address,
}

impl Fixture {
    /// A server that sends back what it receives.
    async fn start() -> Fixture {
        let network = SimulatedNetwork::new(1, LINK_MODEL);
        let (server, address) = (Process::default(), Address("server:1".into()));
        let mut listener = network.host(SERVER, &server).listen(&address).await.expect("it listens");
        tokio::spawn(async move {
            while let Ok(mut stream) = listener.accept().await {
                tokio::spawn(async move {
                    let mut byte = [0];
                    while stream.read_exact(&mut byte).await.is_ok() && stream.write_all(&byte).await.is_ok() {}
                });
            }
        });
        let client = network.host(CLIENT, &Process::default());
        Fixture { network, client, server, address }
    }

    async fn connect(&self) -> Box<dyn Stream> {
        self.client.connect(&self.address).await.expect("it is connected")
    }
}

async fn exchange(stream: &mut Box<dyn Stream>, byte: u8) {
    stream.write_all(&[byte]).await.expect("it is sent");
    receive(stream, byte).await;
}

async fn receive(stream: &mut Box<dyn Stream>, byte: u8) {
    assert_eq!(stream.read_u8().await.expect("it is received"), byte);
}

#[tokio::test(start_paused = true)]
async fn a_hung_process_keeps_its_connections_and_answers_when_it_resumes() {
    let fixture = Fixture::start().await;
    let mut stream = fixture.connect().await;
    exchange(&mut stream, 1).await;
    fixture.server.hang();
    let mut second = fixture.connect().await;
    stream.write_all(&[2]).await.expect("the socket accepts it");
    second.write_all(&[3]).await.expect("the socket accepts it");
    assert!(timeout(Duration::from_secs(60), stream.read_u8()).await.is_err(), "no answer");
    fixture.server.resume();
    timeout(ROUND_TRIP_MAX, receive(&mut stream, 2)).await.expect("answered at once");
    timeout(ROUND_TRIP_MAX, receive(&mut second, 3)).await.expect("accepted and answered at once");
}

#[tokio::test(start_paused = true)]
async fn a_hung_process_closes_nothing_before_it_resumes() {
    let fixture = Fixture::start().await;
    let client_process = Process::default();
    let network = fixture.network.host("other", &client_process);
    let mut listener = network.listen(&Address("other:1".into())).await.expect("it listens");
    let mut near = fixture.client.connect(&Address("other:1".into())).await.expect("it is connected");
    let far = listener.accept().await.expect("it is accepted");
    client_process.hang();
    drop(far);
    assert!(timeout(Duration::from_secs(60), near.read_u8()).await.is_err(), "it is still open");
    client_process.resume();
    assert!(timeout(ROUND_TRIP_MAX, near.read_u8()).await.expect("closed").is_err());
}

#[tokio::test(start_paused = true)]
async fn a_slow_link_delays_both_directions_until_it_is_repaired() {
    let fixture = Fixture::start().await;
    let mut stream = fixture.connect().await;
    fixture.network.slow_down(CLIENT, SERVER, Duration::from_secs(1));
    let started = Instant::now();
    exchange(&mut stream, 1).await;
    assert!(started.elapsed() >= Duration::from_secs(2), "{:?}", started.elapsed());
    let mut second = fixture.connect().await;
    let started = Instant::now();
    exchange(&mut second, 2).await;
    assert!(started.elapsed() >= Duration::from_secs(2), "{:?}", started.elapsed());
    fixture.network.slow_down(CLIENT, SERVER, Duration::ZERO);
    timeout(ROUND_TRIP_MAX, exchange(&mut second, 3)).await.expect("fast again");
}
