//! What a spare is told before it serves, over a connection of its own: forget everything, unless it bears the pool's mark.
//!
//! ```text
//!   get lookaside-spare:0f3a...      there: it was emptied as a spare of this very pool, and has had every delete since
//!   flush_all                        not there: whatever it holds is from another life
//!   set lookaside-spare:0f3a... 0 600 1
//! ```
//!
//! The mark is an item, so it shares the fate of what it speaks of: a spare that was restarted, or emptied, has neither. Its
//! name is made of the pool's name, servers and spares, so after a change of the pool it is another one. It lives for
//! [`MARK_S`] seconds and is renewed while the spare serves, so a spare that had another role for longer is
//! emptied when it comes back to this one. That a mark is lost (evicted, say) costs the spare's content once.

use lookaside_client::{Network, Stream};
use lookaside_protocol::text::{Limits, ParsedReply, ReplyPart, parse_reply};
use lookaside_protocol::{ErrorReply, Reply};
use lookaside_routing::{Address, Pool};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

/// How long a mark lives that is not renewed, in seconds.
const MARK_S: u64 = 600;
/// How often it is renewed.
pub(super) const MARK_INTERVAL: Duration = Duration::from_secs(60);
/// How long a visit may take, connecting included.
const VISIT_MAX: Duration = Duration::from_secs(1);
const LIMITS: Limits = Limits { value_bytes_max: 1_024, line_bytes_max: 2_048 };

/// The key of the mark on spares of `pool`.
pub(super) fn mark(pool: &Pool) -> String {
    let addresses = |of: &'_ [Address]| of.iter().map(|address| address.0.clone()).collect::<Vec<_>>();
    let words = [[pool.name.as_str().into()].to_vec(), addresses(&pool.servers), addresses(&pool.spares)].concat();
    // FNV-1a: the same in every router, and two pools of one router differ.
    let bytes = words.iter().flat_map(|word| word.bytes().chain([0]));
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("lookaside-spare:{hash:016x}")
}

/// Makes the spare at `address` fit to serve: true if it was emptied. The error says why it is not.
pub(super) async fn prepare(
    network: &dyn Network,
    address: &Address,
    mark: &str,
    is_trusted: bool,
) -> Result<bool, String> {
    within(async {
        let mut spare = Spare::connect(network, address).await?;
        if is_trusted && spare.is_marked(mark).await? {
            return Ok(false);
        }
        spare.empty().await?;
        spare.mark(mark).await?;
        Ok(true)
    })
    .await
}

/// Takes the mark off.
pub(super) async fn withdraw(network: &dyn Network, address: &Address, mark: &str) -> Result<(), String> {
    within(async {
        let mut spare = Spare::connect(network, address).await?;
        spare.say(&format!("delete {mark}\r\n")).await?;
        spare.hear().await.map(drop)
    })
    .await
}

/// Makes the mark last.
pub(super) async fn renew(network: &dyn Network, address: &Address, mark: &str) -> Result<(), String> {
    within(async { Spare::connect(network, address).await?.mark(mark).await }).await
}

async fn within<T>(visit: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    timeout(VISIT_MAX, visit).await.unwrap_or_else(|_| Err(format!("no answer within {VISIT_MAX:?}")))
}

struct Spare {
    stream: Box<dyn Stream>,
    read: Vec<u8>,
}

/// What there is of an answer here.
enum Said {
    /// A value.
    Value,
    /// The end of values.
    End,
    /// Anything else that is well.
    Done,
    /// An error line.
    Refused(String),
}

impl Spare {
    async fn connect(network: &dyn Network, address: &Address) -> Result<Spare, String> {
        let stream = network.connect(address).await.map_err(|error| error.to_string())?;
        Ok(Spare { stream, read: Vec::new() })
    }

    async fn is_marked(&mut self, mark: &str) -> Result<bool, String> {
        self.say(&format!("get {mark}\r\n")).await?;
        let mut is_marked = false;
        loop {
            match self.hear().await? {
                Said::Value => is_marked = true,
                Said::End => return Ok(is_marked),
                Said::Done => return Err("no answer to a get".to_owned()),
                Said::Refused(why) => return Err(why),
            }
        }
    }

    async fn empty(&mut self) -> Result<(), String> {
        self.say("flush_all\r\n").await?;
        match self.hear().await? {
            Said::Done => Ok(()),
            Said::Refused(why) => Err(format!("it refuses flush_all ({why}), and may hold what was deleted")),
            Said::Value | Said::End => Err("no answer to flush_all".to_owned()),
        }
    }

    /// A spare that does not take the mark serves all the same: it is emptied oftener.
    async fn mark(&mut self, mark: &str) -> Result<(), String> {
        self.say(&format!("set {mark} 0 {MARK_S} 1\r\n1\r\n")).await?;
        self.hear().await.map(drop)
    }

    async fn say(&mut self, line: &str) -> Result<(), String> {
        self.stream.write_all(line.as_bytes()).await.map_err(|error| error.to_string())?;
        self.stream.flush().await.map_err(|error| error.to_string())
    }

    async fn hear(&mut self) -> Result<Said, String> {
        loop {
            match parse_reply(&self.read, &LIMITS) {
                ParsedReply::Part { part: reply, consumed } => {
                    let said = said(&reply);
                    self.read.drain(..consumed);
                    return Ok(said);
                }
                ParsedReply::Malformed { why } => return Err(format!("it said what no server says: {why}")),
                ParsedReply::Incomplete { .. } => {
                    if self.stream.read_buf(&mut self.read).await.map_err(|error| error.to_string())? == 0 {
                        return Err("it closed the connection".to_owned());
                    }
                }
            }
        }
    }
}

fn said(reply: &ReplyPart<'_>) -> Said {
    let words = |why: &[u8]| String::from_utf8_lossy(why).into_owned();
    match reply {
        ReplyPart::Item { .. } => Said::Value,
        ReplyPart::End => Said::End,
        ReplyPart::Reply(Reply::Error(ErrorReply::Unknown)) => Said::Refused("ERROR".to_owned()),
        ReplyPart::Reply(Reply::Error(ErrorReply::Client(why) | ErrorReply::Server(why))) => Said::Refused(words(why)),
        _ => Said::Done,
    }
}
