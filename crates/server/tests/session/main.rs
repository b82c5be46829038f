//! Any bytes, in either protocol: a session gives the same replies wherever the bytes are cut and wherever execution
//! pauses, and closes the connection at the same point. It neither panics nor stalls.

mod exchange;

use exchange::{ITEM_BYTES_MAX, LINE_BYTES_MAX, PASSWORD, RequiredLogin, run, run_with_login};
use lookaside_protocol::StoreMode;
use lookaside_protocol::binary::{
    BinaryCommand, BinaryOperation, BinaryRequest, ResponseTag, Vivify, compose_request, opcode,
};
use lookaside_server::{CounterSnapshot, SessionState};
use proptest::collection::vec;
use proptest::prelude::*;

/// Whole and partial commands.
const LINES: &[&str] = &[
    "get a b c absent\r\n",
    "gets a b c a\r\n",
    "gets a\r\n",
    "gat 0 a b\r\n",
    "gats 100 a c\r\n",
    "lease-get a\r\n",
    "lease-get lost\r\n",
    "lease-set lost 1 0 0 1\r\nx\r\n",
    "lease-set lost 8830 0 0 2\r\nxy\r\n",
    "delete a\r\n",
    "delete b 5\r\n",
    "delete c noreply\r\n",
    "incr n 5\r\n",
    "decr n 1 noreply\r\n",
    "set n 0 0 2\r\n10\r\n",
    "touch a 100\r\n",
    "version\r\n",
    "verbosity 1\r\n",
    "mn\r\n",
    "mg a v f t k\r\n",
    "mg b N30 v t O123\r\n",
    "mg c k v q\r\n",
    "ms a S2 T0 I\r\nab\r\n",
    "ms bad S2\r\nabc\r\n",
    "md a I T30\r\n",
    "md b q\r\n",
    "ma n N0 J13 v\r\n",
    "me a\r\n",
    "me a a\r\n",
    "mg YQ== b k v\r\n",
    "ms a 2 MA\r\nxy\r\n",
    "ms a 2 MX\r\nxy\r\n",
    "set a 0 0 -1\r\n",
    "set a 0 0 x\r\n",
    "set a 0 0 5\r\nlonger than that\r\n",
    "set  a  1  0  1 \r\nx\r\n",
    "append a 0 0 1\r\n!\r\n",
    "cas a 1 0 1 1\r\nx\r\n",
    "add new 0 0 0\r\n\r\n",
    "prepend a 0 0 1 noreply\r\n<\r\n",
    "flush_all\r\n",
    "flush_all 10 noreply\r\n",
    "stats\r\n",
    "stats cachedump 1 0\r\n",
    "lru_crawler metadump all\r\n",
    "lru_crawler mgdump all\r\n",
    "watch\r\n",
    "nonsense\r\n",
    "\r\n",
    "\n",
    "get\r\n",
    "get \r\n",
    "set a\r\n",
    "GET a\r\n",
    "get a",
    "set b 0 0 3\r\nab",
    "\0\r\n",
    "GET / HTTP/1.1\r\n",
    "Host: 127.0.0.1:11211\r\n",
    "lru_crawler x HTTP/1.1\r\n",
];

/// Lines that end a connection: nothing behind them is executed.
const FOREIGN: &[&str] = &[
    "GET / HTTP/1.0\r\n",
    "POST /?a=b HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "shutdown / HTTP/1.1\r\n",
    "Host: example.org\n",
    "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}",
    "\u{16}\u{3}\n",
];

fn text() -> impl Strategy<Value = Vec<u8>> {
    let stored = (0..ITEM_BYTES_MAX + 200, prop_oneof![Just('a'), Just('b'), Just('c')], any::<bool>());
    let stored = stored.prop_map(|(bytes, key, quiet)| {
        let noreply = if quiet { " noreply" } else { "" };
        [format!("set {key} 7 0 {bytes}{noreply}\r\n").as_bytes(), &vec![b'\n'; bytes], b"\r\n"].concat()
    });
    let many = (1..200usize).prop_map(|keys| format!("get{}\r\n", " a absent".repeat(keys)).into_bytes());
    let long = (0..2 * LINE_BYTES_MAX).prop_map(|bytes| vec![b'x'; bytes]);
    let line = prop::sample::select(LINES).prop_map(|line| line.as_bytes().to_vec());
    prop_oneof![12 => line, 4 => stored, 2 => many, 1 => long, 1 => vec(any::<u8>(), 0..40)]
}

fn binary() -> impl Strategy<Value = Vec<u8>> {
    let key = prop::sample::select(&["a", "b", "n", "absent"][..]);
    let parts = (any::<u8>(), 0..0x26u8, key, vec(any::<u8>(), 0..60), prop_oneof![Just(0u64), 0..4u64]);
    let request = parts.prop_map(|(kind, code, key, value, number)| {
        let key = key.as_bytes();
        let get = BinaryOperation::Get { exptime: None, with_key: kind & 1 != 0, with_value: true };
        let vivify = Some(Vivify { initial: number, exptime: 0 });
        let direction = lookaside_protocol::Direction::Up;
        let (code, operation) = match kind % 6 {
            0 => (opcode::SET, BinaryOperation::Store { mode: StoreMode::Set, flags: 1, exptime: 0, value: &value }),
            1 => (opcode::GETKQ, get),
            2 => (opcode::GET, get),
            3 => (opcode::DELETE, BinaryOperation::Delete { cas: None }),
            4 => (opcode::INCREMENT, BinaryOperation::Arithmetic { direction, delta: number, vivify, cas: None }),
            _ => (code, get),
        };
        let mut out = Vec::new();
        let tag = ResponseTag { opcode: code, opaque: u32::from(kind) };
        compose_request(&BinaryRequest { tag, command: BinaryCommand::Keyed { key, operation } }, &mut out);
        out
    });
    // One byte of a request may be changed: lengths, opcodes, reserved fields.
    (request, prop_oneof![3 => Just(None), 1 => (0..30usize, any::<u8>()).prop_map(Some)]).prop_map(
        |(mut out, change)| {
            if let Some((at, byte)) = change.filter(|&(at, _)| at > 0 && at < out.len()) {
                out[at] = byte;
            }
            out
        },
    )
}

/// The seeds of the fuzz target, without its parameters: HTTP requests and TLS handshakes among them.
fn seeds() -> Vec<Vec<u8>> {
    let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/session")).expect("a folder");
    let mut paths: Vec<_> = folder.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("a seed")[4..].to_vec()).collect()
}

/// A part of a seed, with some bytes changed.
fn mutated_seed() -> impl Strategy<Value = Vec<u8>> {
    let changes = vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    let ends = any::<[prop::sample::Index; 2]>();
    (prop::sample::select(seeds()), changes, prop_oneof![2 => Just(None), 1 => ends.prop_map(Some)]).prop_map(
        |(mut seed, changes, ends)| {
            for (at, byte) in changes {
                let at = at.index(seed.len());
                seed[at] = byte;
            }
            match ends.map(|ends| ends.map(|end| end.index(seed.len()))) {
                Some([one, other]) => seed[one.min(other)..one.max(other)].to_vec(),
                None => seed,
            }
        },
    )
}

/// A login in either protocol, with the right password or another.
fn login_attempt() -> impl Strategy<Value = Vec<u8>> {
    let password = prop_oneof![2 => Just(PASSWORD.to_vec()), 1 => vec(any::<u8>(), 0..40)];
    (password, any::<bool>()).prop_map(|(password, is_binary)| {
        if is_binary {
            let message = [b"\0ada\0", &password[..]].concat();
            let command = BinaryCommand::Authenticate { mechanism: b"PLAIN", message: &message };
            let mut out = Vec::new();
            let tag = ResponseTag { opcode: opcode::SASL_AUTHENTICATE, opaque: 7 };
            compose_request(&BinaryRequest { tag, command }, &mut out);
            return out;
        }
        let value = [b"ada ", &password[..]].concat();
        [format!("set login 0 0 {}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat()
    })
}

/// 300, or as many as `EXCHANGE_CASES` says (`make soak`).
fn cases() -> u32 {
    std::env::var("EXCHANGE_CASES").map_or(300, |cases| cases.parse().expect("a number"))
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let concatenate = |pieces: Vec<Vec<u8>>| pieces.concat();
    prop_oneof![
        2 => vec(mutated_seed(), 1..4).prop_map(concatenate),
        3 => vec(text(), 1..30).prop_map(concatenate),
        2 => vec(binary(), 1..30).prop_map(concatenate),
        1 => vec(any::<u8>(), 0..600),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_global_rejects: u32::MAX, ..ProptestConfig::with_cases(cases()) })]

    #[test]
    fn replies_do_not_depend_on_cuts_or_pauses(
        bytes in bytes(),
        pieces in prop_oneof![vec(any::<u8>(), 1..8), vec(0..4u8, 1..4)],
        reply_bytes_max in prop_oneof![1..64usize, 64..4_000usize],
    ) {
        let whole = run(&bytes, &[], usize::MAX);
        prop_assert_eq!(&run(&bytes, &pieces, usize::MAX), &whole);
        prop_assert_eq!(&run(&bytes, &[], reply_bytes_max), &whole);
        prop_assert_eq!(&run(&bytes, &pieces, reply_bytes_max), &whole);
    }

    #[test]
    fn the_same_holds_before_and_after_a_login(
        login in prop::sample::select(&RequiredLogin::ALL[1..]),
        before in bytes(),
        logins in vec(login_attempt(), 0..3).prop_map(|attempts| attempts.concat()),
        behind in bytes(),
        has_strange_beginning in any::<bool>(),
        pieces in prop_oneof![vec(any::<u8>(), 1..8), vec(0..4u8, 1..4)],
        reply_bytes_max in prop_oneof![1..64usize, 64..4_000usize],
    ) {
        // Many sequences of bytes close the connection at once.
        let before = if has_strange_beginning { &before[..] } else { b"" };
        let bytes = [before, &logins, &behind].concat();
        let whole = run_with_login(login, &bytes, &[], usize::MAX);
        prop_assert_eq!(&run_with_login(login, &bytes, &pieces, usize::MAX), &whole);
        prop_assert_eq!(&run_with_login(login, &bytes, &pieces, reply_bytes_max), &whole);
    }

    #[test]
    fn nothing_behind_a_foreign_request_is_executed(
        before in vec(text(), 0..10).prop_map(|lines| lines.concat()),
        foreign in prop::sample::select(FOREIGN),
        behind in bytes(),
        pieces in prop_oneof![vec(any::<u8>(), 1..8), vec(0..4u8, 1..4)],
        reply_bytes_max in prop_oneof![1..64usize, 64..4_000usize],
    ) {
        // Only where a command may begin: elsewhere these bytes are a part of a value.
        let answered = run(&[&before[..], b"mn\r\n"].concat(), &[], usize::MAX);
        prop_assume!(answered.state == SessionState::Open && answered.replies.ends_with(b"MN\r\n"));
        let bytes = [&before[..], foreign.as_bytes(), &behind].concat();
        let result = run(&bytes, &pieces, reply_bytes_max);
        prop_assert_eq!(result.state, SessionState::Close);
        prop_assert_eq!(&result.replies, &answered.replies[..answered.replies.len() - b"MN\r\n".len()]);
        let expected = CounterSnapshot { closed_foreign_protocol: 1, ..answered.counters };
        prop_assert_eq!(result.counters, expected);
    }
}
