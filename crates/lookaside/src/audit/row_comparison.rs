//! A round: compares keys in all clusters with their rows, and reports what is wrong.
//!
//! ```text
//! keys -> row, value, row -> fresh, missing, ...                               -> counted
//!                         -> seems wrong -> suspects -> row, value, row again  -> reported, deleted with --repair
//! ```
//!
//! With `--once` the first failure ends the audit. Otherwise the comparison is counted as failed: a cluster or a
//! database that does not answer does not keep the audit from the others.

use super::{
    cache::AuditedCluster,
    comparison::{Comparand, Outcome, classify, confirm, confirm_by_master},
    database::AuditedDatabase,
    key_listing::KeyListing,
    key_pattern::printable_key,
    key_sample::KeySample,
    options::Options,
    queries::{Queries, Query},
    round::AuditRound,
    shown_value::{quote, show_cached, show_expected},
    suspects::{Suspect, Suspects},
};
use anyhow::{Context as _, Error, Result, anyhow};
use lookaside_client::Network;
use lookaside_protocol::check_key;
use lookaside_telemetry::LogThrottle;
use serde_json::json;
use std::{fs, io::Write as _, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep_until};

/// The least time between two messages about failures.
const LOG_INTERVAL_MIN: Duration = Duration::from_secs(5);

/// The database and the clusters that are compared.
pub struct RowComparison<'a> {
    options: &'a Options,
    database: AuditedDatabase,
    /// `None` unless the database is a replica.
    master: Option<AuditedDatabase>,
    clusters: Vec<AuditedCluster>,
    /// The servers of `--dump`.
    listing: KeyListing,
    /// When the next comparison may be made.
    next_at: Instant,
    throttle: LogThrottle<Instant>,
}

impl<'a> RowComparison<'a> {
    /// Connects to the databases.
    pub async fn open(options: &'a Options, routers: &Arc<dyn Network>) -> Result<RowComparison<'a>> {
        let master = match &options.master {
            Some(url) => Some(AuditedDatabase::open(url).await.context("--master")?),
            None => None,
        };
        Ok(RowComparison {
            options,
            database: AuditedDatabase::open(&options.database).await.context("--database")?,
            master,
            clusters: options.clusters.iter().map(|cluster| AuditedCluster::new(cluster, routers)).collect(),
            listing: KeyListing::new(&options.dump),
            next_at: Instant::now(),
            throttle: LogThrottle::new(1, LOG_INTERVAL_MIN),
        })
    }

    /// Ends the connections to the databases.
    pub async fn close(self) {
        self.database.close().await;
        if let Some(master) = self.master {
            master.close().await;
        }
    }

    /// The keys of a round: all, or `--keys-max` of them by chance, as `seed` decides. A list or a server that cannot
    /// be read is counted as failed, and does not keep the round from the keys of the others.
    pub async fn find_keys(
        &mut self,
        queries: &Queries,
        network: &dyn Network,
        seed: u64,
        round: &mut AuditRound,
    ) -> Result<Vec<Vec<u8>>> {
        let keys_max = self.options.keys_max as usize;
        let mut sample = KeySample::new(keys_max, seed);
        if let Some(path) = &self.options.keys {
            match fs::read(path).with_context(|| format!("reading the keys in {}", path.display())) {
                Ok(text) => {
                    let lines = text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
                    sample.extend(lines.filter(|line| !line.is_empty()).map(<[u8]>::to_vec));
                }
                Err(why) => self.count_failure(why, round)?,
            }
        } else if self.options.dump.is_empty() {
            for query in queries.iter() {
                match self.database.list(query, keys_max).await {
                    Ok(lists) => sample.extend(lists.into_iter().map(|values| query.pattern.fill(&values))),
                    Err(why) => self.count_failure(why.context(format!("listing {}", query.pattern)), round)?,
                }
            }
        } else {
            for why in self.listing.add_keys(network, &mut sample).await {
                self.count_failure(why, round)?;
            }
        }
        Ok(sample.into_keys())
    }

    /// Compares the keys in all clusters. Wrong values are read again after --recheck-ms, while others are compared.
    pub async fn compare_all(&mut self, queries: &Queries, keys: &[Vec<u8>], round: &mut AuditRound) -> Result<()> {
        let mut suspects = Suspects::default();
        for key in keys {
            // It would end the command that names it.
            if check_key(key).is_err() {
                round.invalid_keys += 1;
                continue;
            }
            let Some((query, values)) = queries.find(key) else {
                round.without_query += 1;
                continue;
            };
            for cluster in 0..self.clusters.len() {
                while let Some(suspect) = suspects.pop_due(Instant::now()) {
                    self.recheck(suspect, round).await?;
                }
                match self.observe(query, &values, key, cluster).await.with_context(|| comparing(key)) {
                    Ok(seen) => match classify(query.format, &seen) {
                        outcome if outcome.is_wrong() => {
                            let due_at = Instant::now() + Duration::from_millis(self.options.recheck_ms);
                            suspects.push(Suspect { query, values: values.clone(), key, cluster, seen, due_at });
                        }
                        outcome => round.add(outcome),
                    },
                    Err(why) => self.count_failure(why, round)?,
                }
            }
        }
        while let Some(suspect) = suspects.pop() {
            self.recheck(suspect, round).await?;
        }
        Ok(())
    }

    async fn observe(&mut self, query: &Query, values: &[String], key: &[u8], cluster: usize) -> Result<Comparand> {
        sleep_until(self.next_at).await;
        self.next_at = Instant::now() + Duration::from_secs(1) / self.options.rate;
        if self.clusters[cluster].is_backing_off() {
            return Err(anyhow!("cluster {}: its routers did not answer; waiting", self.clusters[cluster].name));
        }
        let before = self.database.read_row(query, values).await?;
        let cached = self.clusters[cluster].read(key, query.flags).await?;
        let after = match &cached {
            Some(_) => self.database.read_row(query, values).await?,
            // What is not cached is not compared.
            None => before.clone(),
        };
        Ok(Comparand { before, cached, after })
    }

    /// Reads a suspect again when it is due, and reports it if it is wrong still.
    async fn recheck(&mut self, suspect: Suspect<'_>, round: &mut AuditRound) -> Result<()> {
        sleep_until(suspect.due_at).await;
        match self.confirm(&suspect).await.with_context(|| comparing(suspect.key)) {
            Ok(outcome) => {
                round.add(outcome);
                if outcome.is_wrong() { self.report(&suspect, outcome, round).await } else { Ok(()) }
            }
            Err(why) => self.count_failure(why, round),
        }
    }

    async fn confirm(&mut self, suspect: &Suspect<'_>) -> Result<Outcome> {
        let Suspect { query, values, key, cluster, seen, .. } = suspect;
        let again = self.observe(query, values, key, *cluster).await?;
        let outcome = confirm(query.format, seen, &again);
        match &mut self.master {
            Some(master) if outcome.is_wrong() => {
                let row = master.read_row(query, values).await.context("--master")?;
                Ok(confirm_by_master(outcome, &again, &row))
            }
            _ => Ok(outcome),
        }
    }

    /// Prints a wrong value, and deletes it with --repair.
    async fn report(&mut self, suspect: &Suspect<'_>, outcome: Outcome, round: &mut AuditRound) -> Result<()> {
        let deleted = match self.options.repair {
            true => Some(self.clusters[suspect.cluster].delete(suspect.key).await),
            false => None,
        };
        let is_deleted = matches!(deleted, Some(Ok(())));
        round.repaired += u64::from(is_deleted);
        // Also if the delete has failed, which ends the audit with --once.
        self.print_wrong(suspect, outcome, is_deleted)?;
        match deleted {
            Some(Err(why)) => {
                self.count_failure(why.context(format!("deleting {}", printable_key(suspect.key))), round)
            }
            _ => Ok(()),
        }
    }

    fn print_wrong(&self, suspect: &Suspect<'_>, outcome: Outcome, is_deleted: bool) -> Result<()> {
        let key = printable_key(suspect.key);
        let (cluster, found) = (&self.clusters[suspect.cluster].name, Outcome::NAMES[outcome as usize]);
        let values = self.options.show_values.then(|| {
            let cached = suspect.seen.cached.as_ref().and_then(|item| show_cached(&item.value));
            (cached, show_expected(suspect.query.format, suspect.seen.after.as_deref()))
        });
        let mut out = std::io::stdout().lock();
        if self.options.json {
            let mut wrong = json!({ "key": key, "cluster": cluster, "found": found, "deleted": is_deleted });
            if let Some((cached, expected)) = values {
                wrong["cached"] = cached.into();
                wrong["expected"] = expected.into();
            }
            writeln!(out, "{wrong}")?;
        } else {
            write!(out, "{found} {cluster} {key}{}", if is_deleted { " (deleted)" } else { "" })?;
            if let Some((cached, expected)) = values {
                write!(out, " cached={} expected={}", quote(cached.as_deref()), quote(expected.as_deref()))?;
            }
            writeln!(out)?;
        }
        Ok(out.flush()?)
    }

    /// Counts and logs a failed comparison, listing or delete, which `why` names; with --once it is the result.
    fn count_failure(&mut self, why: Error, round: &mut AuditRound) -> Result<()> {
        if self.options.once {
            return Err(why);
        }
        round.failed += 1;
        if let Some(suppressed) = self.throttle.allow(Instant::now()) {
            eprintln!("lookaside audit: {why:#}; the audit goes on ({suppressed} more failures before it)");
        }
        Ok(())
    }
}

/// The context of a comparison's error.
fn comparing(key: &[u8]) -> String {
    format!("comparing {}", printable_key(key))
}
