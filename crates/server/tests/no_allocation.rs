//! A round of lookups and deletes allocates nothing once its buffers have grown. The memory that the store takes for
//! new values is not counted here.

use lookaside_protocol::StoreMode;
use lookaside_protocol::binary::{BinaryCommand, BinaryOperation, BinaryRequest, ResponseTag, compose_request, opcode};
use lookaside_server::{Batch, BatchProgress, Counters, Scan, Session, SessionContext};
use lookaside_store::{Now, Options, Store};
use lookaside_test_support::{CountingAllocator, count_allocations};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const NOW: Now = Now { unix_ms: 1_700_000_000_000 };

/// What a worker does with one connection's input in one round. The batch is that of the previous round.
fn round(batch: Batch<'static>, context: &SessionContext<'_>, input: &[u8], out: &mut Vec<u8>) -> Batch<'static> {
    let (mut session, mut batch, mut from) = (Session::new(), batch.recycle(), 0);
    out.clear();
    loop {
        batch.clear();
        let scan = session.scan(input, from, context, NOW, &mut batch);
        let progress = batch.execute(context, NOW, batch.steps_count(), usize::MAX, out);
        assert_eq!(progress, BatchProgress::Done);
        match scan {
            Scan::Full { input_at } => from = input_at,
            Scan::Finished { input_at, .. } => {
                assert_eq!(input_at, input.len());
                return batch.recycle();
            }
        }
    }
}

#[test]
fn rounds_reuse_their_buffers() {
    let mut input = b"set a 1 0 3\r\nabc\r\n".to_vec();
    for n in 0..300 {
        input.extend_from_slice(format!("get a absent{n} a\r\nlease-get l{n}\r\nmg a v t\r\n").as_bytes());
        input.extend_from_slice(b"gat 0 a\r\ntouch a 0\r\ndelete absent\r\nnonsense\r\nversion\r\n");
    }
    assert_no_allocations(&input);
}

#[test]
fn rounds_of_the_binary_protocol_reuse_their_buffers() {
    let mut input = Vec::new();
    let mut push = |opcode, key: &[u8], operation| {
        let tag = ResponseTag { opcode, opaque: 7 };
        compose_request(&BinaryRequest { tag, command: BinaryCommand::Keyed { key, operation } }, &mut input);
    };
    let get = |exptime| BinaryOperation::Get { exptime, with_key: true, with_value: true };
    push(opcode::SET, b"a", BinaryOperation::Store { mode: StoreMode::Set, flags: 1, exptime: 0, value: b"abc" });
    for n in 0..300 {
        push(opcode::GETKQ, b"a", get(None));
        push(opcode::GETKQ, format!("absent{n}").as_bytes(), get(None));
        push(opcode::GATK, b"a", get(Some(0)));
        push(opcode::DELETE, b"absent", BinaryOperation::Delete { cas: None });
        push(0x55, b"unknown", get(None));
    }
    assert_no_allocations(&input);
}

/// Runs rounds of the same commands after the buffers have grown.
fn assert_no_allocations(input: &[u8]) {
    let options = Options { seed: 1, ..Options::default() };
    let (store, counters) = (Store::new(options.clone()).expect("the options are fine"), Counters::default());
    let context = SessionContext::new(&store, &options, &counters);
    let (mut batch, mut out) = (Batch::default(), Vec::new());
    for _ in 0..2 {
        batch = round(batch, &context, input, &mut out);
    }
    let replies = out.clone();
    let allocations_count = count_allocations(|| {
        for _ in 0..10 {
            batch = round(std::mem::take(&mut batch), &context, input, &mut out);
        }
    });
    assert!(allocations_count == 0, "{allocations_count} allocations in ten rounds of {} bytes", input.len());
    assert_eq!(out.len(), replies.len());
}
