//! Any bytes, in either protocol: a session gives the same replies and routes the same requests wherever the bytes are
//! cut, and closes the connection at the same point. It does not panic.
#![allow(missing_docs)]

mod exchange;

use exchange::{LINE_BYTES_MAX, PASSWORD, RequiredLogin, VALUE_BYTES_MAX, run, run_with_login};
use lookaside_protocol::binary::{BinaryCommand, BinaryRequest, ResponseTag, compose_request, opcode};
use proptest::collection::vec;
use proptest::prelude::*;

/// Whole and partial commands. The first byte of a key chooses the outcome: a hit for `d`, a miss for `a`, failures for
/// `b` and `c`.
const LINES: &[&str] = &[
    "get a b c d absent\r\n",
    "gets d a\r\n",
    "gat 0 d b\r\n",
    "gats 100 d c\r\n",
    "lease-get a b\r\n",
    "lease-set d 1 0 0 1\r\nx\r\n",
    "delete d\r\n",
    "delete b 5\r\n",
    "delete c noreply\r\n",
    "incr d 5\r\n",
    "decr a 1 noreply\r\n",
    "set d 0 0 2\r\n10\r\n",
    "touch a 100\r\n",
    "version\r\n",
    "verbosity 1\r\n",
    "mn\r\n",
    "mg d v f t k q\r\n",
    "mg a k v q\r\n",
    "ms d S2 T0 I\r\nab\r\n",
    "ms bad S2\r\nabc\r\n",
    "ms d 2 q\r\nab\r\n",
    "md a I T30\r\n",
    "ma d N0 J13 v\r\n",
    "me a\r\n",
    "me a a\r\n",
    "mg YQ== b k v\r\n",
    "set a 0 0 -1\r\n",
    "set a 0 0 5\r\nlonger than that\r\n",
    "append d 0 0 1\r\n!\r\n",
    "cas d 1 0 1 1\r\nx\r\n",
    "add new 0 0 0\r\n\r\n",
    "flush_all\r\n",
    "flush_all 10 noreply\r\n",
    "stats\r\n",
    "stats servers\r\n",
    "get __mcrouter__.version d\r\n",
    "get __mcrouter__.spool_fenced(1) __mcrouter__.route(get,a)\r\n",
    "set __mcrouter__.x 0 0 1\r\nx\r\n",
    "lru_crawler x HTTP/1.1\r\n",
    "nonsense\r\n",
    "\r\n",
    "\n",
    "get\r\n",
    "GET a\r\n",
    "quit\r\n",
    "get a",
    "set b 0 0 3\r\nab",
    "GET / HTTP/1.1\r\n",
    "\0\r\n",
];

/// Lines that end a connection: nothing behind them is executed.
const FOREIGN: &[&str] = &[
    "GET / HTTP/1.0\r\n",
    "POST /?a=b HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "Host: example.org\n",
    "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}",
    "\u{16}\u{3}\n",
];

fn text() -> impl Strategy<Value = Vec<u8>> {
    let stored = (0..VALUE_BYTES_MAX + 200, prop_oneof![Just('a'), Just('b'), Just('d')], any::<bool>());
    let stored = stored.prop_map(|(bytes, key, quiet)| {
        let noreply = if quiet { " noreply" } else { "" };
        [format!("set {key} 7 0 {bytes}{noreply}\r\n").as_bytes(), &vec![b'\n'; bytes], b"\r\n"].concat()
    });
    let many = (1..200usize).prop_map(|keys| format!("get{}\r\n", " d absent".repeat(keys)).into_bytes());
    let long = (0..2 * LINE_BYTES_MAX).prop_map(|bytes| vec![b'x'; bytes]);
    let line = prop::sample::select(LINES).prop_map(|line| line.as_bytes().to_vec());
    prop_oneof![12 => line, 4 => stored, 2 => many, 1 => long, 1 => vec(any::<u8>(), 0..40)]
}

/// A request of the binary protocol with any opcode, some of them damaged.
fn binary() -> impl Strategy<Value = Vec<u8>> {
    let parts = (0..0x26u8, prop::sample::select(&["a", "b", "d"][..]), vec(any::<u8>(), 0..60), 0..9u8);
    (parts, prop_oneof![3 => Just(None), 1 => (1..30usize, any::<u8>()).prop_map(Some)]).prop_map(
        |((opcode, key, value, extras), change)| {
            let body_bytes = usize::from(extras) + key.len() + value.len();
            let mut request = vec![0x80, opcode, 0, key.len() as u8, extras, 0, 0, 0, 0, 0, 0, body_bytes as u8];
            request.resize(24 + usize::from(extras), 0);
            request.extend_from_slice(key.as_bytes());
            request.extend_from_slice(&value);
            if let Some((at, byte)) = change.filter(|&(at, _)| at < request.len()) {
                request[at] = byte;
            }
            request
        },
    )
}

/// The seeds of the fuzz target, without its parameters: HTTP requests and TLS handshakes among them.
fn seeds() -> Vec<Vec<u8>> {
    let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/session")).expect("a folder");
    let mut paths: Vec<_> = folder.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("a seed")[3..].to_vec()).collect()
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

/// Attempts to log in with the right password or another one, in either protocol.
fn logins() -> impl Strategy<Value = Vec<u8>> {
    let password = prop_oneof![2 => Just(PASSWORD.to_vec()), 1 => vec(any::<u8>(), 0..40)];
    let by_text = password.clone().prop_map(|password| {
        let line = format!("set login 0 0 {}\r\nada ", 4 + password.len());
        [line.as_bytes(), &password, b"\r\n"].concat()
    });
    let by_sasl = password.prop_map(|password| {
        let tag = ResponseTag { opcode: opcode::SASL_AUTHENTICATE, opaque: 7 };
        let message = [b"\0ada\0", &password[..]].concat();
        let command = BinaryCommand::Authenticate { mechanism: b"PLAIN", message: &message };
        let mut out = Vec::new();
        compose_request(&BinaryRequest { tag, command }, &mut out);
        out
    });
    vec(prop_oneof![by_text, by_sasl], 0..3).prop_map(|attempts| attempts.concat())
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

fn pieces() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![vec(any::<u8>(), 1..8), vec(0..4u8, 1..4)]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_global_rejects: u32::MAX, ..ProptestConfig::with_cases(cases()) })]

    #[test]
    fn replies_and_requests_do_not_depend_on_cuts(bytes in bytes(), pieces in pieces()) {
        prop_assert_eq!(run(&bytes, &pieces), run(&bytes, &[]));
    }

    #[test]
    fn the_same_holds_before_and_after_a_login(
        login in (1..4u8).prop_map(RequiredLogin::from_bits),
        before in prop_oneof![Just(Vec::new()), bytes()],
        logins in logins(),
        behind in bytes(),
        pieces in pieces(),
    ) {
        let bytes = [before, logins, behind].concat();
        prop_assert_eq!(run_with_login(login, &bytes, &pieces), run_with_login(login, &bytes, &[]));
    }

    #[test]
    fn nothing_behind_a_foreign_request_is_executed(
        before in vec(text(), 0..10).prop_map(|lines| lines.concat()),
        foreign in prop::sample::select(FOREIGN),
        behind in bytes(),
        pieces in pieces(),
    ) {
        // Only where a command may begin: elsewhere these bytes are a part of a value.
        let answered = run(&[&before[..], b"mn\r\n"].concat(), &[]);
        prop_assume!(!answered.is_closed && answered.replies.ends_with(b"MN\r\n"));
        let result = run(&[&before[..], foreign.as_bytes(), &behind].concat(), &pieces);
        prop_assert!(result.is_closed);
        prop_assert_eq!(&result.replies, &answered.replies[..answered.replies.len() - b"MN\r\n".len()]);
        prop_assert_eq!(result.routed, answered.routed);
    }
}
