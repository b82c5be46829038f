//! The stream of a replication slot: messages of the output plugin, signs of life, and our reports of the position.

use super::{
    connection::{MESSAGE_BYTES_MAX, PostgresConnection, QueryError, malformed, protocol_error, server_error},
    lsn::{Lsn, us_of},
};
use crate::SourceError;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use postgres_protocol::message::{backend::Message, frontend};
use std::time::SystemTime;
use tokio::time::timeout;

const HEADER_BYTES: usize = 5;
/// The header of a message with data of the log: `w`, its position, the end of the log, the server's clock.
const DATA_HEADER_BYTES: usize = 25;
const WAL_DATA: u8 = b'w';
const KEEPALIVE: u8 = b'k';

/// A message of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LogMessage {
    /// A message of the output plugin.
    Data(Bytes),
    /// Everything that was committed before `end` has been sent.
    Keepalive { end: Lsn, is_reply_requested: bool },
    /// A message that was too long to be read; `relation` is the id of the table if it is a change of a row.
    Skipped { relation: Option<u32> },
}

/// The stream of a replication slot.
pub(super) struct ReplicationStream {
    connection: PostgresConnection,
    skipping: Option<Skipping>,
}

/// A message that is too long and is being discarded.
#[derive(Clone, Copy)]
struct Skipping {
    relation: Option<u32>,
    remaining: usize,
}

impl ReplicationStream {
    /// Sends a `START_REPLICATION` command and returns its stream.
    pub async fn start(mut connection: PostgresConnection, command: &str) -> Result<ReplicationStream, QueryError> {
        connection.start_replication(command).await?;
        Ok(ReplicationStream { connection, skipping: None })
    }

    /// Waits for the next message. May be dropped while it waits: nothing is lost.
    pub async fn read(&mut self) -> Result<LogMessage, QueryError> {
        loop {
            if let Some(message) = self.read_ready()? {
                return Ok(message);
            }
            self.connection.receive().await?;
        }
    }

    /// The next message, if it has arrived.
    pub fn read_ready(&mut self) -> Result<Option<LogMessage>, QueryError> {
        loop {
            if let Some(skipping) = &mut self.skipping {
                let discarded = skipping.remaining.min(self.connection.received.len());
                self.connection.received.advance(discarded);
                skipping.remaining -= discarded;
                let Skipping { relation, remaining } = *skipping;
                if remaining > 0 {
                    return Ok(None);
                }
                self.skipping = None;
                return Ok(Some(LogMessage::Skipped { relation }));
            }
            if let Some(remaining) = self.connection.message_bytes()?.filter(|&bytes| bytes > MESSAGE_BYTES_MAX) {
                let Some(head) =
                    self.connection.received.get(HEADER_BYTES + DATA_HEADER_BYTES..).and_then(<[u8]>::first_chunk)
                else {
                    return Ok(None);
                };
                self.skipping = Some(Skipping { relation: changed_relation(*head), remaining });
                continue;
            }
            match self.connection.parse_message()? {
                None => return Ok(None),
                Some(Message::CopyData(body)) => return Ok(Some(parse_log_message(body.into_bytes())?)),
                Some(Message::ErrorResponse(body)) => return Err(QueryError::Server(server_error(&body)?)),
                Some(Message::CopyDone) => return Err(protocol_error("the server ended the stream of its log").into()),
                Some(_) => {}
            }
        }
    }

    /// Reports that everything before `received` has been read, and that the server need not keep what is before
    /// `flushed`. With `is_reply_requested` the server answers by a keepalive.
    pub async fn send_status(
        &mut self,
        received: Lsn,
        flushed: Lsn,
        now: SystemTime,
        is_reply_requested: bool,
    ) -> Result<(), SourceError> {
        let mut status = BytesMut::with_capacity(HEADER_BYTES + 34);
        status.put_u8(b'r');
        status.put_u64(received.0);
        status.put_u64(flushed.0);
        status.put_u64(flushed.0);
        status.put_i64(us_of(now));
        status.put_u8(u8::from(is_reply_requested));
        let mut message = BytesMut::with_capacity(HEADER_BYTES + status.len());
        frontend::CopyData::new(status).map_err(malformed)?.write(&mut message);
        // A server that hangs, or a partition, leaves the buffers full for minutes.
        let limit = self.connection.wait_max;
        timeout(limit, self.connection.send(&message))
            .await
            .unwrap_or_else(|_| Err(protocol_error(&format!("the server has received nothing for {limit:?}"))))
    }
}

/// The table that a message of the output plugin with these first bytes is about, if it is a change of a row.
fn changed_relation([kind, id @ ..]: [u8; 5]) -> Option<u32> {
    matches!(kind, b'I' | b'U' | b'D').then(|| u32::from_be_bytes(id))
}

fn parse_log_message(mut bytes: Bytes) -> Result<LogMessage, SourceError> {
    let short = |_| protocol_error("a message of the log is too short");
    match bytes.try_get_u8().map_err(short)? {
        WAL_DATA => {
            for _ in 0..3 {
                bytes.try_get_u64().map_err(short)?;
            }
            Ok(LogMessage::Data(bytes))
        }
        KEEPALIVE => {
            let end = Lsn(bytes.try_get_u64().map_err(short)?);
            bytes.try_get_i64().map_err(short)?;
            Ok(LogMessage::Keepalive { end, is_reply_requested: bytes.try_get_u8().map_err(short)? != 0 })
        }
        _ => Err(protocol_error("a message of the log is of an unknown kind")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A server that hangs leaves the buffers full: for minutes nothing was read, and nothing was logged.
    #[tokio::test(start_paused = true)]
    async fn a_report_that_the_server_does_not_receive_fails() {
        let (stream, _server) = tokio::io::duplex(64);
        let wait_max = Duration::from_secs(10);
        let connection =
            PostgresConnection { stream: Box::new(stream), received: BytesMut::new(), wait_max, process_id: None };
        let mut stream = ReplicationStream { connection, skipping: None };
        let mut report = async || stream.send_status(Lsn(1), Lsn(1), SystemTime::UNIX_EPOCH, false).await;
        assert_eq!(timeout(Duration::from_secs(60), report()).await.expect("in time"), Ok(()));
        let error = timeout(Duration::from_secs(60), report()).await.expect("in time").expect_err("it is not received");
        assert!(matches!(&error, SourceError::Unreachable { why } if why.contains("10s")), "{error}");
    }
}
