//! The requests of running servers, as their `watch fetchers mutations deletions` tells them.
//!
//! ```text
//! ts=1700000000.123000 gid=7 type=item_get key=user%3A42 status=found clsid=1 cfd=31 size=3
//! ts=1700000000.124000 gid=8 type=item_store key=user%3A42 status=stored cmd=set ttl=0 clsid=1 cfd=31 size=3
//! ts=1700000000.125000 gid=9 type=deleted key=user%3A42 cmd=delete clsid=1 size=3
//! ```
//!
//! A line has the number of the connection, and no address. With addresses, `connevents` and `stats conns` tell which
//! address has the connection. Events that are more than a server can send are dropped by it and counted here.

use crate::statistics::DaemonStats;
use anyhow::{Context as _, Result, bail, ensure};
use futures_util::future::{join_all, try_join_all};
use lookaside_client::{CommandConnection, Network, TcpNetwork};
use lookaside_protocol::{
    percent,
    text::{Limits, ReplyPart},
};
use lookaside_routing::Address;
use lookaside_workload::{CsvRequest, FamilyMeter};
use std::{cell::RefCell, collections::HashMap, time::Duration};
use tokio::{
    signal,
    time::{Instant, sleep},
};

/// A line has a key, percent-encoded, and some numbers.
const LIMITS: Limits = Limits { value_bytes_max: 0, line_bytes_max: 4_096 };
/// How long connecting and the reply to `watch` may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The most connections of a server whose address is known.
const CONNECTIONS_MAX: usize = 1_000_000;

/// What was seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Watched {
    /// The requests.
    pub requests: u64,
    /// Events that the servers have dropped.
    pub dropped: u64,
    /// The time from the first request that could be seen to the last.
    pub seconds: f64,
}

/// Passes the requests that the servers answer to the meter, for `time_max` or until SIGINT. A server that is lost
/// meanwhile is reported.
pub async fn watch_servers(
    addresses: &[String],
    with_clients: bool,
    time_max: Duration,
    meter: &mut FamilyMeter,
) -> Result<Watched> {
    let opened = addresses.iter().map(|address| WatchedServer::open(address, with_clients, time_max));
    let mut servers = try_join_all(opened).await?;
    let (begun, meter) = (Instant::now(), RefCell::new(meter));
    let reading = join_all(servers.iter_mut().map(|server| server.read(begun, &meter)));
    tokio::select! {
        _ = reading => eprintln!("lookaside advise: no server is left to watch"),
        () = sleep(time_max) => {}
        interrupted = signal::ctrl_c() => interrupted?,
    }
    let seconds = begun.elapsed().as_secs_f64();
    let dropped = join_all(servers.iter().map(WatchedServer::dropped)).await;
    let requests = servers.iter().map(|server| server.requests).sum();
    Ok(Watched { requests, dropped: dropped.into_iter().sum(), seconds })
}

/// A server, and what its watched events have shown.
struct WatchedServer {
    address: Address,
    connection: CommandConnection,
    /// Addresses by the number of the connection; `None` if they are not wanted.
    clients: Option<HashMap<u32, String>>,
    requests: u64,
    /// Lines that it has not sent since this client did not read them in time.
    skipped: u64,
    /// The lines that its threads had dropped before.
    dropped_before: u64,
}

impl WatchedServer {
    /// Watches; all that happens from now on is read by [`WatchedServer::read`].
    async fn open(address: &str, with_clients: bool, time_max: Duration) -> Result<WatchedServer> {
        let address = Address(address.into());
        let dropped_before = DaemonStats::fetch_group(&address, "").await?.number("log_worker_dropped");
        let place = || format!("watching {address}");
        let mut connection =
            CommandConnection::connect(&TcpNetwork, &address, LIMITS, TIMEOUT).await.with_context(place)?;
        let kinds = if with_clients { " connevents" } else { "" };
        connection
            .send(format!("watch fetchers mutations deletions{kinds}\r\n").as_bytes())
            .await
            .with_context(place)?;
        let reply = connection.read_line().await.with_context(place)?;
        ensure!(reply == b"OK", "watching {address}: {}", String::from_utf8_lossy(reply));
        connection.set_timeout(time_max + TIMEOUT);
        // The lines have those that are opened or closed meanwhile.
        let clients = match with_clients {
            true => Some(connected_clients(&TcpNetwork, &address).await.with_context(place)?),
            false => None,
        };
        Ok(WatchedServer { address, connection, clients, requests: 0, skipped: 0, dropped_before })
    }

    /// Reads until the connection is lost.
    async fn read(&mut self, begun: Instant, meter: &RefCell<&mut FamilyMeter>) {
        loop {
            let line = match self.connection.read_line().await {
                Ok(line) => line,
                Err(why) => {
                    eprintln!("lookaside advise: watching {}: {why}; the others are watched further", self.address);
                    return;
                }
            };
            match WatchLine::parse(line) {
                Some(WatchLine::Request { key, value_bytes, operation, connection }) => {
                    self.requests += 1;
                    let clients = self.clients.as_ref();
                    let client = clients.zip(connection).and_then(|(clients, number)| clients.get(&number));
                    let request = CsvRequest {
                        // The time of this host: those of several servers would go back and forth.
                        time_s: begun.elapsed().as_secs() as usize,
                        key: &key,
                        key_bytes: key.len() as u32,
                        value_bytes,
                        client: client.map(String::as_str),
                        operation: Some(operation),
                        ttl_s: 0,
                    };
                    meter.borrow_mut().record(&request);
                }
                Some(WatchLine::Opened { connection, client }) => {
                    if let Some(clients) = &mut self.clients
                        && clients.len() < CONNECTIONS_MAX
                    {
                        clients.insert(connection, client);
                    }
                }
                Some(WatchLine::Closed { connection }) => {
                    self.clients.as_mut().and_then(|clients| clients.remove(&connection));
                }
                Some(WatchLine::Skipped(lines)) => self.skipped += lines,
                None => {}
            }
        }
    }

    /// The events that were not received. Of a server that does not answer any more, only those that it has reported.
    async fn dropped(&self) -> u64 {
        let statistics = DaemonStats::fetch_group(&self.address, "").await.unwrap_or_default();
        self.skipped + statistics.number("log_worker_dropped").saturating_sub(self.dropped_before)
    }
}

/// The addresses of the clients of a server, by the number of the connection.
async fn connected_clients(network: &dyn Network, address: &Address) -> Result<HashMap<u32, String>> {
    let limits = Limits { value_bytes_max: 0, line_bytes_max: 4_096 };
    let mut connection = CommandConnection::connect(network, address, limits, TIMEOUT).await?;
    connection.send(b"stats conns\r\n").await?;
    let mut clients = HashMap::new();
    loop {
        match connection.read_part().await? {
            ReplyPart::Stat { name, value } if clients.len() < CONNECTIONS_MAX => {
                clients.extend(parse_client(&String::from_utf8_lossy(name), &String::from_utf8_lossy(value)));
            }
            ReplyPart::Stat { .. } => {}
            ReplyPart::End => return Ok(clients),
            other => bail!("unexpected reply to `stats conns`: {other:?}"),
        }
    }
}

/// The connection and the client of the statistic `31:addr tcp:10.0.0.1:4711`; `None` if it is another one.
fn parse_client(name: &str, value: &str) -> Option<(u32, String)> {
    let (connection, "addr") = name.split_once(':')? else { return None };
    let (transport, address) = value.split_once(':')?;
    let host = match transport {
        "unix" => "unix",
        _ => address.rsplit_once(':')?.0,
    };
    Some((connection.parse().ok()?, host.trim_matches(['[', ']']).to_owned()))
}

/// A line of a watcher.
#[derive(Debug, PartialEq, Eq)]
enum WatchLine {
    /// A request, with the number of its connection if the line has it.
    Request { key: String, value_bytes: u32, operation: &'static str, connection: Option<u32> },
    /// A client has connected.
    Opened { connection: u32, client: String },
    /// A connection was closed.
    Closed { connection: u32 },
    /// This many lines before it were not sent.
    Skipped(u64),
}

impl WatchLine {
    /// `None` for what is no request, such as a store that was refused.
    fn parse(line: &[u8]) -> Option<WatchLine> {
        let line = std::str::from_utf8(line).ok()?;
        if let Some(lines) = line.strip_prefix("skipped=") {
            return lines.trim_end().parse().ok().map(WatchLine::Skipped);
        }
        let field = |name: &str| line.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        let connection = || field("cfd")?.parse().ok();
        let operation = match field("type")? {
            "item_get" => "get",
            // The second is the status of a value that is stored as stale.
            "item_store" if matches!(field("status")?, "stored" | "stale_stored") => "set",
            "deleted" => "delete",
            "conn_new" => {
                return Some(WatchLine::Opened { connection: connection()?, client: field("rip")?.to_owned() });
            }
            "conn_close" => return Some(WatchLine::Closed { connection: connection()? }),
            _ => return None,
        };
        let encoded = field("key")?;
        // A key that is no text keeps its percent signs: they name the same bytes.
        let key = percent::decode(encoded.as_bytes()).and_then(|key| String::from_utf8(key).ok());
        Some(WatchLine::Request {
            key: key.unwrap_or_else(|| encoded.to_owned()),
            value_bytes: field("size")?.parse().ok()?,
            operation,
            connection: connection(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Option<WatchLine> {
        WatchLine::parse(line.as_bytes())
    }

    #[test]
    fn lines_of_all_kinds_are_read() {
        let start = "ts=1700000000.123000 gid=7";
        let request = |key: &str, value_bytes, operation, connection| {
            Some(WatchLine::Request { key: key.to_owned(), value_bytes, operation, connection })
        };
        for (line, parsed) in [
            ("type=item_get key=user%3A42 status=found clsid=1 cfd=31 size=3", request("user:42", 3, "get", Some(31))),
            ("type=item_get key=%FF%3A1 status=not_found clsid=0 cfd=-1 size=0", request("%FF%3A1", 0, "get", None)),
            ("type=item_store key=a status=stored cmd=set ttl=0 clsid=1 cfd=3 size=9", request("a", 9, "set", Some(3))),
            ("type=item_store key=a status=not_stored cmd=add ttl=0 clsid=1 cfd=3 size=9", None),
            ("type=deleted key=a%20type%3D cmd=md clsid=1 size=9", request("a type=", 9, "delete", None)),
            ("type=eviction key=a fetch=yes ttl=-1 la=3 clsid=1 size=9", None),
            (
                "type=conn_new rip=10.0.0.1 rport=4711 transport=tcp cfd=31",
                Some(WatchLine::Opened { connection: 31, client: "10.0.0.1".to_owned() }),
            ),
            (
                "type=conn_close rip=10.0.0.1 rport=4711 transport=tcp reason=normal cfd=31",
                Some(WatchLine::Closed { connection: 31 }),
            ),
            ("", None),
        ] {
            assert_eq!(parse(&format!("{start} {line}")), parsed, "{line}");
        }
        assert_eq!(parse("skipped=12"), Some(WatchLine::Skipped(12)));
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn clients_are_known_by_their_host() {
        for (name, value, client) in [
            ("31:addr", "tcp:10.0.0.1:4711", Some((31, "10.0.0.1"))),
            ("31:addr", "tcp6:[fd00::1]:4711", Some((31, "fd00::1"))),
            ("31:addr", "unix:/run/server.sock", Some((31, "unix"))),
            ("31:listen_addr", "tcp:0.0.0.0:11211", None),
            ("31:state", "conn_read", None),
        ] {
            assert_eq!(parse_client(name, value), client.map(|(number, host)| (number, host.to_owned())), "{value}");
        }
    }
}
