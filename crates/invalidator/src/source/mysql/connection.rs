//! A connection to a MySQL or MariaDB server: queries with text results.
//!
//! Serves the start-up checks, the gate and the start of a dump. Results are small and few: each is read completely,
//! within limits. Not supported: prepared statements, compression of the protocol, loading of local files (refused).

use super::{
    cursor::{Cursor, Malformed},
    login,
    options::MysqlOptions,
    packet::PacketStream,
};
use crate::SourceError;
use bytes::BytesMut;
use lookaside_client::Network;
use lookaside_routing::Address;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// How long making a connection may take, without the login. The system repeats a lost first packet only after a
/// second, and then ever later; a new attempt is sooner.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The most rows of one result. `SHOW BINARY LOGS` has the longest one.
const ROWS_MAX: usize = 1_000_000;

const MORE_RESULTS: u16 = 0x8;

const COMMAND_QUIT: u8 = 0x01;
const COMMAND_QUERY: u8 = 0x03;

const HEAD_OK: u8 = 0x00;
const HEAD_LOCAL_FILE: u8 = 0xfb;
const HEAD_END: u8 = 0xfe;
const HEAD_ERROR: u8 = 0xff;

/// One row, each column as text; `None` is NULL.
pub type Row = Vec<Option<Vec<u8>>>;

/// A connection that is logged in. One that is dropped between two commands sends COM_QUIT: the server logs a warning
/// of each one that ends without that, and counts it (`Aborted_clients`).
pub struct MysqlConnection {
    /// `None` only once it has become a stream.
    packets: Option<PacketStream>,
    /// Whether the last command was answered completely, so that the server reads another one.
    is_idle: bool,
    /// The version string of the server.
    pub version: String,
    /// The connection id that the server assigned.
    pub id: u32,
    user: String,
    wait_max: Duration,
}

/// An error packet of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError {
    /// The server's error number.
    pub code: u16,
    /// The server's message.
    pub message: String,
}

impl MysqlConnection {
    /// Connects and logs in.
    pub async fn open(network: &dyn Network, options: &MysqlOptions) -> Result<Self, SourceError> {
        let address = options.address();
        let not_connected =
            |why: String| SourceError::NotConnected { why: format!("cannot connect to {address}{why}") };
        let started = Instant::now();
        let limit = options.connect_wait_max.min(CONNECT_TIMEOUT);
        let stream = match timeout(limit, network.connect(&Address(address.as_str().into()))).await {
            Ok(connected) => connected.map_err(|error| not_connected(format!(": {error}")))?,
            Err(_) => return Err(not_connected(format!(" within {} ms", limit.as_millis()))),
        };
        let log_in = MysqlConnection::log_in(PacketStream::new(Box::new(stream)), options);
        timeout_at(started + options.connect_wait_max, log_in).await.unwrap_or_else(|_| {
            let limit_ms = options.connect_wait_max.as_millis();
            Err(SourceError::Unreachable { why: format!("cannot log in to {address} within {limit_ms} ms") })
        })
    }

    async fn log_in(packets: PacketStream, options: &MysqlOptions) -> Result<Self, SourceError> {
        let (packets, server) = login::log_in(packets, options).await?;
        Ok(MysqlConnection {
            packets: Some(packets),
            is_idle: true,
            version: server.version,
            id: server.connection_id,
            user: options.user.clone(),
            wait_max: options.reply_wait_max,
        })
    }

    /// Runs `sql`, which may be several statements, and returns the rows of the last one that has any.
    pub async fn query(&mut self, sql: &str) -> Result<Vec<Row>, SourceError> {
        let wait_max = self.wait_max;
        self.query_within(sql, wait_max).await
    }

    /// As [`MysqlConnection::query`], with a time limit of its own.
    pub async fn query_within(&mut self, sql: &str, wait_max: Duration) -> Result<Vec<Row>, SourceError> {
        match self.try_query(sql, wait_max).await? {
            Ok(rows) => Ok(rows),
            Err(error) => Err(error.into_source_error(&self.user)),
        }
    }

    /// As [`MysqlConnection::query`], but returns an error of the server to the caller.
    pub async fn try_query(
        &mut self,
        sql: &str,
        wait_max: Duration,
    ) -> Result<Result<Vec<Row>, ServerError>, SourceError> {
        let mut payload = Vec::with_capacity(1 + sql.len());
        payload.push(COMMAND_QUERY);
        payload.extend_from_slice(sql.as_bytes());
        self.is_idle = false;
        self.packets().command(&payload).await?;
        let result = self.read_results(wait_max).await?;
        self.is_idle = true;
        Ok(result)
    }

    /// Reads the results of a query, of which the last one that has rows is returned.
    async fn read_results(&mut self, wait_max: Duration) -> Result<Result<Vec<Row>, ServerError>, SourceError> {
        let mut rows = Vec::new();
        loop {
            let head = self.packets().read(wait_max).await?;
            let status = match head.first() {
                Some(&HEAD_OK) => status_of_ok(&head)?,
                Some(&HEAD_ERROR) => return Ok(Err(error_of(&head)?)),
                Some(&HEAD_LOCAL_FILE) | None => return Err(Malformed("the reply to a query").into()),
                Some(_) => {
                    let columns = Cursor::new(&head, "a count of columns").length()?;
                    match self.read_rows(columns, wait_max).await? {
                        Ok((read, status)) => {
                            rows = read;
                            status
                        }
                        Err(error) => return Ok(Err(error)),
                    }
                }
            };
            if status & MORE_RESULTS == 0 {
                return Ok(Ok(rows));
            }
        }
    }

    /// Returns the first column of the first row; `None` if there is no row or it is NULL.
    pub async fn query_one(&mut self, sql: &str) -> Result<Option<String>, SourceError> {
        let rows = self.query(sql).await?;
        Ok(rows.into_iter().next().and_then(|row| text(&row, 0)))
    }

    async fn read_rows(
        &mut self,
        columns: usize,
        wait_max: Duration,
    ) -> Result<Result<(Vec<Row>, u16), ServerError>, SourceError> {
        while !is_eof_packet(&self.packets().read(wait_max).await?) {
            // The definitions of the columns are not needed.
        }
        let mut rows = Vec::new();
        loop {
            let packet = self.packets().read(wait_max).await?;
            if is_eof_packet(&packet) {
                let mut end = Cursor::new(&packet, "the end of a result");
                end.read_slice(3)?;
                return Ok(Ok((rows, end.u16()?)));
            }
            if packet.first() == Some(&HEAD_ERROR) {
                return Ok(Err(error_of(&packet)?));
            }
            if rows.len() == ROWS_MAX {
                return Err(SourceError::Unreachable { why: format!("a result of over {ROWS_MAX} rows") });
            }
            rows.push(read_row(&packet, columns)?);
        }
    }

    /// Sends a command and reads its reply of one packet.
    pub async fn command(&mut self, payload: &[u8]) -> Result<BytesMut, SourceError> {
        let wait_max = self.wait_max;
        self.is_idle = false;
        self.packets().command(payload).await?;
        let reply = self.packets().read(wait_max).await?;
        self.is_idle = true;
        Ok(reply)
    }

    /// Sends a command that turns the connection into a stream, and returns the stream.
    pub async fn into_stream(mut self, payload: &[u8]) -> Result<PacketStream, SourceError> {
        self.is_idle = false;
        self.packets().command(payload).await?;
        Ok(self.packets.take().expect("it is a stream only once"))
    }

    fn packets(&mut self) -> &mut PacketStream {
        self.packets.as_mut().expect("a connection that has become a stream is gone")
    }
}

impl Drop for MysqlConnection {
    fn drop(&mut self) {
        // After a part of a command it would be taken for the rest of that.
        if let Some(packets) = self.packets.as_mut().filter(|_| self.is_idle) {
            packets.try_command(&[COMMAND_QUIT]);
        }
    }
}

/// Column `at` of a row as text.
pub fn text(row: &Row, at: usize) -> Option<String> {
    row.get(at)?.as_ref().map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

/// Parses an error packet, which begins with 0xff.
pub fn error_of(packet: &[u8]) -> Result<ServerError, Malformed> {
    let mut cursor = Cursor::new(packet, "an error");
    cursor.read_slice(1)?;
    let code = cursor.u16()?;
    let message = match cursor.rest() {
        // `#` and five characters of SQL state; missing in errors before the login.
        [b'#', _, _, _, _, _, message @ ..] => message,
        message => message,
    };
    Ok(ServerError { code, message: String::from_utf8_lossy(message).into_owned() })
}

impl ServerError {
    /// Converts an error after the login.
    pub fn into_source_error(self, user: &str) -> SourceError {
        let ServerError { code, message } = self;
        match code {
            // A privilege is missing. MariaDB uses 1045 also for a replica's commands.
            1045 | 1044 | 1142 | 1143 | 1227 | 1370 => SourceError::Unusable {
                why: format!(
                    "user '{user}' lacks a privilege: {message} (error {code}); \
                     GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO '{user}' \
                     (MariaDB: REPLICATION SLAVE, BINLOG MONITOR, SLAVE MONITOR)"
                ),
            },
            // The server lets an expired account log in, if disconnect_on_expired_password is off.
            login::EXPIRED => login::expired_password(user),
            _ => SourceError::Unreachable { why: format!("error of the server: {message} (error {code})") },
        }
    }
}

impl From<Malformed> for SourceError {
    fn from(Malformed(reading): Malformed) -> Self {
        SourceError::Unreachable { why: format!("the server sent a malformed packet while reading {reading}") }
    }
}

fn is_eof_packet(packet: &[u8]) -> bool {
    packet.first() == Some(&HEAD_END) && packet.len() < 9
}

fn status_of_ok(packet: &[u8]) -> Result<u16, Malformed> {
    let mut cursor = Cursor::new(packet, "an OK");
    cursor.read_slice(1)?;
    cursor.length()?;
    cursor.length()?;
    cursor.u16()
}

fn read_row(packet: &[u8], columns: usize) -> Result<Row, Malformed> {
    let mut cursor = Cursor::new(packet, "a row");
    let mut row = Row::new();
    for _ in 0..columns {
        row.push(match cursor.rest().first() {
            Some(&HEAD_LOCAL_FILE) => {
                cursor.read_slice(1)?;
                None
            }
            _ => Some(cursor.bytes()?.to_vec()),
        });
    }
    Ok(row)
}
