//! Gets by UDP against a server on a real socket that loses, delays and reorders datagrams. Its TCP side is in memory.

use crate::fake::cluster::{Cluster, config};
use bytes::Bytes;
use lookaside_client::config::{ConfigId, Source};
use lookaside_client::{
    Client, ClientError, DirectRoute, Lookup, Origin, Permit, PermitReply, ReadOptions, UdpOptions, UdpStatistics,
    WindowSettings,
};
use lookaside_protocol::udp::{FrameHeader, compose_datagrams, datagrams};
use lookaside_routing::{Address, DatagramLoss, Failure};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep};

/// Longer than any reply takes on a slow machine.
const LONG_MS: u64 = 20_000;
/// A reply of this many bytes takes three datagrams.
const VALUE_BYTES: usize = 4_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behaviour {
    Well,
    Silent,
    /// Without the datagram in the middle.
    Lossy,
    /// The first two datagrams change places.
    Reordering,
    /// Each reply is sent with the next request's, both as they should be.
    Late,
    Refusing,
    /// It refuses replies to more keys than this.
    RefusingMore(usize),
    /// Its replies are to other keys.
    Malformed,
}

struct Fixture {
    cluster: Cluster,
    server: String,
    behaviour: Arc<Mutex<Behaviour>>,
    route: Arc<DirectRoute>,
    client: Client,
}

impl Fixture {
    async fn start(timeout_ms: u64) -> Fixture {
        Fixture::of(config, timeout_ms).await
    }

    /// `config` makes the configuration from the server's address.
    async fn of(config: fn(&str) -> String, timeout_ms: u64) -> Fixture {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
        let server = socket.local_addr().expect("it is bound").to_string();
        let behaviour = Arc::new(Mutex::new(Behaviour::Well));
        tokio::spawn(serve(socket, behaviour.clone()));
        let cluster = Cluster::of(&[&server, "gutter:1", "router:1"]);
        cluster.set_everywhere("k");
        cluster.permit("router:1", &permit(&config(&server), []));
        let source = Source::Text(config(&server));
        let builder = DirectRoute::builder(source, [Address("router:1".into())]).network(Arc::new(cluster.clone()));
        let route = builder.udp(UdpOptions { port: None, timeout_ms }).build().await.expect("it is valid");
        eventually(|| route.is_permitted()).await;
        Fixture { cluster, server, behaviour, client: Client::new(route.clone()), route }
    }

    fn be(&self, behaviour: Behaviour) {
        *self.behaviour.lock().unwrap() = behaviour;
    }

    fn statistics(&self) -> UdpStatistics {
        self.route.udp_statistics().expect("gets are sent by UDP")
    }

    /// What was lost of a get or its reply; the result of the get if nothing was.
    async fn loss(&self, key: &str) -> Result<DatagramLoss, Result<Bytes, ClientError>> {
        match self.get(key).await {
            Err(ClientError::DatagramLost { server, loss }) => {
                assert_eq!(*server.0, *self.server);
                Ok(loss)
            }
            other => Err(other),
        }
    }

    async fn get(&self, key: &str) -> Result<Bytes, ClientError> {
        self.client.get(key).await.map(|lookup| match lookup {
            Lookup::Hit { value, .. } => value,
            other => panic!("no hit: {other:?}"),
        })
    }
}

/// One that does not end while a test runs, however slow the machine is.
fn permit<const N: usize>(config: &str, fenced: [&str; N]) -> PermitReply {
    PermitReply::Permitted(Permit {
        duration: Duration::from_secs(3_600),
        configuration: ConfigId::of(config).expect("it is valid"),
        data_options: String::new(),
        fenced: fenced.map(|server| Address(server.into())).into(),
        spares: [].into(),
        takes_leases: false,
    })
}

async fn eventually(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_millis(LONG_MS);
    while !condition() {
        assert!(Instant::now() < deadline, "not in time");
        sleep(Duration::from_millis(1)).await;
    }
}

/// Every key has a value that begins with it, of [`VALUE_BYTES`] unless the key has a colon.
async fn serve(socket: UdpSocket, behaviour: Arc<Mutex<Behaviour>>) {
    let (mut received, mut late): (_, Vec<Vec<u8>>) = (vec![0; 2_000], Vec::new());
    loop {
        let (bytes, client) = socket.recv_from(&mut received).await.expect("it receives");
        let (header, line) = FrameHeader::parse(&received[..bytes]).expect("a request");
        let line = str::from_utf8(line).expect("text").trim_end().to_owned();
        // A probe is a plain get.
        let keys = line.strip_prefix("lease-get ").or(line.strip_prefix("get ")).expect("a get").split(' ');
        let behaviour = *behaviour.lock().unwrap();
        let item = |key: &str| {
            let bytes = if key.contains(':') { key.len() } else { VALUE_BYTES };
            format!("VALUE {key} 0 {bytes}\r\n{key:.<bytes$}\r\n")
        };
        let items: Vec<String> = keys.map(item).collect();
        let is_refused = match behaviour {
            Behaviour::Refusing => true,
            Behaviour::RefusingMore(keys_max) => items.len() > keys_max,
            _ => false,
        };
        let reply = match is_refused {
            true => "SERVER_ERROR reply too large for UDP, use TCP\r\n".to_owned(),
            false if behaviour == Behaviour::Malformed => "VALUE another 0 1\r\n1\r\nEND\r\n".to_owned(),
            false => items.concat() + "END\r\n",
        };
        let mut composed = Vec::new();
        assert!(compose_datagrams(header.request_id, reply.as_bytes(), &mut composed));
        let mut sent: Vec<Vec<u8>> = datagrams(&composed).map(<[u8]>::to_vec).collect();
        match behaviour {
            Behaviour::Silent => continue,
            Behaviour::Lossy => drop(sent.remove(1)),
            Behaviour::Reordering => sent.swap(0, 1),
            Behaviour::Late => sent = std::mem::replace(&mut late, sent),
            Behaviour::Well | Behaviour::Refusing | Behaviour::RefusingMore(_) | Behaviour::Malformed => {}
        }
        for datagram in sent {
            socket.send_to(&datagram, client).await.expect("it sends");
        }
    }
}

#[tokio::test]
async fn gets_are_sent_by_udp_and_all_else_by_tcp() {
    let fixture = Fixture::start(LONG_MS).await;
    let value = fixture.get("k").await.expect("a hit");
    assert_eq!((value.len(), &value[..2]), (VALUE_BYTES, &b"k."[..]));
    let keys: Vec<String> = (0..200).map(|key| format!("key-of-some-length:{key:04}")).collect();
    let values = fixture.client.get_many(&keys).await.expect("valid keys");
    for (key, value) in keys.iter().zip(values) {
        assert!(matches!(value, Ok(Lookup::Hit { value, .. }) if value.starts_with(key.as_bytes())), "{key}");
    }
    fixture.client.set("k", "new", 0, 0).await.expect("the router stores it");
    let statistics = fixture.statistics();
    assert_eq!((statistics.keys, statistics.requests), (201, 5));
    assert_eq!(UdpStatistics { keys: 0, requests: 0, ..statistics }, UdpStatistics::default());
    assert_eq!(fixture.cluster.cache(&fixture.server).lock().lines, 0, "nothing by TCP");
}

/// The reply to a request that has ended is counted, and is not the next one's.
#[tokio::test]
async fn lost_late_and_reordered_replies_are_errors_by_cause() {
    let fixture = Fixture::start(100).await;
    fixture.be(Behaviour::Reordering);
    assert_eq!(fixture.loss("k").await, Ok(DatagramLoss::OutOfOrder));
    fixture.be(Behaviour::Lossy);
    assert_eq!(fixture.loss("k").await, Ok(DatagramLoss::OutOfOrder));
    assert_eq!((fixture.statistics().reordered, fixture.statistics().lost), (2, 0));
    fixture.be(Behaviour::Late);
    let late = fixture.statistics().late;
    assert_eq!(fixture.loss("first").await, Ok(DatagramLoss::LostOrLate));
    assert_eq!(fixture.loss("second").await, Ok(DatagramLoss::LostOrLate), "it gets the first one's reply");
    eventually(|| fixture.statistics().late >= late + 3).await;
    assert_eq!(fixture.statistics().lost, 2);
}

/// The gutter, which has the key, is not asked.
#[tokio::test]
async fn a_miss_by_a_lost_datagram_is_loaded_and_not_filled() {
    let fixture = Fixture::start(100).await;
    for behaviour in [Behaviour::Reordering, Behaviour::Lossy, Behaviour::Late] {
        fixture.be(behaviour);
        let load = || async { Ok::<_, Infallible>("loaded".into()) };
        let read = fixture.client.read("k", &ReadOptions::default(), load).await.expect("the loader succeeds");
        assert_eq!((&read.value[..], read.origin), (&b"loaded"[..], Origin::Database), "{behaviour:?}");
    }
    let fills = |address: &str| fixture.cluster.cache(address).lock().lease_sets;
    assert_eq!(["router:1", "gutter:1", &fixture.server].map(fills), [0, 0, 0]);
    assert_eq!(fixture.client.statistics().errors, 3);
}

#[tokio::test]
async fn a_refused_reply_is_fetched_by_tcp() {
    let fixture = Fixture::start(LONG_MS).await;
    fixture.be(Behaviour::Refusing);
    assert_eq!(fixture.get("k").await.as_deref(), Ok(fixture.server.as_bytes()), "the value that it has by TCP");
    assert_eq!(fixture.statistics().refused, 1);
}

/// Once both were an error line of the server, so that a caller could not tell one from the other.
#[tokio::test]
async fn an_error_of_the_server_is_no_lost_datagram() {
    let fixture = Fixture::start(LONG_MS).await;
    fixture.be(Behaviour::Refusing);
    for address in [&fixture.server, "gutter:1"] {
        fixture.cluster.cache(address).lock().refuses_gets = true;
    }
    let why = "out of memory reading request".to_owned();
    assert_eq!(fixture.get("k").await, Err(ClientError::Refused { why }));
}

/// Once it was taken for a lost datagram, although the server has not understood the get.
#[tokio::test]
async fn a_reply_that_cannot_be_parsed_is_a_failure_as_by_tcp() {
    let fixture = Fixture::start(LONG_MS).await;
    fixture.be(Behaviour::Malformed);
    assert_eq!(fixture.get("k").await.as_deref(), Ok(&b"gutter:1"[..]), "the next server is asked");
    assert_eq!((fixture.statistics().malformed, fixture.statistics().lost), (1, 0));
}

#[tokio::test]
async fn a_failure_names_its_server() {
    let without_gutter = |server: &str| {
        format!(r#"{{ "pools": {{ "main": {{ "servers": ["{server}"] }} }}, "route": "PoolRoute|main" }}"#)
    };
    let fixture = Fixture::of(without_gutter, LONG_MS).await;
    fixture.be(Behaviour::Malformed);
    let (server, failure) = (Address((*fixture.server).into()), Box::new(Failure::Malformed));
    assert_eq!(fixture.get("k").await, Err(ClientError::Failed(Failure::OfServer { server, failure })));
}

/// Once every such page was first sent by UDP in vain.
#[tokio::test]
async fn large_pages_are_sent_in_datagrams_whose_replies_are_not_refused() {
    let fixture = Fixture::start(LONG_MS).await;
    fixture.be(Behaviour::RefusingMore(7));
    let keys: Vec<String> = (0..40).map(|key| format!("key:{key:02}")).collect();
    for _ in 0..20 {
        let lookups = fixture.client.get_many(&keys).await.expect("valid keys");
        assert!(lookups.iter().all(Result::is_ok), "by UDP or by TCP");
    }
    // 40, 20, 10 and then 5 keys in a datagram: three pages. From there on it is raised to 8, and halved to 4.
    let by_tcp = fixture.cluster.cache(&fixture.server).lock().lease_gets;
    assert!((120..=6 * 40).contains(&by_tcp), "{by_tcp} of 800 keys had to be sent by TCP, too");
}

#[tokio::test]
async fn a_server_that_does_not_answer_by_udp_is_sent_its_gets_by_tcp() {
    let fixture = Fixture::start(20).await;
    fixture.be(Behaviour::Silent);
    for _ in 0..3 {
        assert_eq!(fixture.loss("k").await, Ok(DatagramLoss::LostOrLate));
    }
    let size = || fixture.route.window_statistics().expect("there is a window").size;
    assert_eq!(size(), WindowSettings::by_delay().initial, "without a UDP port nothing is lost on the way");
    // The first probe is in vain.
    let mut gets = 0;
    let deadline = Instant::now() + Duration::from_millis(LONG_MS);
    while fixture.statistics().probes == 0 || gets < 10 {
        assert!(Instant::now() < deadline, "{gets} gets have been sent by TCP");
        let value = fixture.get("k").await.expect("no get fails");
        sleep(Duration::from_millis(1)).await;
        // On a busy machine the permit may end before it is renewed.
        if value != "router:1" {
            assert_eq!(value, fixture.server.as_bytes(), "by TCP");
            gets += 1;
        }
    }
    assert_eq!((fixture.statistics().distrusted_keys, fixture.statistics().lost), (gets, 3), "no get failed");
    fixture.be(Behaviour::Well);
    let deadline = Instant::now() + Duration::from_millis(LONG_MS);
    loop {
        let value = fixture.get("k").await.expect("by TCP or by UDP");
        if value.starts_with(b"k.") {
            break;
        }
        assert!(Instant::now() < deadline, "a probe has been answered, so gets are sent by UDP again");
        sleep(Duration::from_millis(1)).await;
    }
    fixture.be(Behaviour::Silent);
    assert_eq!(fixture.loss("k").await, Ok(DatagramLoss::LostOrLate));
    assert!(
        size() <= WindowSettings::by_delay().initial / 2 + 1,
        "from a server that answers it is a loss: {}",
        size()
    );
}

#[tokio::test]
async fn a_fenced_server_is_sent_no_gets() {
    let fixture = Fixture::start(LONG_MS).await;
    fixture.cluster.permit("router:1", &permit(&config(&fixture.server), [&fixture.server]));
    let mut requests = 0;
    let deadline = Instant::now() + Duration::from_millis(LONG_MS);
    // The permit is renewed every 70 ms.
    while fixture.get("k").await.as_deref() != Ok(b"gutter:1") {
        assert!(Instant::now() < deadline, "the gutter is read");
        sleep(Duration::from_millis(1)).await;
        requests = fixture.statistics().requests;
    }
    assert!(fixture.get("k").await.is_ok());
    assert_eq!(fixture.statistics().requests, requests);
}

#[tokio::test]
async fn dropping_it_closes_its_sockets() {
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let fixture = Fixture::start(LONG_MS).await;
    fixture.get("k").await.expect("a hit");
    let Fixture { route, client, .. } = fixture;
    let before = alive();
    drop((route, client));
    // The receiver, the renewal, the configuration, the router, the server and the gutter.
    eventually(|| alive() + 6 <= before).await;
}
