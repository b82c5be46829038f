//! `lookaside audit`: compares cached values with the rows that they were made of, and deletes those that are wrong.

mod cache;
mod database;

use anyhow::{Context, Result, anyhow, bail};
use cache::{AuditedCluster, dump_keys};
use clap::value_parser;
use database::AuditedDatabase;
use lookaside_client::{LoginNetwork, Network, TcpNetwork};
use lookaside_invalidator::{options::Cluster, source::SourceUrl};
use lookaside_monitor::audit::{
    comparison::{Comparand, Outcome, classify, confirm},
    queries::{Queries, Query},
};
use lookaside_protocol::percent;
use serde_json::json;
use std::{collections::BTreeSet, fs, io::Write as _, path::PathBuf, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep, sleep_until};

const EXAMPLES: &str = "Examples:
  Once, all users that the database has:
    lookaside audit --database mysql://reader:secret@db.example/shop --queries queries.toml \\
        --cluster front-1=10.0.1.1:5000 --once

  For ever, up to 100 of the keys per second that two servers have, and delete wrong values:
    lookaside audit --database mysql://reader:secret@db.example/shop --queries queries.toml \\
        --cluster front-1=10.0.1.1:5000 --dump 10.0.1.11:11211,10.0.1.12:11211 --rate 100 --repair

The file (TOML) says for each pattern of keys which row has the value, and how that is encoded:
  [[query]]
  key = \"user:{id}\"
  sql = \"SELECT name, email FROM users WHERE id = {id}\"
  value = \"json\"                     # an object of these columns; or \"text\", the only column (default)
  list = \"SELECT id FROM users\"      # the keys that are compared, unless --keys or --dump gives them

A value that is wrong is read again after --recheck-ms, and reported only if neither it nor the row has changed.

Exit status: 0 nothing is wrong, or all of it was deleted; 1 a value is wrong (with --once), or the database, the file
or a cluster cannot be read; 2 usage error.";

/// The options of `audit`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// The database: sqlite:///PATH; mysql://, mariadb:// or postgres:// with USER:PASSWORD@HOST:PORT/DATABASE. It is only
    /// read
    #[arg(long, value_name = "URL", env = "LOOKASIDE_DATABASE", hide_env_values = true)]
    database: SourceUrl,
    /// Which query gives the value of a key
    #[arg(long, value_name = "FILE")]
    queries: PathBuf,
    /// A cluster and its routers. May be given several times
    #[arg(long = "cluster", value_name = "NAME=HOST:PORT[,HOST:PORT...]", required = true)]
    clusters: Vec<Cluster>,
    /// Compare the keys in this file, one in a line
    #[arg(long, value_name = "FILE", conflicts_with = "dump")]
    keys: Option<PathBuf>,
    /// Compare the keys that these servers have
    #[arg(long, value_name = "HOST:PORT[,HOST:PORT...]", value_delimiter = ',')]
    dump: Vec<String>,
    /// The most keys of a round, 1 to 10,000,000
    #[arg(long, value_name = "KEYS", default_value_t = 100_000, value_parser = value_parser!(u32).range(1..=10_000_000))]
    keys_max: u32,
    /// Compare all keys once, and end. Otherwise rounds follow each other
    #[arg(long)]
    once: bool,
    /// The most keys per second; each costs two queries and a read of each cluster
    #[arg(long, value_name = "KEYS", default_value_t = 200, value_parser = value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// Milliseconds after which a wrong value is read again; more than deletes take to arrive
    #[arg(long, value_name = "MS", default_value_t = 2_000, value_parser = value_parser!(u64).range(1..=3_600_000))]
    recheck_ms: u64,
    /// Delete what is wrong, through the cluster's router
    #[arg(long)]
    repair: bool,
    /// Print one JSON object for each wrong value and each round
    #[arg(long)]
    json: bool,
    /// Log in at the routers with the line user:password in this file
    #[arg(long, value_name = "FILE")]
    router_login: Option<PathBuf>,
}

/// Runs the command.
pub fn run(options: &Options) -> Result<()> {
    let text = fs::read_to_string(&options.queries).with_context(|| options.queries.display().to_string())?;
    let queries = Queries::parse(&text).map_err(|why| anyhow!("{}: {why}", options.queries.display()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(audit(options, &queries))
}

async fn audit(options: &Options, queries: &Queries) -> Result<()> {
    let network: Arc<dyn Network> = Arc::new(TcpNetwork);
    let routers: Arc<dyn Network> = match &options.router_login {
        Some(file) => {
            Arc::new(LoginNetwork::new(network.clone(), file, None).map_err(|why| anyhow!("--router-login: {why}"))?)
        }
        None => network.clone(),
    };
    let mut audit = Audit {
        options,
        database: AuditedDatabase::open(&options.database).await?,
        clusters: options.clusters.iter().map(|cluster| AuditedCluster::new(cluster, &routers)).collect(),
    };
    loop {
        let keys = audit.find_keys(queries, &*network).await?;
        let round = audit.compare_all(queries, &keys).await?;
        round.print(options)?;
        if options.once {
            let left = round.wrong() - round.repaired;
            return if left == 0 { Ok(()) } else { Err(anyhow!("{left} values are wrong; --repair deletes them")) };
        }
        if keys.is_empty() {
            sleep(Duration::from_secs(1)).await;
        }
    }
}

struct Audit<'a> {
    options: &'a Options,
    database: AuditedDatabase,
    clusters: Vec<AuditedCluster>,
}

/// What a round has found.
#[derive(Debug, Default)]
struct AuditRound {
    /// Keys that no query is for.
    without_query: u64,
    /// By outcome, in the order of [`Outcome::NAMES`].
    outcomes: [u64; Outcome::NAMES.len()],
    repaired: u64,
}

/// A value that may be wrong.
struct Suspect<'a> {
    query: &'a Query,
    values: Vec<String>,
    key: &'a [u8],
    cluster: usize,
    seen: Comparand,
    due_at: Instant,
}

impl Audit<'_> {
    async fn find_keys(&mut self, queries: &Queries, network: &dyn Network) -> Result<Vec<Vec<u8>>> {
        let keys_max = self.options.keys_max as usize;
        if let Some(path) = &self.options.keys {
            let text = fs::read(path).with_context(|| path.display().to_string())?;
            let lines = text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
            return Ok(lines.take(keys_max).map(<[u8]>::to_vec).collect());
        }
        let mut keys = BTreeSet::new();
        for server in &self.options.dump {
            keys.extend(dump_keys(network, server, keys_max).await?);
        }
        if self.options.dump.is_empty() {
            if queries.iter().all(|query| query.list.is_none()) {
                bail!("no query of the file has a list; give one, or --keys, or --dump");
            }
            for query in queries.iter() {
                let lists = self.database.list(query, keys_max).await?;
                keys.extend(lists.into_iter().map(|values| query.pattern.fill(&values)));
            }
        }
        Ok(keys.into_iter().take(keys_max).collect())
    }

    /// Compares the keys in all clusters. Wrong values are read again after --recheck-ms, while others are compared.
    async fn compare_all(&mut self, queries: &Queries, keys: &[Vec<u8>]) -> Result<AuditRound> {
        let (mut round, mut suspects) = (AuditRound::default(), std::collections::VecDeque::new());
        let pause = Duration::from_secs(1) / self.options.rate;
        let mut next_at = Instant::now();
        for key in keys {
            let Some((query, values)) = queries.find(key) else {
                round.without_query += 1;
                continue;
            };
            for cluster in 0..self.clusters.len() {
                let seen = self.observe(query, &values, key, cluster).await?;
                match classify(query.format, &seen) {
                    outcome if outcome.is_wrong() => {
                        let due_at = Instant::now() + Duration::from_millis(self.options.recheck_ms);
                        suspects.push_back(Suspect { query, values: values.clone(), key, cluster, seen, due_at });
                    }
                    outcome => round.outcomes[outcome as usize] += 1,
                }
            }
            while suspects.front().is_some_and(|suspect: &Suspect<'_>| suspect.due_at <= Instant::now()) {
                let suspect = suspects.pop_front().expect("it is there");
                self.recheck(suspect, &mut round).await?;
            }
            next_at = next_at.max(Instant::now()) + pause;
            sleep_until(next_at).await;
        }
        for suspect in suspects {
            sleep_until(suspect.due_at).await;
            self.recheck(suspect, &mut round).await?;
        }
        Ok(round)
    }

    async fn observe(&mut self, query: &Query, values: &[String], key: &[u8], cluster: usize) -> Result<Comparand> {
        let before = self.database.read_row(query, values).await?;
        let cached = self.clusters[cluster].read(key).await?;
        let after = match &cached {
            Some(_) => self.database.read_row(query, values).await?,
            // What is not cached is not compared.
            None => before.clone(),
        };
        Ok(Comparand { before, cached, after })
    }

    /// Reads a suspect again, and reports it if it is wrong still.
    async fn recheck(&mut self, suspect: Suspect<'_>, round: &mut AuditRound) -> Result<()> {
        let Suspect { query, values, key, cluster, seen, .. } = suspect;
        let again = self.observe(query, &values, key, cluster).await?;
        let outcome = confirm(query.format, &seen, &again);
        round.outcomes[outcome as usize] += 1;
        if outcome.is_wrong() {
            if self.options.repair {
                self.clusters[cluster].delete(key).await?;
                round.repaired += 1;
            }
            self.print_wrong(key, cluster, outcome)?;
        }
        Ok(())
    }

    fn print_wrong(&self, key: &[u8], cluster: usize, outcome: Outcome) -> Result<()> {
        let (key, cluster) = (percent::encode_except(key, is_shown).to_string(), &self.clusters[cluster].name);
        let found = Outcome::NAMES[outcome as usize];
        let mut out = std::io::stdout().lock();
        match self.options.json {
            true => writeln!(
                out,
                "{}",
                json!({ "key": key, "cluster": cluster, "found": found, "deleted": self.options.repair })
            )?,
            false => writeln!(out, "{found} {cluster} {key}{}", if self.options.repair { " (deleted)" } else { "" })?,
        }
        Ok(out.flush()?)
    }
}

fn is_shown(byte: u8) -> bool {
    byte.is_ascii_graphic() && byte != b'%'
}

impl AuditRound {
    fn wrong(&self) -> u64 {
        self.outcomes[Outcome::Stale as usize] + self.outcomes[Outcome::Orphaned as usize]
    }

    fn print(&self, options: &Options) -> Result<()> {
        let outcomes = Outcome::NAMES.into_iter().zip(self.outcomes);
        let others = [("without_query", self.without_query), ("repaired", self.repaired)];
        let all: Vec<(&str, u64)> = outcomes.chain(others).collect();
        let mut out = std::io::stdout().lock();
        match options.json {
            true => {
                let fields = all.into_iter().map(|(name, count)| (name.to_owned(), json!(count)));
                writeln!(out, "{}", json!({ "round": fields.collect::<serde_json::Map<_, _>>() }))?;
            }
            false => {
                let words: Vec<String> = all.into_iter().map(|(name, count)| format!("{count} {name}")).collect();
                writeln!(out, "{}", words.join(", "))?;
            }
        }
        Ok(out.flush()?)
    }
}
