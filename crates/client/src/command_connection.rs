//! A connection of its own for a few commands: `version`, `flush_all`, `stats`, or the keys of one maintenance task.
//!
//! Maintenance on it does not wait behind clients' requests, as it would on a destination's shared connection.
//!
//! One deadline holds from the start for all that follows, until [`CommandConnection::set_timeout`] moves it.
//! [`Limits`] bound each part of a reply, and so the memory of a connection.
//!
//! ```
//! # use lookaside_client::{CommandConnection, CommandError, Network};
//! # use lookaside_protocol::text::Limits;
//! # use lookaside_routing::Address;
//! # use std::time::Duration;
//! async fn flush(network: &dyn Network, server: &Address) -> Result<(), CommandError> {
//!     let limits = Limits { value_bytes_max: 0, line_bytes_max: 512 };
//!     let mut connection = CommandConnection::connect(network, server, limits, Duration::from_secs(2)).await?;
//!     connection.flush_all(None).await
//! }
//! ```

use crate::network::{Network, Stream};
use lookaside_protocol::{
    Reply,
    text::{Limits, ParsedReply, ReplyPart, parse_reply},
};
use lookaside_routing::Address;
use std::{fmt, future::Future, io, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{Instant, timeout_at},
};

/// How many bytes of a listing are read at a time: it is much longer than any reply.
const LISTING_READ_BYTES: usize = 16 << 10;

/// A connection to one server, for one task.
pub struct CommandConnection {
    stream: Box<dyn Stream>,
    /// Those before `parsed_bytes` have been returned to the caller.
    received: Vec<u8>,
    parsed_bytes: usize,
    limits: Limits,
    timeout: Duration,
    deadline: Instant,
}

/// Why a command has no reply, or not the one that was expected.
#[derive(Debug)]
pub enum CommandError {
    /// No connection.
    Connect(io::Error),
    /// The connection broke.
    Io(io::Error),
    /// The server closed the connection.
    Closed,
    /// The deadline has passed; the field is the timeout that set it.
    TimedOut(Duration),
    /// The bytes are no reply, or the reply is over the limits.
    Malformed(&'static str),
    /// The server replied with an error, in its words.
    Refused(String),
    /// The reply is not one of the command's.
    Unexpected(String),
}

impl std::error::Error for CommandError {}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommandError::Connect(error) => write!(f, "cannot connect: {error}"),
            CommandError::Io(error) => write!(f, "connection failed: {error}"),
            CommandError::Closed => write!(f, "the server closed the connection"),
            CommandError::TimedOut(timeout) => write!(f, "no reply within {timeout:?}"),
            CommandError::Malformed(why) => write!(f, "malformed reply: {why}"),
            CommandError::Refused(message) => write!(f, "{message}"),
            CommandError::Unexpected(reply) => write!(f, "unexpected reply: {reply}"),
        }
    }
}

impl CommandConnection {
    /// Connects to `address`. Connecting and all that follows may take `timeout`.
    pub async fn connect(
        network: &dyn Network,
        address: &Address,
        limits: Limits,
        timeout: Duration,
    ) -> Result<CommandConnection, CommandError> {
        let deadline = Instant::now() + timeout;
        let stream = match timeout_at(deadline, network.connect(address)).await {
            Ok(connected) => connected.map_err(CommandError::Connect)?,
            Err(_) => return Err(CommandError::TimedOut(timeout)),
        };
        Ok(CommandConnection { stream, received: Vec::new(), parsed_bytes: 0, limits, timeout, deadline })
    }

    /// Uses a connection on which no reply is outstanding. All that follows may take `timeout`.
    pub fn from_stream(stream: Box<dyn Stream>, limits: Limits, timeout: Duration) -> CommandConnection {
        let deadline = Instant::now() + timeout;
        CommandConnection { stream, received: Vec::new(), parsed_bytes: 0, limits, timeout, deadline }
    }

    /// Moves the deadline: all that follows may take `timeout` from now.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
        self.deadline = Instant::now() + timeout;
    }

    /// Sends `commands`, one or more with their line ends. After an error the connection is of no more use.
    pub async fn send(&mut self, commands: &[u8]) -> Result<(), CommandError> {
        let stream = &mut self.stream;
        let send = async {
            stream.write_all(commands).await?;
            stream.flush().await
        };
        within(self.deadline, self.timeout, send).await
    }

    /// Reads the next part of a reply: an item or a statistic, the `END` after them, or a line. After an error the
    /// connection is of no more use.
    pub async fn read_part(&mut self) -> Result<ReplyPart<'_>, CommandError> {
        let part_bytes = loop {
            match parse_reply(&self.received[self.parsed_bytes..], &self.limits) {
                ParsedReply::Part { consumed, .. } => break consumed,
                ParsedReply::Malformed { why } => return Err(CommandError::Malformed(why)),
                ParsedReply::Incomplete { .. } => self.receive().await?,
            }
        };
        let unparsed = &self.received[self.parsed_bytes..];
        self.parsed_bytes += part_bytes;
        // Parsed twice: a reference from the loop above would keep the buffer borrowed in the turns before it.
        match parse_reply(unparsed, &self.limits) {
            ParsedReply::Part { part, .. } => Ok(part),
            _ => unreachable!("the same bytes are parsed the same way"),
        }
    }

    /// Reads one line and returns it without its end: for listings, whose lines are no replies to other commands. After
    /// an error the connection is of no more use.
    pub async fn read_line(&mut self) -> Result<&[u8], CommandError> {
        let line_bytes = loop {
            let unparsed = &self.received[self.parsed_bytes..];
            if let Some(line_bytes) = unparsed.iter().position(|&byte| byte == b'\n') {
                break line_bytes;
            }
            if unparsed.len() > self.limits.line_bytes_max {
                return Err(CommandError::Malformed("the line is too long"));
            }
            self.received.reserve(LISTING_READ_BYTES);
            self.receive().await?;
        };
        let line = &self.received[self.parsed_bytes..][..line_bytes];
        self.parsed_bytes += line_bytes + 1;
        Ok(line.strip_suffix(b"\r").unwrap_or(line))
    }

    /// Reads the whole reply of a `get` or a `stats`: `on_part` is called with each item or statistic. The caller must
    /// bound the memory for the collected parts.
    pub async fn read_until_end(&mut self, mut on_part: impl FnMut(ReplyPart<'_>)) -> Result<(), CommandError> {
        loop {
            match self.read_part().await? {
                ReplyPart::End => return Ok(()),
                part @ (ReplyPart::Item { .. } | ReplyPart::Stat { .. }) => on_part(part),
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Sends `flush_all`, with a delay if there is one, and waits for the reply. No other reply may be outstanding.
    ///
    /// Only `OK` alone is success: whether a server that sends more has flushed is unknown.
    pub async fn flush_all(&mut self, delay_s: Option<i64>) -> Result<(), CommandError> {
        let command = match delay_s {
            Some(delay_s) => format!("flush_all {delay_s}\r\n"),
            None => "flush_all\r\n".to_owned(),
        };
        self.send(command.as_bytes()).await?;
        match self.read_part().await? {
            ReplyPart::Reply(Reply::Ok) => {}
            other => return Err(unexpected(&other)),
        }
        match self.has_unparsed() {
            true => Err(CommandError::Malformed("more bytes after OK")),
            false => Ok(()),
        }
    }

    /// The stream, for other uses; `None` if bytes have arrived that are no reply to any command sent here.
    pub fn into_stream(self) -> Option<Box<dyn Stream>> {
        (!self.has_unparsed()).then_some(self.stream)
    }

    fn has_unparsed(&self) -> bool {
        self.parsed_bytes < self.received.len()
    }

    async fn receive(&mut self) -> Result<(), CommandError> {
        self.received.drain(..self.parsed_bytes);
        self.parsed_bytes = 0;
        match within(self.deadline, self.timeout, self.stream.read_buf(&mut self.received)).await? {
            0 => Err(CommandError::Closed),
            _ => Ok(()),
        }
    }
}

async fn within<T>(
    deadline: Instant,
    timeout: Duration,
    work: impl Future<Output = io::Result<T>>,
) -> Result<T, CommandError> {
    match timeout_at(deadline, work).await {
        Ok(done) => done.map_err(CommandError::Io),
        Err(_) => Err(CommandError::TimedOut(timeout)),
    }
}

fn unexpected(part: &ReplyPart<'_>) -> CommandError {
    match part {
        ReplyPart::Reply(Reply::Error(error)) => CommandError::Refused(error.to_string()),
        other => CommandError::Unexpected(format!("{other:?}")),
    }
}
