//! The bytes that a client of the binary protocol sends and gets, and the batches that the tree of routes receives.

use crate::support::SessionHarness;
use bytes::Bytes;
use lookaside_protocol::binary::{
    BinaryCommand, BinaryOperation, BinaryRequest, ParsedResponse, ResponseTag, Vivify,
    compose_request as compose_binary, opcode as op, parse_response,
};
use lookaside_protocol::text::{Limits, compose_request};
use lookaside_protocol::{Cas, Direction, Operation, Request, StoreMode};
use lookaside_router::Settings;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

const LIMITS: Limits = Limits { value_bytes_max: 1 << 20, line_bytes_max: 0 };

fn request(opcode: u8, opaque: u32, command: BinaryCommand<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    compose_binary(&BinaryRequest { tag: ResponseTag { opcode, opaque }, command }, &mut out);
    out
}

fn keyed(opcode: u8, opaque: u32, key: &str, operation: BinaryOperation<'_>) -> Vec<u8> {
    request(opcode, opaque, BinaryCommand::Keyed { key: key.as_bytes(), operation })
}

fn get(opcode: u8, opaque: u32, key: &str) -> Vec<u8> {
    let with_key = matches!(opcode, op::GETK | op::GETKQ);
    keyed(opcode, opaque, key, BinaryOperation::Get { exptime: None, with_key, with_value: true })
}

fn store(opcode: u8, opaque: u32, key: &str, mode: StoreMode, value: &str) -> Vec<u8> {
    keyed(opcode, opaque, key, BinaryOperation::Store { mode, flags: 5, exptime: 0, value: value.as_bytes() })
}

fn delete(opcode: u8, opaque: u32, key: &str) -> Vec<u8> {
    keyed(opcode, opaque, key, BinaryOperation::Delete { cas: None })
}

fn count(opaque: u32, key: &str, initial: Option<u64>) -> Vec<u8> {
    let vivify = initial.map(|initial| Vivify { initial, exptime: 0 });
    let operation = BinaryOperation::Arithmetic { direction: Direction::Up, delta: 5, vivify, cas: None };
    keyed(op::INCREMENT, opaque, key, operation)
}

fn noop(opaque: u32) -> Vec<u8> {
    request(op::NOOP, opaque, BinaryCommand::Noop)
}

/// The responses up to the one with the opaque `last`, each as a line: opaque, status, key, value.
async fn replies_until(client: &mut DuplexStream, last: u32) -> Vec<String> {
    let (mut bytes, mut lines) = (Vec::new(), Vec::new());
    loop {
        match parse_response(&bytes, &LIMITS) {
            ParsedResponse::Incomplete { .. } => {
                assert!(
                    client.read_buf(&mut bytes).await.expect("a pipe does not break") > 0,
                    "closed behind {lines:?}"
                );
            }
            ParsedResponse::Response { response, consumed } => {
                let (key, value) = (response.key.escape_ascii(), response.value.escape_ascii());
                lines.push(format!("{} {:?} {key} {value}", response.tag.opaque, response.status));
                let is_last = response.tag.opaque == last;
                bytes.drain(..consumed);
                if is_last {
                    assert!(bytes.is_empty(), "more than was asked for");
                    return lines;
                }
            }
            ParsedResponse::Bad => panic!("no response: {:?}", bytes.escape_ascii().to_string()),
        }
    }
}

fn script() -> Vec<u8> {
    [
        store(op::SET, 1, "a", StoreMode::Set, "foo"),
        store(op::SETQ, 2, "b", StoreMode::Set, "bar"),
        get(op::GETKQ, 3, "a"),
        get(op::GETQ, 4, "absent"),
        get(op::GETQ, 5, "b"),
        get(op::GETK, 6, "absent"),
        store(op::ADDQ, 7, "a", StoreMode::Add, "x"),
        store(op::SET, 8, "a", StoreMode::Cas(Cas(1)), "x"),
        delete(op::DELETEQ, 9, "a"),
        delete(op::DELETE, 10, "a"),
        get(op::GETQ, 11, "down:1"),
        store(op::SETQ, 12, "down:2", StoreMode::Set, "x"),
        get(op::GET, 13, "two words"),
        request(0x30, 14, BinaryCommand::Stats { arguments: b"unknown" }),
        noop(15),
    ]
    .concat()
}

const RESPONSES: [&str; 12] = [
    "1 Success  ",
    "3 Success a foo",
    "5 Success  bar",
    "6 NotFound absent ",
    "7 Exists  Data exists for key.",
    "8 Exists  Data exists for key.",
    "10 NotFound  Not found",
    "11 TemporaryFailure  SERVER_ERROR Reply timeout",
    "12 TemporaryFailure  SERVER_ERROR Reply timeout",
    "13 NotFound  Not found",
    "14 UnknownCommand  Unknown command",
    "15 Success  ",
];

#[tokio::test(start_paused = true)]
async fn one_write_becomes_one_batch_with_responses_in_order() {
    let harness = SessionHarness::start(Settings::default());
    let mut client = harness.connect();
    client.write_all(&script()).await.unwrap();
    assert_eq!(replies_until(&mut client, 15).await, RESPONSES);
    assert_eq!(harness.route.batch_sizes(), [13]);
    let tally = harness.counters();
    assert_eq!((tally.get_hits, tally.get_misses, tally.get_failures, tally.delete_hits), (2, 3, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn responses_do_not_depend_on_where_the_bytes_are_split() {
    let bytes = script();
    for split in (1..bytes.len()).step_by(7) {
        let harness = SessionHarness::start(Settings::default());
        let mut client = harness.connect();
        for part in [&bytes[..split], &bytes[split..]] {
            client.write_all(part).await.unwrap();
            // Paused time advances only when all tasks wait: the part has been read.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(replies_until(&mut client, 15).await, RESPONSES, "split at {split}");
    }
}

/// Every store was answered with 0: a client could not store conditionally without another get.
#[tokio::test(start_paused = true)]
async fn store_is_answered_with_its_cas_unique() {
    let harness = SessionHarness::start(Settings::default());
    let mut client = harness.connect();
    let bytes = [
        store(op::SET, 1, "a", StoreMode::Set, "1"),
        store(op::REPLACE, 2, "a", StoreMode::Replace, "2"),
        keyed(op::APPEND, 3, "a", BinaryOperation::Extend { mode: StoreMode::Append, cas: None, value: b"x" }),
        store(op::SET, 4, "a", StoreMode::Cas(Cas(9)), "3"),
        store(op::SETQ, 5, "a", StoreMode::Set, "4"),
        store(op::ADD, 6, "a", StoreMode::Add, "5"),
        noop(7),
    ];
    client.write_all(&bytes.concat()).await.unwrap();
    let (mut bytes, mut answers) = (Vec::new(), Vec::new());
    while answers.last().is_none_or(|(opaque, _)| *opaque != 7) {
        client.read_buf(&mut bytes).await.expect("a pipe does not break");
        while let ParsedResponse::Response { response, consumed } = parse_response(&bytes, &LIMITS) {
            answers.push((response.tag.opaque, response.cas.0));
            bytes.drain(..consumed);
        }
    }
    assert_eq!(answers, [(1, 9), (2, 9), (3, 9), (4, 9), (6, 0), (7, 0)]);
    let batches = harness.route.batches.lock().unwrap();
    let requested: Vec<bool> = batches
        .iter()
        .flatten()
        .map(|request| matches!(request.operation, Operation::Store { cas: true, .. }))
        .collect();
    assert_eq!(requested, [true, true, true, true, false, true], "not for the quiet one, which has no response");
}

#[tokio::test(start_paused = true)]
async fn number_is_created_in_order() {
    let harness = SessionHarness::start(Settings::default());
    let mut client = harness.connect();
    let bytes = [count(1, "n", None), count(2, "n", Some(10)), get(op::GET, 3, "n"), count(4, "n", Some(10)), noop(5)];
    client.write_all(&bytes.concat()).await.unwrap();
    let number = |n: u8| format!("Success  {}{}", "\\x00".repeat(7), n.escape_ascii());
    let responses = replies_until(&mut client, 5).await;
    assert_eq!(responses[0], "1 NotFound  Not found");
    assert_eq!(responses[1..4], [format!("2 {}", number(10)), "3 Success  10".into(), format!("4 {}", number(15))]);
}

/// The fake replies `HD` to every meta command but gets, so the test checks the requests.
#[tokio::test(start_paused = true)]
async fn operations_without_a_classic_command_are_sent_as_meta_commands() {
    let harness = SessionHarness::start(Settings::default());
    let mut client = harness.connect();
    let cas = Some(Cas(9));
    let vivify = Some(Vivify { initial: 3, exptime: 60 });
    let down = BinaryOperation::Arithmetic { direction: Direction::Down, delta: 2, vivify, cas };
    let bytes = [
        keyed(op::DELETE, 1, "a", BinaryOperation::Delete { cas }),
        keyed(op::APPEND, 2, "a", BinaryOperation::Extend { mode: StoreMode::Append, cas, value: b"x" }),
        store(op::SETQ, 3, "two words", StoreMode::Cas(Cas(7)), "v"),
        delete(op::DELETE, 4, "two words"),
        get(op::GETK, 5, "two words"),
        keyed(op::DECREMENT, 6, "a", down),
        request(op::SASL_MECHANISMS, 7, BinaryCommand::Mechanisms),
        noop(8),
    ];
    client.write_all(&bytes.concat()).await.unwrap();
    let responses = replies_until(&mut client, 8).await;
    assert_eq!(responses[..4], ["1 Success  ", "2 Success  ", "4 Success  ", "5 NotFound two words "]);
    assert_eq!(responses[5], "7 UnknownCommand  Unknown command");
    let batches = harness.route.batches.lock().unwrap();
    let asked: Vec<_> = batches.iter().flatten().map(to_text).collect();
    let expected = [
        "md a C9",
        "ms a 1 MA c C9 x",
        "ms dHdvIHdvcmRz 1 F5 T0 c C7 b v",
        "md dHdvIHdvcmRz b",
        "mg dHdvIHdvcmRz v f c b",
        "ma a v c D2 MD N60 J3 C9",
    ];
    assert_eq!(asked, expected);
}

/// A request as it is sent to a server.
fn to_text(request: &Request<Bytes>) -> String {
    let mut out = Vec::new();
    compose_request(request, &mut out);
    String::from_utf8_lossy(&out).trim_end().replace("\r\n", " ")
}

#[tokio::test(start_paused = true)]
async fn key_that_is_too_long_for_base64_is_refused() {
    let harness = SessionHarness::start(Settings::default());
    let mut client = harness.connect();
    let key = format!("two {}", "x".repeat(183));
    client.write_all(&[get(op::GET, 1, &key), get(op::GET, 2, &key[1..]), noop(3)].concat()).await.unwrap();
    let responses = replies_until(&mut client, 3).await;
    assert_eq!(responses[..2], ["1 InvalidArguments  Invalid arguments", "2 NotFound  Not found"]);
}

#[tokio::test(start_paused = true)]
async fn exptime_keeps_its_meaning_in_the_text_protocol() {
    let harness = SessionHarness::start(Settings::default());
    let mut client = harness.connect();
    for (exptime, asked) in [(60, 60), (0xffff_ffff, i64::from(i32::MAX)), (0, 0)] {
        let touch = BinaryOperation::Get { exptime: Some(exptime), with_key: false, with_value: false };
        client.write_all(&keyed(op::TOUCH, 1, "absent", touch)).await.unwrap();
        assert_eq!(replies_until(&mut client, 1).await, ["1 NotFound  Not found"]);
        let batches = harness.route.batches.lock().unwrap();
        assert_eq!(batches.last().expect("a batch")[0].operation, Operation::Touch { exptime: asked });
    }
}

#[tokio::test(start_paused = true)]
async fn set_that_is_too_large_deletes_the_old_value() {
    let mut settings = Settings::default();
    settings.limits.value_bytes_max = 100;
    let harness = SessionHarness::start(settings);
    let mut client = harness.connect();
    let large = "x".repeat(101);
    let bytes = [
        store(op::SET, 1, "a", StoreMode::Set, "old"),
        store(op::SETQ, 2, "a", StoreMode::Set, &large),
        get(op::GET, 3, "a"),
    ];
    client.write_all(&bytes.concat()).await.unwrap();
    assert_eq!(replies_until(&mut client, 3).await, ["1 Success  ", "2 TooLarge  Too large.", "3 NotFound  Not found"]);
}

#[tokio::test(start_paused = true)]
async fn local_commands_have_responses() {
    let harness = SessionHarness::start(Settings::default());
    let mut client = harness.connect();
    let bytes = [
        request(op::VERSION, 1, BinaryCommand::Version),
        get(op::GET, 2, "__mcrouter__.config_age"),
        request(op::FLUSH, 3, BinaryCommand::FlushAll { delay_s: 0 }),
        request(op::STAT, 4, BinaryCommand::Stats { arguments: b"" }),
        noop(5),
    ];
    client.write_all(&bytes.concat()).await.unwrap();
    let responses = replies_until(&mut client, 5).await;
    assert!(responses[0].starts_with("1 Success  lookaside-router "), "{}", responses[0]);
    assert_eq!(responses[1], "2 Success  0");
    assert!(responses[2].starts_with("3 NotSupported  "), "{}", responses[2]);
    assert!(responses.contains(&"4 Success pid 7".to_string()) && responses.contains(&"4 Success  ".to_string()));
}

#[tokio::test(start_paused = true)]
async fn quit_and_garbage_close_the_connection() {
    for (last, answer_bytes) in [
        (request(op::QUIT, 1, BinaryCommand::Quit), 24),
        (request(op::QUITQ, 1, BinaryCommand::Quit), 0),
        (b"version\r\n".to_vec(), 0),
    ] {
        let harness = SessionHarness::start(Settings::default());
        let mut client = harness.connect();
        client.write_all(&[noop(0), last, noop(2)].concat()).await.unwrap();
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest.len(), 24 + answer_bytes, "the noop's response, and the last request's");
    }
}

#[tokio::test(start_paused = true)]
async fn failed_get_is_a_miss_with_miss_on_get_errors() {
    let harness = SessionHarness::start(Settings { miss_on_get_errors: true, ..Settings::default() });
    let mut client = harness.connect();
    let bytes =
        [get(op::GETQ, 1, "down:1"), get(op::GET, 2, "down:1"), store(op::SET, 3, "down:1", StoreMode::Set, "x")];
    client.write_all(&bytes.concat()).await.unwrap();
    let responses = replies_until(&mut client, 3).await;
    assert_eq!(responses[0], "2 NotFound  Not found");
    assert!(responses[1].starts_with("3 TemporaryFailure"), "{}", responses[1]);
}
