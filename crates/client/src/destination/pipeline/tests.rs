//! Gets against a model: a server that leaves out and reorders keys, replies that are cut anywhere, batches that time
//! out in between, and a connection that ends.

use super::{PendingBatch, Pipeline};
use crate::destination::shared::{DestinationShared, Permit};
use bytes::Bytes;
use lookaside_protocol::{Operation, Reply, Request, text::Limits};
use lookaside_routing::{Failure, Outcomes, Protocol};
use std::{collections::HashMap, mem, sync::Arc, time::Duration};
use tokio::{sync::oneshot, time::Instant};

fn permit(requests: usize) -> Permit {
    DestinationShared::new(Arc::default(), true, None, None).acquire(requests).0
}

fn get(key: &str) -> Request<Bytes> {
    Request { key: key.to_owned().into(), operation: Operation::Get { cas: false } }
}

/// The reply to the lines of `sent`; and for each key at which byte its reply ends, and its value, if it has one.
fn answer(sent: &[u8], random: &mut fastrand::Rng) -> (String, HashMap<String, (usize, Option<String>)>) {
    let (mut text, mut replies) = (String::new(), HashMap::new());
    for line in std::str::from_utf8(sent).expect("text").lines() {
        let mut keys: Vec<&str> = line.strip_prefix("get ").expect("a get").split(' ').collect();
        if random.bool() {
            random.shuffle(&mut keys);
        }
        let (hits, misses): (Vec<&str>, Vec<&str>) = keys.into_iter().partition(|_| random.u8(..4) > 0);
        for key in hits {
            let value = format!("value of {key}");
            text += &format!("VALUE {key} 5 {}\r\n{value}\r\n", value.len());
            replies.insert(key.to_owned(), (text.len(), Some(value)));
        }
        text += "END\r\n";
        replies.extend(misses.into_iter().map(|key| (key.to_owned(), (text.len(), None))));
    }
    (text, replies)
}

fn check(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let limits = Limits { value_bytes_max: 1 << 20, line_bytes_max: 8_192 };
    let (mut pipeline, start) = (Pipeline::new(limits, Protocol::Text), Instant::now());
    let (mut sent, mut callers) = (Vec::new(), Vec::new());
    for number in 0..random.u64(1..6) {
        let keys: Vec<String> = (0..random.usize(1..8)).map(|at| format!("{number}:{at}")).collect();
        let (reply, outcomes) = oneshot::channel();
        let requests = keys.iter().map(|key| get(key)).collect();
        let pending = PendingBatch { requests, reply, permit: permit(keys.len()) };
        pipeline.push(pending, start + Duration::from_secs(number), &mut sent);
        if random.bool() {
            pipeline.end_line(&mut sent);
        }
        callers.push((keys, outcomes));
    }
    pipeline.end_line(&mut sent);
    let (text, replies) = answer(&sent, &mut random);

    let end = if random.bool() { text.len() } else { random.usize(..text.len()) };
    let (mut received, mut rest, mut timed_out) = (0, Vec::new(), None);
    while received < end {
        if timed_out.is_none() && random.u8(..16) == 0 {
            let last = random.u64(..callers.len() as u64);
            pipeline.expire(start + Duration::from_secs(last));
            timed_out = Some((received, last));
        }
        let more = random.usize(1..=80).min(end - received);
        rest.extend_from_slice(&text.as_bytes()[received..received + more]);
        received += more;
        let block = Bytes::from(mem::take(&mut rest));
        let consumed = pipeline.dispatch_replies(&block).expect("well-formed replies");
        rest.extend_from_slice(&block[consumed.bytes..]);
    }
    if end == text.len() {
        let rest = (pipeline.unanswered(), pipeline.late_requests(), pipeline.lines.len());
        assert_eq!((rest, pipeline.is_empty()), ((0, 0, 0), true), "seed {seed}");
    }
    pipeline.fail(&Failure::ConnectionLost);

    for (number, (keys, mut outcomes)) in (0..).zip(callers) {
        let (end, failure) = match timed_out {
            Some((end, last)) if number <= last => (end, Failure::TimedOut),
            _ => (end, Failure::ConnectionLost),
        };
        let outcome = |key: &String| match &replies[key] {
            (at, _) if *at > end => Err(failure.clone()),
            (_, None) => Ok(Reply::Miss),
            (_, Some(value)) => Ok(Reply::Value { flags: 5, cas: None, value: value.clone().into() }),
        };
        let expected: Outcomes = keys.iter().map(outcome).collect();
        assert_eq!(outcomes.try_recv().expect("outcomes of every batch"), expected, "seed {seed}, batch {number}");
    }
}

#[test]
fn outcomes_are_those_of_a_model() {
    (0..3_000).for_each(check);
}
