//! The simulated network: hung processes, slow links.

use lookaside_client::{Network, Stream, spawn};
use lookaside_routing::Address;
use lookaside_simulation::{
    network::{LinkModel, SimulatedNetwork},
    process::Process,
};
use std::{sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{Instant, sleep, timeout},
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
        let mut listener = network.host(SERVER).listen(&address).await.expect("it listens");
        tokio::spawn(server.task(async move {
            while let Ok(mut stream) = listener.accept().await {
                spawn(async move {
                    let mut byte = [0];
                    while stream.read_exact(&mut byte).await.is_ok() && stream.write_all(&byte).await.is_ok() {}
                });
            }
        }));
        let client = network.host(CLIENT);
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
    let other = Process::default();
    let mut listener = fixture.network.host("other").listen(&Address("other:1".into())).await.expect("it listens");
    let mut near = fixture.client.connect(&Address("other:1".into())).await.expect("it is connected");
    tokio::spawn(other.task(async move {
        let _far = listener.accept().await.expect("it is accepted");
        sleep(Duration::from_secs(1)).await;
    }));
    assert!(timeout(ROUND_TRIP_MAX, near.read_u8()).await.is_err(), "it is open");
    other.hang();
    assert!(timeout(Duration::from_secs(60), near.read_u8()).await.is_err(), "it is still open");
    other.resume();
    assert!(timeout(ROUND_TRIP_MAX, near.read_u8()).await.expect("closed").is_err());
}

/// A process that resumes finds that its timers have expired, and that bytes have arrived long ago.
#[tokio::test(start_paused = true)]
async fn the_timers_of_a_hung_process_expire_when_it_resumes_and_what_has_arrived_is_there() {
    let fixture = Fixture::start().await;
    let mut stream = fixture.connect().await;
    let client = Process::default();
    let exchange = tokio::spawn(client.task(async move {
        stream.write_all(&[1]).await.expect("it is sent");
        let ticked = spawn(sleep(Duration::from_secs(1)));
        let reply = timeout(Duration::from_secs(2), stream.read_u8()).await;
        ticked.await.expect("it ends");
        (reply.is_ok(), Instant::now())
    }));
    tokio::task::yield_now().await;
    client.hang();
    let started = Instant::now();
    sleep(Duration::from_secs(60)).await;
    client.resume();
    let (has_reply, ended) = exchange.await.expect("it ends");
    assert!(has_reply, "the reply was there before the process looked at the clock");
    assert_eq!(ended - started, Duration::from_secs(60));
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
