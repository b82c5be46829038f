//! Reads the `stats` of any of our daemons, in memcached's text protocol.

use anyhow::{Context, Result, bail};
use lookaside_protocol::text::{Limits, ParsedReply, ReplyPart, parse_reply};
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// How long connecting to a daemon, and its reply, may take.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The largest accepted reply.
const REPLY_BYTES_MAX: usize = 1 << 20;

/// The names and values that a daemon reported.
#[derive(Clone, Debug, Default)]
pub struct Statistics(BTreeMap<String, String>);

impl Statistics {
    /// Reads the statistics of the daemon at `port` of 127.0.0.1.
    pub fn fetch(port: u16) -> Result<Statistics> {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut stream =
            TcpStream::connect_timeout(&address, TIMEOUT).with_context(|| format!("connecting to {address}"))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(b"stats\r\n")?;
        let mut reply = Vec::new();
        let mut piece = [0; 4096];
        loop {
            if let Some(statistics) = parse(&reply)? {
                return Ok(statistics);
            }
            let read = stream.read(&mut piece).with_context(|| format!("waiting for the statistics of {address}"))?;
            if read == 0 || reply.len() > REPLY_BYTES_MAX {
                bail!("{address} does not reply to `stats`");
            }
            reply.extend_from_slice(&piece[..read]);
        }
    }

    /// The clusters whose pipeline is not running, and why; empty if all are running.
    pub fn unhealthy(&self) -> String {
        let mut unhealthy = Vec::new();
        for (name, state) in self.0.iter().filter(|(name, state)| name.ends_with(":state") && *state != "running") {
            let why = self.0.get(&name.replace(":state", ":why")).map_or("", String::as_str);
            unhealthy.push(format!("{} is {state} {why}", name.trim_end_matches(":state").replace(':', " ")));
        }
        unhealthy.join("; ")
    }

    /// The value of a numeric statistic, or 0 if there is none.
    pub fn number(&self, name: &str) -> u64 {
        self.0.get(name).and_then(|value| value.parse().ok()).unwrap_or(0)
    }
}

fn parse(mut bytes: &[u8]) -> Result<Option<Statistics>> {
    let limits = Limits { value_bytes_max: REPLY_BYTES_MAX, line_bytes_max: REPLY_BYTES_MAX };
    let mut statistics = Statistics::default();
    loop {
        match parse_reply(bytes, &limits) {
            ParsedReply::Incomplete { .. } => return Ok(None),
            ParsedReply::Part { part: ReplyPart::Stat { name, value }, consumed } => {
                let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
                statistics.0.insert(text(name), text(value));
                bytes = &bytes[consumed..];
            }
            ParsedReply::Part { part: ReplyPart::End, .. } => return Ok(Some(statistics)),
            ParsedReply::Part { part: reply, .. } => bail!("unexpected reply to `stats`: {reply:?}"),
            ParsedReply::Malformed { why } => bail!("unexpected reply to `stats`: {why}"),
        }
    }
}
