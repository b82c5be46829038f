//! One client's exchange with an empty store, run as the server runs it: input arrives in pieces, a reply is sent when
//! it reaches a bound, and what was not executed by then is scanned again.
//!
//! Shared by the property tests beside it and by the fuzz target `session`.
#![allow(dead_code, reason = "each uses a part")]

use lookaside_server::credentials::Credentials;
use lookaside_server::{
    Batch, BatchProgress, CounterSnapshot, Counters, Protocols, Scan, Session, SessionContext, SessionState,
};
use lookaside_store::{Now, Options, Store};
use std::sync::LazyLock;

const NOW: Now = Now { unix_ms: 1_700_000_000_000 };

/// Small, so that short exchanges reach both bounds.
pub const ITEM_BYTES_MAX: usize = 2_048;
pub const LINE_BYTES_MAX: usize = 512;

/// The result of an exchange.
#[derive(Debug, PartialEq, Eq)]
pub struct ExchangeResult {
    pub replies: Vec<u8>,
    pub state: SessionState,
    /// What was executed.
    pub counters: CounterSnapshot,
}

/// How the client must log in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredLogin {
    None,
    /// As with `-Y`.
    Text,
    /// As with `-S`.
    Binary,
    /// As with both.
    Either,
}

impl RequiredLogin {
    pub const ALL: [RequiredLogin; 4] =
        [RequiredLogin::None, RequiredLogin::Text, RequiredLogin::Binary, RequiredLogin::Either];

    fn protocols(self) -> Protocols {
        match self {
            RequiredLogin::None | RequiredLogin::Either => Protocols::Both,
            RequiredLogin::Text => Protocols::Text,
            RequiredLogin::Binary => Protocols::Binary,
        }
    }
}

/// The password of the only user, `ada`.
pub const PASSWORD: &[u8] = b"secret";

static USERS: LazyLock<Credentials> = LazyLock::new(|| {
    let path = std::env::temp_dir().join(format!("lookaside-exchange-users-{}", std::process::id()));
    std::fs::write(&path, [b"ada:", PASSWORD, b"\n"].concat()).expect("a file");
    let users = Credentials::read(&path, [7; 32]);
    std::fs::remove_file(&path).expect("it was written");
    users.expect("one user")
});

/// As [`run_with_login`], without a login.
pub fn run(bytes: &[u8], piece_bytes: &[u8], reply_bytes_max: usize) -> ExchangeResult {
    run_with_login(RequiredLogin::None, bytes, piece_bytes, reply_bytes_max)
}

/// Runs an exchange, and checks that nothing is executed for a client that does not know the password. The pieces have
/// these lengths, cyclically, 0 counting as 1; without lengths there is one piece.
pub fn run_with_login(
    login: RequiredLogin,
    bytes: &[u8],
    piece_bytes: &[u8],
    reply_bytes_max: usize,
) -> ExchangeResult {
    let options = Options { memory_bytes_max: 8 << 20, item_bytes_max: ITEM_BYTES_MAX, seed: 7, ..Options::default() };
    let store = Store::new(options.clone()).expect("the options are fine");
    let counters = Counters::default();
    let mut context = SessionContext::new(&store, &options, &counters);
    context.limits.line_bytes_max = LINE_BYTES_MAX;
    context.protocols = login.protocols();
    context.text_users = matches!(login, RequiredLogin::Text | RequiredLogin::Either).then(|| &*USERS);
    context.sasl_users = matches!(login, RequiredLogin::Binary | RequiredLogin::Either).then(|| &*USERS);
    let (mut session, mut input, mut replies) = (Session::new(), Vec::new(), Vec::new());
    let (mut needed_bytes, mut rest) = (0, bytes);
    let mut lengths = piece_bytes.iter().cycle();
    let mut state = SessionState::Open;
    while !rest.is_empty() {
        let length = lengths.next().map_or(rest.len(), |&length| usize::from(length).clamp(1, rest.len()));
        let (piece, behind) = rest.split_at(length);
        rest = behind;
        input.extend_from_slice(piece);
        if input.len() < needed_bytes {
            continue; // As the server does.
        }
        match serve(&mut session, &mut input, &context, reply_bytes_max, &mut replies) {
            Some(needed) => needed_bytes = needed,
            None => {
                state = SessionState::Close;
                break;
            }
        }
    }
    let counters = counters.snapshot();
    let knows_password = bytes.windows(PASSWORD.len()).any(|part| part == PASSWORD);
    if login != RequiredLogin::None && !knows_password {
        assert_eq!(counters, of_refusals(&counters), "a client that has not logged in was served");
    }
    ExchangeResult { replies, state, counters }
}

/// Those of `counters` that count refusals.
fn of_refusals(counters: &CounterSnapshot) -> CounterSnapshot {
    CounterSnapshot {
        auth_cmds: counters.auth_errors,
        auth_errors: counters.auth_errors,
        closed_foreign_protocol: counters.closed_foreign_protocol,
        closed_long_line: counters.closed_long_line,
        ..CounterSnapshot::default()
    }
}

/// Answers the whole commands in `input` and removes them. Returns the number of bytes needed for the next one; `None`
/// once the connection is closed.
fn serve(
    session: &mut Session,
    input: &mut Vec<u8>,
    context: &SessionContext<'_>,
    reply_bytes_max: usize,
    replies: &mut Vec<u8>,
) -> Option<usize> {
    let mut from = 0;
    loop {
        let (mut batch, mut reply) = (Batch::default(), Vec::new());
        let scan = session.scan(input, from, context, NOW, &mut batch);
        let steps = batch.steps_count();
        // The steps of a crawl follow each other directly, because there is no other connection.
        let progress = loop {
            match batch.execute(context, NOW, steps, reply_bytes_max.saturating_add(reply.len()), &mut reply) {
                BatchProgress::Yield => {}
                progress => break progress,
            }
        };
        replies.extend_from_slice(&reply);
        let rest = match progress {
            BatchProgress::Close => return None,
            BatchProgress::Full => batch.unexecuted(steps, input),
            BatchProgress::Done | BatchProgress::Yield => None,
        };
        if let Some(rest) = rest {
            session.rewind();
            *input = [&rest.prefix[..], &input[rest.input_at..]].concat();
            from = 0;
            continue;
        }
        match scan {
            Scan::Full { input_at } => {
                assert!(input_at > from || steps > 0, "a scan that makes no progress");
                from = input_at;
            }
            Scan::Finished { input_at, needed_bytes } => {
                input.drain(..input_at);
                assert!(needed_bytes > input.len(), "the present bytes were not scanned");
                return Some(needed_bytes);
            }
        }
    }
}
