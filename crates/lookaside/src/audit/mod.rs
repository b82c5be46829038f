//! `lookaside audit`: compares cached values with the rows that they were made of, and deletes those that are wrong. It
//! finds what the monitor's times do not tell: a value that was read before a commit and stored after it.
//!
//! | module | |
//! |---|---|
//! | [`options`] | the command line |
//! | [`queries`] | the file that says which query gives the value of a key, and how the value is encoded |
//! | [`key_pattern`] | keys with placeholders |
//! | [`comparison`] | whether a value is stale, from what was read of cache and database; without I/O |
//! | [`database`] | reads rows |
//! | [`cache`] | reads and deletes values |
//! | [`cached_value`] | decodes them |
//! | [`key_listing`] | lists the keys that servers have |
//! | [`shown_value`] | values in the report |
//! | [`row_comparison`] | runs a round, with the [`key_sample`] that it compares and the [`suspects`] that it reads again |
//! | [`round`] | what a round has found |
//! | [`backoff`] | when something that has failed is tried again |

mod backoff;
mod cache;
mod cached_value;
mod comparison;
mod database;
mod key_listing;
mod key_pattern;
mod key_sample;
mod options;
mod queries;
mod round;
mod row_comparison;
mod shown_value;
mod suspects;

pub use options::Options;

use anyhow::{Context as _, Result, anyhow, bail};
use lookaside_client::{LoginNetwork, Network, TcpNetwork};
use queries::Queries;
use round::AuditRound;
use row_comparison::RowComparison;
use std::{fs, sync::Arc, time::Duration};
use tokio::time::sleep;

/// The time between two rounds without a key.
const EMPTY_ROUND_DELAY: Duration = Duration::from_secs(1);

/// Runs the command.
pub fn run(options: &Options) -> Result<()> {
    let text = fs::read_to_string(&options.queries).with_context(|| options.queries.display().to_string())?;
    let queries = Queries::parse(&text).map_err(|why| anyhow!("{}: {why}", options.queries.display()))?;
    if options.keys.is_none() && options.dump.is_empty() && queries.iter().all(|query| query.list.is_none()) {
        bail!("no query of the file has a list; give one, or --keys, or --dump");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(audit(options, &queries))
}

async fn audit(options: &Options, queries: &Queries) -> Result<()> {
    let network: Arc<dyn Network> = Arc::new(TcpNetwork);
    let login = options.router_login.as_deref();
    let routers = LoginNetwork::for_routers(&network, login, None).map_err(|why| anyhow!(why))?;
    let mut comparison = RowComparison::open(options, &routers).await?;
    let ended = run_rounds(options, queries, &mut comparison, &*network).await;
    comparison.close().await;
    ended
}

async fn run_rounds(
    options: &Options,
    queries: &Queries,
    comparison: &mut RowComparison<'_>,
    network: &dyn Network,
) -> Result<()> {
    loop {
        let mut round = AuditRound::default();
        let keys = comparison.find_keys(queries, network, fastrand::u64(..), &mut round).await?;
        comparison.compare_all(queries, &keys, &mut round).await?;
        round.print(options.json)?;
        if options.once {
            let wrong = round.wrong();
            return if wrong == 0 { Ok(()) } else { Err(anyhow!("{wrong} values are wrong; --repair deletes them")) };
        }
        if keys.is_empty() {
            sleep(EMPTY_ROUND_DELAY).await;
        }
    }
}
