//! The command line.

use crate::{
    Position, Start,
    key_options::KeyOptions,
    pipeline::{self, LINGER_MAX, OnPositionLost, Options as PipelineOptions, delivery::HEDGE_DELAY, pending::Limits},
    source::SourceUrl,
    spool::{KeepLimits, SPOOL_BYTES_MIN},
};
use clap::{Parser, value_parser};
use lookaside_telemetry::LogFormat;
use std::{path::PathBuf, time::Duration};

/// The most clusters. Each has its own connection to the database, but for PostgreSQL.
const CLUSTERS_MAX: usize = 256;
/// The longest name of a cluster, which is part of a file name.
const NAME_BYTES_MAX: usize = 64;

const EXAMPLES: &str = "Examples:
  Two clusters, the journal of a SQLite database:
    lookaside-invalidator --source sqlite:///srv/app.db \\
        --state-dir /var/lib/lookaside \\
        --cluster front-1=10.0.1.1:5000,10.0.1.2:5000 --cluster front-2=10.0.2.1:5000

  One cluster, the binlog of MariaDB or MySQL:
    lookaside-invalidator --source mysql://lookaside:secret@db.example:3306 \\
        --state-dir /var/lib/lookaside \\
        --cluster front-1=127.0.0.1:5000

  One cluster, the write-ahead log of PostgreSQL:
    lookaside invalidator setup --database postgres://postgres:secret@db.example/shop
    lookaside-invalidator --source postgres://lookaside:secret@db.example/shop \\
        --state-dir /var/lib/lookaside --cluster front-1=127.0.0.1:5000

  Show its statistics:
    lookaside stats 127.0.0.1:11250

Keys are named in comments (/* lookaside: user:42 */) or in the table lookaside_outbox
(MariaDB, MySQL), by SELECT lookaside_invalidate('user:42') or in the table lookaside_outbox
(PostgreSQL), or in the table lookaside_journal (SQLite).

Exit status: 0 after SIGINT or SIGTERM; 1 when it cannot start or all pipelines have stopped;
2 for an invalid command line.";

/// Reads a database's commit log, finds the keys that each change makes stale, and deletes them in every cluster.
#[derive(Clone, Debug, Parser)]
#[command(name = "lookaside-invalidator", version, after_help = EXAMPLES)]
pub struct Options {
    /// The database: sqlite:///PATH, mysql://USER:PASSWORD@HOST:PORT?ssl-mode=VERIFY_IDENTITY&ssl-ca=FILE,
    /// mariadb://..., or postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=verify-full&sslrootcert=FILE. It need not
    /// be reachable at the start. MariaDB, MySQL: settings by which deletes can be lost are refused;
    /// accept-unsafe=sync_binlog in the URL accepts one at your own risk
    #[arg(long, env = "LOOKASIDE_SOURCE", hide_env_values = true, value_name = "URL")]
    pub source: SourceUrl,
    /// A frontend cluster and its routers, which are used side by side; what one does not answer goes to another. May
    /// be given several times
    #[arg(long = "cluster", value_name = "NAME=HOST:PORT[,HOST:PORT...]", required = true)]
    pub clusters: Vec<Cluster>,
    /// Log in at the routers, if they require it (their -Y), with the line user:password in this file, which is read
    /// for each connection
    #[arg(long, value_name = "FILE")]
    pub router_login: Option<PathBuf>,
    /// Directory for the position of each cluster and, with PostgreSQL, the spool; created if missing. Without its
    /// files a restart does not know which deletes are pending
    #[arg(long, value_name = "PATH")]
    pub state_dir: PathBuf,
    /// Run beside a standby: several invalidators with the same options, of which one is active. They share the
    /// positions of the clusters in a table of this database: `source`, or mysql://USER:PASSWORD@HOST:PORT/SCHEMA,
    /// mariadb://... or postgres://... It must accept writes. `lookaside invalidator setup --shared-state` creates the
    /// table
    #[arg(long, value_name = "source|URL", env = "LOOKASIDE_SHARED_STATE", hide_env_values = true)]
    pub shared_state: Option<String>,
    /// The name of the row with the shared state: invalidators with the same name stand by for each other
    #[arg(long, value_name = "NAME", default_value = "lookaside", value_parser = row_name)]
    pub shared_state_name: String,
    /// Address that serves `stats` and `version` in memcached's text protocol
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:11250")]
    pub listen: String,
    /// Address for Prometheus metrics (GET /metrics): host:port, or a port of 127.0.0.1
    #[arg(long, value_name = "ADDR", value_parser = metrics_address)]
    pub metrics_address: Option<String>,
    /// Where a cluster without a saved position starts: earliest, now, or a position in the database's own notation.
    /// `lookaside invalidator replay` sends older deletes again
    #[arg(long, value_name = "earliest|now|POSITION", default_value = "now")]
    pub from: String,
    /// The reaction to a log that no longer reaches back to a cluster's position, so that deletes are lost: stop that
    /// cluster's pipeline; flush the whole cluster (its routers need --enable-flush-cmd) and continue from the present;
    /// or continue without a flush, for an operator who empties the cluster by hand
    #[arg(long, visible_alias = "on-gap", value_name = "ACTION", value_enum, default_value = "stop")]
    pub on_position_lost: OnPositionLost,

    /// Maximum keys in one batch, 1 to 100,000. Small batches cost packets; large ones delay the keys behind them
    #[arg(long, value_name = "KEYS", default_value_t = 1_000, value_parser = value_parser!(u32).range(1..=100_000))]
    pub batch_keys_max: u32,
    /// Maximum bytes of keys in one batch
    #[arg(long, value_name = "BYTES", default_value_t = 65_536, value_parser = value_parser!(u32).range(1..=16 << 20))]
    pub batch_bytes_max: u32,
    /// Maximum batches in flight to one cluster; keys that arrive meanwhile share the next batch. A batch without an
    /// answer for 10 ms no longer counts, so that a server that hangs delays no deletes of others; up to 1,024 such
    /// batches wait
    #[arg(long, value_name = "BATCHES", default_value_t = 4, value_parser = value_parser!(u32).range(1..=1_000))]
    pub batches_in_flight_max: u32,
    /// Maximum milliseconds that keys wait for others to share a batch with, 0 to 5. They wait only while an earlier
    /// batch is unanswered, so that deletes arrive faster than they leave. A longer time means fewer packets, and
    /// deletes that are later by as much; 0 switches it off
    #[arg(long, value_name = "MS", default_value_t = LINGER_MAX.as_millis() as u64, value_parser = value_parser!(u64).range(0..=5))]
    pub linger_ms_max: u64,
    /// Maximum pending keys of one cluster in memory (some 700 bytes each); beyond it they wait in the database's log.
    /// Keys whose deletes were refused do not count while a router answers; up to 1,000,000 of them, or 64 MiB, are
    /// held besides
    #[arg(long, value_name = "KEYS", default_value_t = 32_768, value_parser = value_parser!(u32).range(1..=90_000))]
    pub pending_keys_max: u32,
    /// Milliseconds from a change of the position to its save. A longer time means fewer disk writes, and more deletes
    /// that are sent again after a crash
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = value_parser!(u64).range(0..=60_000))]
    pub save_every_ms: u64,
    /// Milliseconds within which a router must reply to a batch. Must exceed the router's own server timeout, or a dead
    /// server makes the router TKO
    #[arg(long, value_name = "MS", default_value_t = 5_000, value_parser = value_parser!(u64).range(1..=600_000))]
    pub router_timeout_ms: u64,
    /// Milliseconds without an answer from a router after which another router of its cluster gets the batch too; the
    /// first answer counts. The slow router gets no batches while another one answers. If too short, a busy router's
    /// deletes are sent twice; if too long, a hung router's are late by as much
    #[arg(long, value_name = "MS", default_value_t = HEDGE_DELAY.as_millis() as u64, value_parser = value_parser!(u64).range(1..=60_000))]
    pub hedge_delay_ms: u64,
    /// How commits name keys.
    #[command(flatten)]
    pub keys: KeyOptions,
    /// PostgreSQL: the publication that has the outbox table. `lookaside invalidator setup` creates both
    #[arg(long, value_name = "NAME", default_value = "lookaside")]
    pub publication: String,
    /// PostgreSQL: the replication slot, created at the first start. Invalidators that share their state
    /// (--shared-state) share it; others of one database need one each
    #[arg(long, value_name = "NAME", default_value = "lookaside")]
    pub slot: String,
    /// PostgreSQL: maximum bytes of commits on disk, in --state-dir, that some cluster has not acknowledged. Beyond it
    /// the oldest are removed, and the clusters that need them have lost their position (--on-position-lost)
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 1 << 30,
        value_parser = value_parser!(u64).range(SPOOL_BYTES_MIN..=1 << 40)
    )]
    pub spool_bytes_max: u64,
    /// PostgreSQL: hours for which commits that every cluster has acknowledged are kept on disk, in --state-dir, for
    /// `lookaside invalidator replay --state-dir`, 0 to 8,760
    #[arg(long, value_name = "HOURS", default_value_t = 24, value_parser = value_parser!(u32).range(0..=8_760))]
    pub spool_keep_hours: u32,
    /// PostgreSQL: maximum bytes of these, besides those of --spool-bytes-max; 0 to keep nothing. All of them are
    /// removed when the disk is full
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 20, value_parser = value_parser!(u64).range(0..=1 << 40))]
    pub spool_keep_bytes: u64,
    /// Seconds of acknowledged history to keep in a SQLite journal, for replay
    #[arg(long, value_name = "SECONDS", default_value_t = 3_600)]
    pub journal_history_s: u32,
    /// Log more to stderr: -v debug, -vv trace
    #[arg(short, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Log format: text, or json with one object per event
    #[arg(long, value_name = "text|json", default_value = "text")]
    pub log_format: LogFormat,
}

/// `text` as host:port; the error says why it is neither that nor a port.
pub fn metrics_address(text: &str) -> Result<String, String> {
    lookaside_telemetry::check_address(text).map(|()| lookaside_telemetry::full_address(text))
}

fn row_name(text: &str) -> Result<String, String> {
    match text.len() {
        1..=NAME_BYTES_MAX if text.chars().all(|c| c.is_ascii_graphic()) => Ok(text.to_owned()),
        _ => Err(format!("expected 1 to {NAME_BYTES_MAX} characters of ASCII, without white space")),
    }
}

/// A cluster on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Its name, in statistics, logs and the name of its position file.
    pub name: String,
    /// `host:port` of each router.
    pub routers: Vec<String>,
}

impl std::str::FromStr for Cluster {
    type Err = String;

    fn from_str(text: &str) -> Result<Cluster, String> {
        let (name, routers) = text.split_once('=').ok_or("expected NAME=HOST:PORT,HOST:PORT")?;
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.starts_with('.') || !name.chars().all(is_allowed) {
            return Err(format!(
                "the name {name:?} is part of a file name: use up to {NAME_BYTES_MAX} letters, digits, - _ and ."
            ));
        }
        let routers: Vec<String> = routers.split(',').map(ToString::to_string).collect();
        match routers.iter().find(|router| !is_address(router)) {
            Some(bad) => Err(format!("the router {bad:?} is not HOST:PORT")),
            None => Ok(Cluster { name: name.to_string(), routers }),
        }
    }
}

fn is_address(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0))
}

impl Options {
    /// What is kept of a spool when no cluster needs it any more.
    pub fn keep_limits(&self) -> KeepLimits {
        let age_max = Duration::from_secs(u64::from(self.spool_keep_hours) * 3_600);
        KeepLimits { age_max, bytes_max: self.spool_keep_bytes }
    }

    /// Checks what no single option can check.
    pub fn check(&self) -> Result<(), String> {
        if self.clusters.len() > CLUSTERS_MAX {
            return Err(format!("{} clusters are over the limit of {CLUSTERS_MAX}", self.clusters.len()));
        }
        for (index, cluster) in self.clusters.iter().enumerate() {
            if self.clusters[..index].iter().any(|other| other.name == cluster.name) {
                return Err(format!("--cluster {} is given twice; give all its routers at once", cluster.name));
            }
        }
        Ok(())
    }

    /// The options of each pipeline.
    pub fn pipeline(&self) -> pipeline::Options {
        let defaults = PipelineOptions::default();
        PipelineOptions {
            limits: Limits {
                keys_max: self.pending_keys_max as usize,
                batch_keys_max: self.batch_keys_max as usize,
                batch_bytes_max: self.batch_bytes_max as usize,
                ..defaults.limits
            },
            batches_in_flight_max: self.batches_in_flight_max as usize,
            linger_max: Duration::from_millis(self.linger_ms_max),
            save_every: Duration::from_millis(self.save_every_ms),
            start: match self.from.as_str() {
                "earliest" => Start::Earliest,
                "now" => Start::Now,
                position => Start::At(Position(position.to_string())),
            },
            on_position_lost: self.on_position_lost,
            ..defaults
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(more: &[&str]) -> Result<Options, clap::Error> {
        let least = ["lookaside-invalidator", "--source", "sqlite:///a", "--state-dir", "/s"];
        Options::try_parse_from(least.iter().chain(more))
    }

    #[test]
    fn clusters_and_their_routers_are_parsed() {
        let options = parse(&["--cluster", "a=h:1,[::1]:2", "--cluster", "b=h:3"]).expect("valid options");
        assert_eq!(options.clusters[0], Cluster { name: "a".into(), routers: vec!["h:1".into(), "[::1]:2".into()] });
        assert_eq!(options.clusters[1].routers, ["h:3"]);
        assert_eq!(options.check(), Ok(()));
        assert_eq!(options.pipeline().start, Start::Now);
    }

    #[test]
    fn invalid_options_are_refused() {
        assert!(parse(&[]).is_err(), "no cluster");
        for bad in ["a", "=h:1", "a=", "a=h", "a=h:0", "a=h:99999", "../a=h:1", ".a=h:1", "a b=h:1", "a=h:1,"] {
            let error = parse(&["--cluster", bad]).expect_err(bad);
            assert_eq!(error.exit_code(), 2, "{bad}");
        }
        assert!(parse(&["--cluster", "a=h:1", "--batch-keys-max", "0"]).is_err());
        let twice = parse(&["--cluster", "a=h:1", "--cluster", "a=h:2"]).expect("each is valid");
        assert!(twice.check().expect_err("the same name").contains("twice"));
    }

    #[test]
    fn a_lost_position_and_a_gap_are_the_same() {
        for flag in ["--on-position-lost", "--on-gap"] {
            let options = parse(&["--cluster", "a=h:1", flag, "flush"]).expect("valid options");
            assert_eq!(options.pipeline().on_position_lost, OnPositionLost::Flush, "{flag}");
        }
        assert!(parse(&["--cluster", "a=h:1", "--on-gap", "flush", "--on-position-lost", "stop"]).is_err());
    }

    #[test]
    fn options_are_printed_without_the_password() {
        let options = ["lookaside-invalidator", "--source", "mysql://reader:s3cret@db", "--state-dir", "/s"];
        let options =
            Options::try_parse_from(options.into_iter().chain(["--cluster", "a=h:1"])).expect("valid options");
        let shown = format!("{options:?} {options:#?}");
        assert!(shown.contains("mysql://hidden") && !shown.contains("s3cret"), "{shown}");
    }

    #[test]
    fn every_start_is_parsed() {
        let start = |from| parse(&["--cluster", "a=h:1", "--from", from]).expect("valid options").pipeline().start;
        assert_eq!(start("earliest"), Start::Earliest);
        assert_eq!(start("0-1-270"), Start::At(Position("0-1-270".into())));
    }
}
