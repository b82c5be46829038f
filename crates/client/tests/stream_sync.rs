//! No reply reaches the wrong request, whatever a server and a network do: random callers, and replies that are cut
//! anywhere, late, or incomplete. The expected reply follows from the key, so that any mix-up is found.

use crate::fake::{AcceptedStream, FakeNetwork, destination, request};
use bytes::Bytes;
use lookaside_client::DestinationOptions;
use lookaside_protocol::{
    Command, Direction, Operation, Reply, Request,
    text::{END, Limits, Parsed, compose_reply, parse_command},
};
use lookaside_routing::{Destination, Failure, HealthSettings};
use std::{sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::sleep,
};

const LIMITS: Limits = Limits { value_bytes_max: 1 << 20, line_bytes_max: 1 << 16 };
const SEEDS: u64 = 150;

/// The server's reply to a request, by its key's number.
fn reply_to<B: AsRef<[u8]>>(request: &Request<B>) -> Reply<Bytes> {
    let number: u64 = String::from_utf8_lossy(request.key.as_ref()).parse().expect("keys are numbers");
    match request.operation {
        Operation::Arithmetic { .. } => Reply::Number(number),
        Operation::Delete { .. } if number.is_multiple_of(2) => Reply::Deleted,
        Operation::Delete { .. } => Reply::NotFound,
        _ if number.is_multiple_of(3) => Reply::Miss,
        _ => {
            let flags = u32::try_from(number).expect("keys are small");
            // Some values look like replies, a few are larger than a read.
            let value = if number.is_multiple_of(50) { "END\r\n".repeat(20_000) } else { format!("END\r\n{number}") };
            Reply::Value { flags, cas: None, value: value.into() }
        }
    }
}

fn random_request(random: &mut fastrand::Rng) -> Request<Bytes> {
    let operation = match random.u8(0..10) {
        0 => Operation::Delete { hold_off_ms: 0 },
        1 => Operation::Arithmetic { direction: Direction::Up, delta: 1 },
        _ => Operation::Get { cas: false },
    };
    request(&random.u32(1..120).to_string(), operation)
}

fn append_reply(command: &Command<'_>, out: &mut Vec<u8>) {
    match command {
        Command::Retrieve { keys, operation } => {
            for key in *keys {
                let reply = reply_to(&Request { key, operation: operation.clone() });
                if reply != Reply::Miss {
                    compose_reply(key, &reply, out);
                }
            }
            out.extend_from_slice(END);
        }
        Command::Single { request, .. } => compose_reply(request.key, &reply_to(request), out),
        Command::Version => out.extend_from_slice(b"VERSION 1\r\n"),
        other => panic!("not sent by this test: {other:?}"),
    }
}

/// Replies in pieces, sometimes too late, sometimes incompletely.
async fn serve(mut peer: AcceptedStream, mut random: fastrand::Rng) {
    let mut read = Vec::new();
    while peer.0.read_buf(&mut read).await.is_ok_and(|bytes| bytes > 0) {
        let mut out = Vec::new();
        while let Parsed::Command { command, consumed } = parse_command(&read, &LIMITS) {
            append_reply(&command, &mut out);
            read.drain(..consumed);
        }
        while !out.is_empty() {
            let piece: Vec<u8> = out.drain(..random.usize(1..=out.len())).collect();
            if peer.0.write_all(&piece).await.is_err() || random.u16(0..600) == 0 {
                return;
            }
            if random.u8(0..60) == 0 {
                sleep(Duration::from_millis(random.u64(1..60))).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_reply_reaches_the_wrong_request() {
    let (mut replies, mut timed_out, mut lost, mut late) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let mut random = fastrand::Rng::with_seed(seed);
        let (network, mut accepted) = FakeNetwork::with_pipe(random.usize(10..5_000));
        // In half of the runs the server never becomes TKO, so that there are late replies.
        let timeouts_until_tko = if seed % 2 == 0 { 4 } else { u32::MAX };
        let health = HealthSettings { timeouts_until_tko, ..HealthSettings::default() };
        let options = DestinationOptions { server_timeout_ms: 20, health, seed, ..DestinationOptions::default() };
        let server = destination(&network, options);
        let mut server_random = random.fork();
        let acceptor = tokio::spawn(async move {
            loop {
                tokio::spawn(serve(accepted.next().await, server_random.fork()));
            }
        });
        let callers: Vec<_> = (0..8).map(|_| tokio::spawn(call(Arc::clone(&server), random.fork()))).collect();
        for caller in callers {
            let counted = caller.await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            (replies, timed_out, lost) = (replies + counted.0, timed_out + counted.1, lost + counted.2);
        }
        late += server.statistics().late_batches;
        assert_eq!(server.statistics().malformed, 0, "seed {seed}");
        assert_eq!(server.statistics().outstanding, 0, "seed {seed}");
        acceptor.abort();
    }
    // The test is worth nothing if these did not happen.
    assert!(replies > 10_000 && timed_out > 100 && lost > 100 && late > 20, "{replies} {timed_out} {lost} {late}");
}

/// Sends batches and checks the replies; returns the numbers of replies, timeouts and lost requests.
async fn call(server: Arc<impl Destination>, mut random: fastrand::Rng) -> (u32, u32, u32) {
    let mut counted = (0, 0, 0);
    for _ in 0..20 {
        sleep(Duration::from_micros(random.u64(0..3_000))).await;
        let batch: Vec<_> = (0..random.usize(1..30)).map(|_| random_request(&mut random)).collect();
        let outcomes = server.send(batch.clone()).await;
        assert_eq!(outcomes.len(), batch.len());
        for (request, outcome) in batch.iter().zip(outcomes) {
            match outcome {
                Ok(reply) => {
                    counted.0 += 1;
                    assert_eq!(reply, reply_to(request), "to {request:?}");
                }
                Err(Failure::TimedOut | Failure::QueueTimedOut) => counted.1 += 1,
                Err(Failure::ConnectionLost | Failure::ReadFailed(_)) => counted.2 += 1,
                Err(Failure::Tko(_) | Failure::ConnectFailed) => {}
                Err(failure) => panic!("{failure} to {request:?}"),
            }
        }
    }
    counted
}
