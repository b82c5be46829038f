//! Reads the `stats` of any of our daemons, in memcached's text protocol.

use anyhow::{Context, Result, bail, ensure};
use lookaside_client::{CommandConnection, TcpNetwork};
use lookaside_protocol::text::{Limits, ReplyPart};
use lookaside_routing::Address;
use std::{collections::BTreeMap, time::Duration};

/// How long connecting to a daemon and its reply may take.
const TIMEOUT: Duration = Duration::from_secs(1);
const REPLY_BYTES_MAX: usize = 1 << 20;
const LIMITS: Limits = Limits { value_bytes_max: REPLY_BYTES_MAX, line_bytes_max: REPLY_BYTES_MAX };

/// The address of a daemon on the command line: HOST:PORT, or a port of 127.0.0.1.
pub fn parse_address(text: &str) -> Result<String, String> {
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    match text.rsplit_once(':') {
        None if is_port(text) => Ok(format!("127.0.0.1:{text}")),
        Some((host, port)) if !host.is_empty() && is_port(port) => Ok(text.to_owned()),
        _ => Err("expected HOST:PORT, or a port of 127.0.0.1".into()),
    }
}

/// The names and values that a daemon reported.
#[derive(Clone, Debug, Default)]
pub struct DaemonStats(BTreeMap<String, String>);

impl DaemonStats {
    /// Reads the statistics of the daemon at `port` of 127.0.0.1.
    pub async fn fetch(port: u16) -> Result<DaemonStats> {
        DaemonStats::fetch_group(&Address(format!("127.0.0.1:{port}").into()), "").await
    }

    /// Reads a group of the statistics of the daemon at `address`, the general one if `group` is empty.
    pub async fn fetch_group(address: &Address, group: &str) -> Result<DaemonStats> {
        let command = format!("stats {group}");
        let fetch = async {
            let mut connection = CommandConnection::connect(&TcpNetwork, address, LIMITS, TIMEOUT).await?;
            connection.send(format!("{}\r\n", command.trim_end()).as_bytes()).await?;
            let (mut statistics, mut reply_bytes) = (DaemonStats::default(), 0);
            loop {
                match connection.read_part().await? {
                    ReplyPart::Stat { name, value } => {
                        ensure!(reply_bytes <= REPLY_BYTES_MAX, "the reply to `stats` is over {REPLY_BYTES_MAX} bytes");
                        reply_bytes += name.len() + value.len();
                        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
                        statistics.0.insert(text(name), text(value));
                    }
                    ReplyPart::End => return Ok(statistics),
                    other => bail!("unexpected reply to `stats`: {other:?}"),
                }
            }
        };
        fetch.await.with_context(|| format!("reading the statistics of {address}"))
    }

    /// All of them, by name.
    pub fn values(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    /// The clusters whose pipeline is not running, and why; empty if all are running.
    pub fn unhealthy(&self) -> String {
        let mut unhealthy = Vec::new();
        for (name, state) in self.0.iter().filter(|(name, state)| name.ends_with(":state") && *state != "running") {
            let cluster = name.trim_end_matches(":state").replace(':', " ");
            let why = self.0.get(&name.replace(":state", ":why")).filter(|why| !why.is_empty());
            unhealthy.push(match why {
                Some(why) => format!("{cluster} is {state}: {why}"),
                None => format!("{cluster} is {state}"),
            });
        }
        unhealthy.join("; ")
    }

    /// The value of a numeric statistic, or 0 if there is none.
    pub fn number(&self, name: &str) -> u64 {
        self.0.get(name).and_then(|value| value.parse().ok()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unhealthy_clusters_are_named_with_the_reason_if_there_is_one() {
        let entries = [
            ("cluster:a:state", "running"),
            ("cluster:b:state", "source_failing"),
            ("cluster:b:why", "no log"),
            ("cluster:c:state", "starting"),
            ("cluster:c:why", ""),
        ];
        let statistics = DaemonStats(entries.map(|(name, value)| (name.into(), value.into())).into());
        assert_eq!(statistics.unhealthy(), "cluster b is source_failing: no log; cluster c is starting");
    }
}
