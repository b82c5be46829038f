//! The command line of the audit.

use clap::value_parser;
use lookaside_invalidator::{options::Cluster, source::SourceUrl};
use std::path::PathBuf;

const EXAMPLES: &str = "Examples:
  Once, all users that the database has:
    lookaside audit --database mysql://reader:secret@db.example/shop --queries queries.toml \\
        --cluster front-1=10.0.1.1:5000 --once

  For ever, up to 100 comparisons per second of the keys that two servers have, and delete wrong values:
    lookaside audit --database mysql://reader:secret@db.example/shop --queries queries.toml \\
        --cluster front-1=10.0.1.1:5000 --dump 10.0.1.11:11211,10.0.1.12:11211 --rate 100 --repair

The file (TOML) says for each pattern of keys which row has the value, and how that is encoded:
  [[query]]
  key = \"user:{id}\"
  sql = \"SELECT name, email FROM users WHERE id = {id}\"
  value = \"json\"                     # an object of these columns; or \"text\", the only column (default)
  flags = \"ignored\"                  # for clients whose flags mean something else than those of this project's
  list = \"SELECT id FROM users\"      # the keys that are compared, unless --keys or --dump gives them

A value that is wrong is read again after --recheck-ms, and reported only if neither it nor the row has changed.

In a replica region whose clients use remote markers, give the replica as --database and the master as --master.

Without --once a failure is logged and counted, and the audit goes on with other clusters, and after up to half a minute
where it failed. One comparison follows the other, so a router that does not answer holds up all for 5 s.

Exit status: 0 nothing is wrong, or all of it was deleted; 1 a value is wrong, or the database, a file or a cluster cannot
be read (with --once, or at the start); 2 usage error.";

/// The options of `audit`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// The database: sqlite:///PATH; mysql://, mariadb:// or postgres:// with USER:PASSWORD@HOST:PORT/DATABASE. It is
    /// only read
    #[arg(long, value_name = "URL", env = "LOOKASIDE_DATABASE", hide_env_values = true)]
    pub(super) database: SourceUrl,
    /// The master, if --database is a replica: a value is wrong only if both have the same row. It is read for values
    /// that seem wrong
    #[arg(long, value_name = "URL", env = "LOOKASIDE_MASTER", hide_env_values = true)]
    pub(super) master: Option<SourceUrl>,
    /// Which query gives the value of a key
    #[arg(long, value_name = "FILE", alias = "rules")]
    pub(super) queries: PathBuf,
    /// A cluster and its routers. May be given several times
    #[arg(long = "cluster", value_name = "NAME=HOST:PORT[,HOST:PORT...]", required = true)]
    pub(super) clusters: Vec<Cluster>,
    /// Compare the keys in this file, one in a line
    #[arg(long, value_name = "FILE", conflicts_with = "dump")]
    pub(super) keys: Option<PathBuf>,
    /// Compare the keys that these servers have
    #[arg(long, value_name = "HOST:PORT[,HOST:PORT...]", value_delimiter = ',')]
    pub(super) dump: Vec<String>,
    /// The most keys of a round, 1 to 10,000,000: of more keys, other ones by chance in each round
    #[arg(long, value_name = "KEYS", default_value_t = 100_000, value_parser = value_parser!(u32).range(1..=10_000_000))]
    pub(super) keys_max: u32,
    /// Compare all keys once, and end. Otherwise rounds follow each other
    #[arg(long)]
    pub(super) once: bool,
    /// The most comparisons of a key with a cluster per second, of all clusters together; each costs two queries and a
    /// read
    #[arg(long, value_name = "COMPARISONS", default_value_t = 200, value_parser = value_parser!(u32).range(1..=100_000))]
    pub(super) rate: u32,
    /// Milliseconds after which a wrong value is read again; more than deletes take to arrive
    #[arg(long, value_name = "MS", default_value_t = 2_000, value_parser = value_parser!(u64).range(1..=3_600_000))]
    pub(super) recheck_ms: u64,
    /// Delete what is wrong, through the cluster's router
    #[arg(long)]
    pub(super) repair: bool,
    /// Print the cached and the expected value with each wrong one, up to 1,000 bytes of each
    #[arg(long)]
    pub(super) show_values: bool,
    /// Print one JSON object for each wrong value and each round
    #[arg(long)]
    pub(super) json: bool,
    /// Log in at the routers with the line user:password in this file
    #[arg(long, value_name = "FILE")]
    pub(super) router_login: Option<PathBuf>,
}
