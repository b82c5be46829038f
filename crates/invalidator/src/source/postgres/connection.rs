//! A connection to a PostgreSQL server: login, queries with text results, and the stream of a replication slot.
//!
//! Serves the start-up checks, the gate and the log. Messages are those of `postgres-protocol`, which knows no sockets;
//! the stream comes from [`Network`]. Every message and every result is bounded. Login is by password: SCRAM-SHA-256,
//! or MD5 of an older server; a clear password is sent only over TLS. Not supported: GSSAPI.

use super::{
    options::{HEARTBEATS_MISSED_MAX, PostgresOptions},
    setup::quote_name,
    tls,
};
use crate::{SourceError, source::tls::Bytestream};
use bytes::{Buf, BytesMut};
use lookaside_client::Network;
use lookaside_routing::Address;
use postgres_protocol::{
    authentication::{
        md5_hash,
        sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256},
    },
    message::{
        backend::{AuthenticationSaslBody, ErrorResponseBody, Header, Message},
        frontend,
    },
};
use std::{fmt, io, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{Instant, timeout, timeout_at},
};

use fallible_iterator::FallibleIterator;

/// How long making a connection may take, without the login. The system repeats a lost first packet only after a
/// second, and then ever later; a new attempt is sooner.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// A longer message of the log is skipped: a message of an application, or a row, that cannot be a key.
pub(super) const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// How much is received at once.
const RECEIVE_BYTES: usize = 64 << 10;
/// The most rows of one result.
const ROWS_MAX: usize = 10_000;

/// The SQLSTATE of a server that starts, or stops.
const CANNOT_CONNECT_NOW: &str = "57P03";

/// The SQLSTATE of a missing right.
pub(super) const INSUFFICIENT_PRIVILEGE: &str = "42501";

/// The SQLSTATE of an object in use, such as a slot with a reader.
pub(super) const OBJECT_IN_USE: &str = "55006";

/// The SQLSTATE of a file that is missing, and the function of the server that reports it of a file of its log. The
/// message may be in any language.
const UNDEFINED_FILE: &str = "58P01";
const LOG_FILE_OPENER: &str = "WalSndSegmentOpen";

const COPY_BOTH_TAG: u8 = b'W';

/// One row, each column as text; `None` is NULL.
pub type Row = Vec<Option<String>>;

/// An error of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError {
    /// The SQLSTATE (PostgreSQL's manual, appendix A).
    pub code: String,
    /// The server's words.
    pub message: String,
    /// The function of the server that reports it.
    pub routine: String,
}

impl ServerError {
    /// Whether a file of the log is missing.
    pub(super) fn is_of_missing_log(&self) -> bool {
        self.code == UNDEFINED_FILE && self.routine == LOG_FILE_OPENER
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

impl From<ServerError> for SourceError {
    fn from(error: ServerError) -> SourceError {
        // Wrong data, a missing feature, no right to log in, no such database, a wrong statement or no privilege:
        // these stay until an operator changes something.
        let is_lasting = ["0A", "22", "28", "3D", "42"].iter().any(|class| error.code.starts_with(class));
        match error.code.as_str() {
            _ if is_lasting => SourceError::Unusable { why: error.to_string() },
            CANNOT_CONNECT_NOW => SourceError::NotConnected { why: error.to_string() },
            _ => SourceError::Unreachable { why: error.to_string() },
        }
    }
}

/// Why a query has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueryError {
    /// The server refused it.
    Server(ServerError),
    /// The connection failed.
    Source(SourceError),
}

impl From<QueryError> for SourceError {
    fn from(error: QueryError) -> SourceError {
        match error {
            QueryError::Server(error) => error.into(),
            QueryError::Source(error) => error,
        }
    }
}

impl From<SourceError> for QueryError {
    fn from(error: SourceError) -> QueryError {
        QueryError::Source(error)
    }
}

/// What a connection is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Queries.
    Queries,
    /// Commands for replication slots, and queries.
    Replication,
}

/// A connection that is logged in.
pub struct PostgresConnection {
    pub(super) stream: Box<dyn Bytestream>,
    pub(super) received: BytesMut,
    pub(super) wait_max: Duration,
    /// The process of the server that serves this session, as the server named it; `None` if it did not.
    pub process_id: Option<i32>,
}

impl PostgresConnection {
    /// Connects and logs in.
    pub async fn open(
        network: &dyn Network,
        options: &PostgresOptions,
        purpose: Purpose,
    ) -> Result<PostgresConnection, SourceError> {
        let address = Address(options.address().into());
        let not_connected =
            |why: String| SourceError::NotConnected { why: format!("cannot connect to {address}{why}") };
        let started = Instant::now();
        let limit = options.connect_wait_max.min(CONNECT_TIMEOUT);
        let stream = match timeout(limit, network.connect(&address)).await {
            Ok(connected) => connected.map_err(|error| not_connected(format!(": {error}")))?,
            Err(_) => return Err(not_connected(format!(" within {} ms", limit.as_millis()))),
        };
        let start = Self::start_session(Box::new(stream), options, purpose);
        timeout_at(started + options.connect_wait_max, start).await.unwrap_or_else(|_| {
            let limit_ms = options.connect_wait_max.as_millis();
            Err(SourceError::Unreachable { why: format!("cannot log in to {address} within {limit_ms} ms") })
        })
    }

    async fn start_session(
        mut stream: Box<dyn Bytestream>,
        options: &PostgresOptions,
        purpose: Purpose,
    ) -> Result<PostgresConnection, SourceError> {
        if let Some(options_of_tls) = &options.tls {
            stream = tls::secure(stream, &options.host, options_of_tls).await?;
        }
        let (received, wait_max) = (BytesMut::new(), options.reply_wait_max);
        let mut connection = PostgresConnection { stream, received, wait_max, process_id: None };
        let mut parameters = vec![
            ("user", options.user.as_str()),
            ("database", &options.database),
            ("application_name", options.application_name.as_str()),
            ("client_encoding", "UTF8"),
        ];
        // The server's default may be shorter than a wait here.
        let mut settings = "-c statement_timeout=0".to_owned();
        if purpose == Purpose::Replication {
            // The session of a reader that vanished holds the slot for this long. The default is a minute.
            let timeout_ms = (options.heartbeat * HEARTBEATS_MISSED_MAX).as_millis();
            settings.push_str(&format!(" -c wal_sender_timeout={timeout_ms}ms"));
            // One text for each value of a row, whatever the role and the database have set.
            settings.push_str(" -c DateStyle=ISO -c TimeZone=UTC -c bytea_output=hex -c extra_float_digits=1");
            parameters.push(("replication", "database"));
        }
        parameters.push(("options", &settings));
        let mut startup = BytesMut::new();
        frontend::startup_message(parameters, &mut startup).map_err(malformed)?;
        connection.send(&startup).await?;
        connection.log_in(options).await.map_err(|error| login_error(error, options))?;
        Ok(connection)
    }

    async fn log_in(&mut self, options: &PostgresOptions) -> Result<(), QueryError> {
        let password = options.password.as_bytes();
        let mut reply = BytesMut::new();
        loop {
            match self.read_message().await? {
                Message::AuthenticationOk => break,
                Message::AuthenticationSasl(body) => {
                    self.log_in_by_scram(&body, password).await?;
                    continue;
                }
                Message::AuthenticationMd5Password(body) => {
                    let hash = md5_hash(options.user.as_bytes(), password, body.salt());
                    frontend::password_message(hash.as_bytes(), &mut reply).map_err(malformed)?;
                }
                Message::AuthenticationCleartextPassword if options.tls.is_some() => {
                    frontend::password_message(password, &mut reply).map_err(malformed)?;
                }
                Message::AuthenticationCleartextPassword => {
                    return Err(
                        unusable("the server asks for the password unencrypted: use sslmode=verify-full").into()
                    );
                }
                Message::ErrorResponse(body) => return Err(QueryError::Server(server_error(&body)?)),
                Message::NoticeResponse(_) => continue,
                _ => {
                    return Err(unusable("the server asks for a login that is not supported; use scram-sha-256").into());
                }
            }
            self.send(&reply.split()).await?;
        }
        self.read_result().await.map(|_| ())
    }

    async fn log_in_by_scram(&mut self, body: &AuthenticationSaslBody, password: &[u8]) -> Result<(), SourceError> {
        if !body.mechanisms().any(|mechanism| Ok(mechanism == SCRAM_SHA_256)).map_err(malformed)? {
            return Err(unusable("the server offers no login by SCRAM-SHA-256"));
        }
        let mut scram = ScramSha256::new(password, ChannelBinding::unsupported());
        let mut reply = BytesMut::new();
        frontend::sasl_initial_response(SCRAM_SHA_256, scram.message(), &mut reply).map_err(malformed)?;
        self.send(&reply.split()).await?;
        loop {
            match self.read_message().await? {
                Message::AuthenticationSaslContinue(body) => {
                    scram.update(body.data()).map_err(malformed)?;
                    frontend::sasl_response(scram.message(), &mut reply).map_err(malformed)?;
                    self.send(&reply.split()).await?;
                }
                Message::AuthenticationSaslFinal(body) => {
                    return scram.finish(body.data()).map_err(|_| unusable("the server does not know the password"));
                }
                Message::ErrorResponse(body) => return Err(server_error(&body)?.into()),
                Message::NoticeResponse(_) => {}
                _ => return Err(protocol_error("an unexpected message during the login")),
            }
        }
    }

    /// Runs statements, and returns the rows of all of them. A reply may take as long as the options allow.
    pub async fn query(&mut self, sql: &str) -> Result<Vec<Row>, QueryError> {
        let deadline = Instant::now() + self.wait_max;
        match timeout_at(deadline, self.query_unlimited(sql)).await {
            Ok(result) => result,
            Err(_) => {
                let why = format!("no reply to a query within {:?}", self.wait_max);
                Err(SourceError::Unreachable { why }.into())
            }
        }
    }

    /// As [`PostgresConnection::query`], for as long as it takes.
    pub async fn query_unlimited(&mut self, sql: &str) -> Result<Vec<Row>, QueryError> {
        let mut message = BytesMut::new();
        frontend::query(sql, &mut message).map_err(malformed)?;
        self.send(&message).await?;
        self.read_result().await
    }

    /// The first column of the first row; `None` if there is no row, or if it is NULL.
    pub async fn query_one(&mut self, sql: &str) -> Result<Option<String>, QueryError> {
        Ok(self.query(sql).await?.into_iter().next().and_then(|row| row.into_iter().next().flatten()))
    }

    /// Reads until the server is ready for the next query.
    async fn read_result(&mut self) -> Result<Vec<Row>, QueryError> {
        let (mut rows, mut error) = (Vec::new(), None);
        loop {
            let message = match (self.read_message().await, error.take()) {
                // The server closes the connection after a fatal error.
                (Err(_), Some(fatal)) => return Err(QueryError::Server(fatal)),
                (message, earlier) => {
                    error = earlier;
                    message?
                }
            };
            match message {
                Message::DataRow(body) if rows.len() < ROWS_MAX => {
                    let buffer = body.buffer();
                    let text = |range: std::ops::Range<usize>| String::from_utf8_lossy(&buffer[range]).into_owned();
                    let columns = body.ranges().map(|range| Ok(range.map(text))).collect();
                    rows.push(columns.map_err(malformed)?);
                }
                Message::DataRow(_) => return Err(protocol_error("more rows than expected").into()),
                Message::ErrorResponse(body) => error = Some(server_error(&body)?),
                Message::BackendKeyData(body) => self.process_id = Some(body.process_id()),
                Message::ReadyForQuery(_) => {
                    return error.map_or(Ok(rows), |error| Err(QueryError::Server(error)));
                }
                _ => {}
            }
        }
    }

    /// Sends a `START_REPLICATION` command, and returns when its stream begins.
    pub(super) async fn start_replication(&mut self, command: &str) -> Result<(), QueryError> {
        let mut message = BytesMut::new();
        frontend::query(command, &mut message).map_err(malformed)?;
        self.send(&message).await?;
        let deadline = Instant::now() + self.wait_max;
        loop {
            if let Some(COPY_BOTH_TAG) = self.peek_tag()? {
                self.skip_message()?;
                return Ok(());
            }
            match self.parse_message()? {
                Some(Message::ErrorResponse(body)) => return Err(QueryError::Server(server_error(&body)?)),
                Some(_) => {}
                None => timeout_at(deadline, self.receive())
                    .await
                    .unwrap_or_else(|_| Err(protocol_error("the log does not start")))?,
            }
        }
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) -> Result<(), SourceError> {
        self.stream.write_all(bytes).await.map_err(broken)?;
        self.stream.flush().await.map_err(broken)
    }

    async fn read_message(&mut self) -> Result<Message, SourceError> {
        loop {
            match self.parse_message()? {
                Some(message) => return Ok(message),
                None => self.receive().await?,
            }
        }
    }

    /// The next message, if all of it has arrived.
    pub(super) fn parse_message(&mut self) -> Result<Option<Message>, SourceError> {
        if self.message_bytes()?.is_some_and(|bytes| bytes > MESSAGE_BYTES_MAX) {
            return Err(protocol_error("a message is too long"));
        }
        Message::parse(&mut self.received).map_err(malformed)
    }

    fn peek_tag(&self) -> Result<Option<u8>, SourceError> {
        let is_complete = self.message_bytes()?.is_some_and(|bytes| bytes <= self.received.len());
        Ok(self.received.first().copied().filter(|_| is_complete))
    }

    /// The length of the next message with its header, once that has arrived.
    pub(super) fn message_bytes(&self) -> Result<Option<usize>, SourceError> {
        let header = Header::parse(&self.received).map_err(malformed)?;
        Ok(header.map(|header| usize::try_from(header.len()).unwrap_or(usize::MAX).saturating_add(1)))
    }

    fn skip_message(&mut self) -> Result<(), SourceError> {
        let bytes = self.message_bytes()?.unwrap_or_default();
        self.received.advance(bytes);
        Ok(())
    }

    pub(super) async fn receive(&mut self) -> Result<(), SourceError> {
        // A full buffer would grow by 64 bytes only: one message of the log, and one call of the gate for each commit.
        self.received.reserve(RECEIVE_BYTES);
        match self.stream.read_buf(&mut self.received).await.map_err(broken)? {
            0 => Err(protocol_error("the server closed the connection")),
            _ => Ok(()),
        }
    }
}

pub(super) fn server_error(body: &ErrorResponseBody) -> Result<ServerError, SourceError> {
    let mut error = ServerError { code: String::new(), message: String::new(), routine: String::new() };
    let mut fields = body.fields();
    while let Some(field) = fields.next().map_err(malformed)? {
        let text = String::from_utf8_lossy(field.value_bytes()).into_owned();
        match field.type_() {
            b'C' => error.code = text,
            b'M' => error.message = text,
            b'R' => error.routine = text,
            _ => {}
        }
    }
    Ok(error)
}

/// Converts an error during the login, with the statement that mends a missing right.
fn login_error(error: QueryError, options: &PostgresOptions) -> SourceError {
    let error = match error {
        QueryError::Server(error) if error.code == INSUFFICIENT_PRIVILEGE => error,
        error => return error.into(),
    };
    let account = quote_name(&options.user);
    let advice = match error.message.contains("for database") {
        true => format!("GRANT CONNECT ON DATABASE {} TO {account}", quote_name(&options.database)),
        false => format!("ALTER ROLE {account} REPLICATION"),
    };
    SourceError::Unusable { why: format!("{error}; {advice}") }
}

fn broken(error: io::Error) -> SourceError {
    SourceError::Unreachable { why: format!("the connection broke: {error}") }
}

pub(super) fn malformed(error: io::Error) -> SourceError {
    protocol_error(&error.to_string())
}

pub(super) fn protocol_error(what: &str) -> SourceError {
    SourceError::Unreachable { why: format!("PostgreSQL's protocol: {what}") }
}

fn unusable(why: &str) -> SourceError {
    SourceError::Unusable { why: why.into() }
}
