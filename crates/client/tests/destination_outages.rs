//! A destination whose server is late, is lost or becomes TKO, with a paused clock.

use crate::destination::{all, value, without_tko};
use crate::fake::{
    AcceptedStream, AcceptedStreams, FakeNetwork, Mode, await_outcomes, delete, destination, get, set, start_send,
};
use lookaside_client::{DestinationOptions, TcpDestination};
use lookaside_protocol::Reply;
use lookaside_routing::{Address, Destination, Failure, Outcomes, TkoReason};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance};

/// A destination, and its server's end of one connection after the other.
struct Fixture {
    network: Arc<FakeNetwork>,
    accepted: AcceptedStreams,
    server: Arc<TcpDestination>,
    /// `None` if no connection was made since the last one was taken.
    peer: Option<AcceptedStream>,
}

impl Fixture {
    fn new(options: DestinationOptions) -> Fixture {
        let (network, accepted) = FakeNetwork::new();
        let server = destination(&network, options);
        Fixture { network, accepted, server, peer: None }
    }

    /// The server's end of the connection; waits for it if there is none.
    async fn peer(&mut self) -> &mut AcceptedStream {
        match &mut self.peer {
            Some(peer) => peer,
            none => none.insert(self.accepted.next().await),
        }
    }

    /// Sends gets, whose line the server has read when this returns.
    async fn start_gets(&mut self, keys: &[&str]) -> JoinHandle<Outcomes> {
        let sent = start_send(&self.server, keys.iter().map(|key| get(key)).collect()).await;
        self.peer().await.expect(&format!("get {}\r\n", keys.join(" "))).await;
        sent
    }

    /// A get is answered with `reply`, the last part of which is a miss.
    async fn assert_miss(&mut self, reply: &str) {
        let sent = self.start_gets(&["a"]).await;
        self.peer().await.send(reply).await;
        assert_eq!(await_outcomes(sent).await, [Ok(Reply::Miss)]);
    }

    /// Gets are not answered in time.
    async fn assert_late(&mut self, keys: &[&str]) {
        let sent = self.start_gets(keys).await;
        assert_eq!(await_outcomes(sent).await, all(&Failure::TimedOut, keys.len()));
    }
}

#[tokio::test(start_paused = true)]
async fn late_reply_is_dropped_and_the_next_one_is_matched() {
    let mut fixture = Fixture::new(without_tko());
    let start = Instant::now();
    let late = start_send(&fixture.server, vec![get("a"), delete("b"), get("c")]).await;
    let peer = fixture.peer().await;
    peer.expect("get a\r\ndelete b\r\nget c\r\n").await;
    peer.send("VALUE a 0 1\r\n1\r\nEND\r\n").await;
    assert_eq!(await_outcomes(late).await, [value("1"), Err(Failure::TimedOut), Err(Failure::TimedOut)]);
    assert!(start.elapsed() >= Duration::from_millis(1_000) && start.elapsed() < Duration::from_millis(1_010));

    let next = fixture.start_gets(&["c"]).await;
    let peer = fixture.peer().await;
    peer.send("DELETED\r\nVALUE c 0 4\r\nlate\r\nEND\r\n").await;
    peer.expect_nothing().await;
    assert!(!next.is_finished(), "the late reply belongs to the first batch");
    peer.send("VALUE c 0 3\r\nnew\r\nEND\r\n").await;
    assert_eq!(await_outcomes(next).await, [value("new")]);
    let statistics = fixture.server.statistics();
    assert_eq!((statistics.timed_out_batches, statistics.late_batches, statistics.connects), (1, 1, 1));
}

/// Batches that wait for one slow write are composed together, however long each has waited.
#[tokio::test(start_paused = true)]
async fn line_shared_by_a_late_batch_and_one_in_time_answers_both() {
    let (network, mut accepted) = FakeNetwork::with_pipe(1_000);
    let server = destination(&network, DestinationOptions { server_timeout_ms: 1_500, ..without_tko() });
    let large = "x".repeat(5_000);
    let slow = start_send(&server, vec![set("slow", &large)]).await;
    let mut peer = accepted.next().await;
    advance(Duration::from_millis(100)).await;
    let early = start_send(&server, vec![get("a"), get("b")]).await;
    advance(Duration::from_millis(600)).await;
    let later = start_send(&server, vec![get("a"), get("b")]).await;
    peer.expect(&format!("set slow 0 0 5000\r\n{large}\r\nget a b a b\r\n")).await;
    peer.send("STORED\r\nVALUE b 0 1\r\n1\r\n").await;
    assert_eq!(await_outcomes(slow).await, [Ok(Reply::Stored)]);
    assert_eq!(await_outcomes(early).await, [Err(Failure::TimedOut), value("1")]);
    peer.send("VALUE b 0 1\r\n2\r\nVALUE a 0 1\r\n3\r\nVALUE a 0 1\r\n4\r\nEND\r\n").await;
    assert_eq!(await_outcomes(later).await, [value("4"), value("2")]);
}

#[tokio::test(start_paused = true)]
async fn too_many_late_replies_end_the_connection() {
    let mut fixture = Fixture::new(DestinationOptions { late_requests_max: 3, ..without_tko() });
    for _ in 0..2 {
        fixture.assert_late(&["a", "b"]).await;
    }
    fixture.peer.take().expect("one connection").expect_end().await;
    assert_eq!(fixture.server.statistics().connects, 1);
    fixture.assert_miss("END\r\n").await;
}

#[tokio::test(start_paused = true)]
async fn late_replies_that_came_do_not_count_any_more() {
    let mut fixture = Fixture::new(DestinationOptions { late_requests_max: 3, ..without_tko() });
    for _ in 0..5 {
        fixture.assert_late(&["a", "b"]).await;
        let peer = fixture.peer().await;
        peer.send("END\r\n").await;
        peer.expect_nothing().await;
    }
    let statistics = fixture.server.statistics();
    assert_eq!((statistics.connects, statistics.late_batches), (1, 5));
}

#[tokio::test(start_paused = true)]
async fn lost_connection_fails_the_sent_requests_and_nothing_is_sent_twice() {
    let mut fixture = Fixture::new(without_tko());
    let first = start_send(&fixture.server, vec![get("a"), delete("b")]).await;
    let second = start_send(&fixture.server, vec![set("c", "x")]).await;
    let mut peer = fixture.accepted.next().await;
    peer.expect("get a\r\ndelete b\r\nset c 0 0 1\r\nx\r\n").await;
    peer.send("VALUE a 0 1\r\n1\r\nEND\r\nDELE").await;
    drop(peer);
    assert_eq!(await_outcomes(first).await, [value("1"), Err(Failure::ConnectionLost)]);
    assert_eq!(await_outcomes(second).await, all(&Failure::ConnectionLost, 1));
    assert!(fixture.accepted.is_empty(), "without a request no connection is made");

    fixture.assert_miss("END\r\n").await;
    let statistics = fixture.server.statistics();
    assert_eq!((statistics.connects, statistics.connections_lost, statistics.outstanding), (2, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn connection_closed_while_idle_fails_no_request() {
    let mut fixture = Fixture::new(without_tko());
    for connects in 1..=3 {
        fixture.assert_miss("END\r\n").await;
        assert_eq!(fixture.server.statistics().connects, connects);
        fixture.peer = None;
        tokio::task::yield_now().await;
    }
    assert_eq!(fixture.server.statistics().connections_lost, 0);
}

/// Otherwise they would be taken for the reply to the next request.
#[tokio::test(start_paused = true)]
async fn bytes_that_no_request_asked_for_end_the_connection() {
    let mut fixture = Fixture::new(without_tko());
    fixture.assert_miss("END\r\n").await;
    let mut peer = fixture.peer.take().expect("it is connected");
    peer.send("VALUE a 0 3\r\nold\r\nEND\r\n").await;
    peer.expect_end().await;
    fixture.assert_miss("END\r\n").await;
}

#[tokio::test(start_paused = true)]
async fn one_refused_connection_makes_the_server_tko_until_a_probe_is_answered() {
    let mut fixture = Fixture::new(DestinationOptions::default());
    fixture.network.set(Mode::Refuse);
    let server = fixture.server.clone();
    assert_eq!(server.send(vec![get("a"), get("b")]).await, all(&Failure::ConnectFailed, 2));
    assert!(server.is_tko());
    let start = Instant::now();
    assert_eq!(server.send(vec![get("a")]).await, all(&Failure::Tko(TkoReason::ConnectFailed), 1));
    assert_eq!(start.elapsed(), Duration::ZERO);

    advance(Duration::from_millis(1_501)).await;
    tokio::task::yield_now().await;
    assert_eq!(server.statistics().probes, 1, "after a second, plus up to a half");
    assert_eq!(server.send(vec![get("a")]).await, all(&Failure::Tko(TkoReason::ConnectFailed), 1));

    fixture.network.set(Mode::Accept);
    let peer = fixture.peer().await;
    assert_eq!(server.statistics().probes, 2, "the next probe needs no request");
    peer.expect("version\r\n").await;
    assert!(server.is_tko());
    peer.send("VERSION 1.6.45\r\n").await;
    peer.expect_nothing().await;
    assert!(!server.is_tko());
    fixture.assert_miss("END\r\n").await;
    let statistics = server.statistics();
    assert_eq!((statistics.tko_marks, statistics.refused_tko, statistics.outstanding), (1, 2, 0));
}

#[tokio::test(start_paused = true)]
async fn connecting_has_its_own_timeout() {
    let fixture = Fixture::new(DestinationOptions { connect_timeout_ms: Some(250), ..Default::default() });
    fixture.network.set(Mode::Silence);
    let start = Instant::now();
    let first = start_send(&fixture.server, vec![get("a")]).await;
    let second = start_send(&fixture.server, vec![get("b")]).await;
    assert_eq!(await_outcomes(first).await, all(&Failure::ConnectTimedOut, 1));
    assert_eq!(await_outcomes(second).await, all(&Failure::ConnectTimedOut, 1));
    assert!(start.elapsed() >= Duration::from_millis(250) && start.elapsed() < Duration::from_millis(260));
    assert!(fixture.server.is_tko());
}

#[tokio::test(start_paused = true)]
async fn three_timeouts_in_a_row_make_the_server_tko_and_end_its_connection() {
    let mut fixture = Fixture::new(DestinationOptions::default());
    let server = fixture.server.clone();
    let mut sent = Vec::new();
    for _ in 0..3 {
        sent.push(start_send(&server, vec![get("a")]).await);
        advance(Duration::from_millis(100)).await;
    }
    sent.push(start_send(&server, vec![delete("b")]).await);
    let mut peer = fixture.accepted.next().await;
    peer.expect("get a\r\nget a\r\nget a\r\ndelete b\r\n").await;
    let last = sent.pop().expect("four were sent");
    for sent in sent {
        assert_eq!(await_outcomes(sent).await, all(&Failure::TimedOut, 1));
    }
    assert_eq!(await_outcomes(last).await, all(&Failure::ConnectionLost, 1), "in flight when the server became TKO");
    peer.expect_end().await;
    assert!(server.is_tko());

    let peer = fixture.peer().await;
    peer.expect("version\r\n").await;
    peer.send("ERROR\r\n").await;
    peer.expect_nothing().await;
    assert!(!server.is_tko(), "even an error line proves that the server is alive");
}

#[tokio::test(start_paused = true)]
async fn reply_between_timeouts_prevents_tko() {
    let mut fixture = Fixture::new(DestinationOptions::default());
    for _ in 0..3 {
        for _ in 0..2 {
            fixture.assert_late(&["a"]).await;
        }
        fixture.assert_miss("END\r\nEND\r\nEND\r\n").await;
    }
    assert!(!fixture.server.is_tko());
}

#[tokio::test(start_paused = true)]
async fn failures_name_the_server_if_they_are_to() {
    let options = || DestinationOptions { names_failures: true, ..without_tko() };
    let address = || Address("fake:11211".into());
    let of_server = |failure| Failure::OfServer { server: address(), failure: Box::new(failure) };

    let mut fixture = Fixture::new(options());
    let late = fixture.start_gets(&["a", "b"]).await;
    fixture.peer().await.send("VALUE a 0 1\r\n1\r\n").await;
    assert_eq!(await_outcomes(late).await, [value("1"), Err(of_server(Failure::TimedOut))]);

    let mut fixture = Fixture::new(options());
    let lost = fixture.start_gets(&["a"]).await;
    fixture.peer = None;
    assert_eq!(await_outcomes(lost).await, all(&of_server(Failure::ConnectionLost), 1));

    let mut fixture = Fixture::new(options());
    let malformed = fixture.start_gets(&["a"]).await;
    fixture.peer().await.send("nonsense\r\n").await;
    assert_eq!(await_outcomes(malformed).await, all(&of_server(Failure::Malformed), 1));

    let fixture = Fixture::new(options());
    fixture.network.set(Mode::Refuse);
    assert_eq!(fixture.server.send(vec![get("a")]).await, all(&of_server(Failure::ConnectFailed), 1));
    let tko = of_server(Failure::Tko(TkoReason::ConnectFailed));
    assert_eq!(fixture.server.send(vec![get("a")]).await, all(&tko, 1));

    let fixture = Fixture::new(options());
    fixture.network.set(Mode::Silence);
    assert_eq!(fixture.server.send(vec![get("a")]).await, all(&of_server(Failure::ConnectTimedOut), 1));

    let fixture = Fixture::new(DestinationOptions { outstanding_requests_max: 1, ..options() });
    let full = Failure::TooManyPending { server: address(), requests_max: 1 };
    assert_eq!(fixture.server.send(vec![get("a"), get("b")]).await, all(&of_server(full), 2));

    // The parts of a batch that are not sent have timed out in the queue.
    let mut fixture = Fixture::new(DestinationOptions { inflight_requests_max: 1, ..options() });
    let sent = start_send(&fixture.server, vec![get("a"), get("b")]).await;
    fixture.peer().await.expect("get a\r\n").await;
    let expected = [Failure::TimedOut, Failure::QueueTimedOut].map(|failure| Err(of_server(failure)));
    assert_eq!(await_outcomes(sent).await, expected);
}
