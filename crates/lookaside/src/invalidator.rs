//! `lookaside invalidator`: commands about the invalidator. `setup` prepares a PostgreSQL database for it, `check-rules`
//! and `try` show what a rule file does, `replay` sends deletes again.

mod check_rules;
mod preview;
mod replay;
mod time;

use anyhow::{Result, anyhow};
use lookaside_client::TcpNetwork;
use lookaside_invalidator::{
    SourceError,
    rule_file::RuleFile,
    rules::Rules,
    source::postgres::{PostgresConnection, PostgresOptions, Purpose, check_rules, rules_setup_sql, setup_sql},
};
use std::{io::Write as _, path::PathBuf};

const EXAMPLES: &str = "Examples:
  lookaside invalidator setup --database postgres://postgres:secret@db.example/shop
  lookaside invalidator setup --print | psql shop
  lookaside invalidator setup --rules rules.toml --database postgres://postgres:secret@db.example/shop

An application then names keys in its transactions:
  SELECT lookaside_invalidate('user:42', 'list:users');
  INSERT INTO lookaside_outbox (key) VALUES ('user:42');

The invalidator itself needs an account with LOGIN and REPLICATION, and wal_level = logical on the server.";

/// Commands about the invalidator.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Invalidator {
    /// Create what the invalidator needs in a PostgreSQL database: outbox table, function, publication
    Setup(SetupOptions),
    /// Check a rule file against the tables and the log of a database
    CheckRules(check_rules::CheckRulesOptions),
    /// Show which keys a statement or a changed row would delete
    Try(preview::TryOptions),
    /// Read a part of a database's log again, and send its deletes to a cluster beside the running invalidator
    Replay(replay::ReplayOptions),
}

/// The options of `setup`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct SetupOptions {
    /// The database, with an account that may create tables and publications in it
    #[arg(
        long,
        value_name = "URL",
        env = "LOOKASIDE_DATABASE",
        hide_env_values = true,
        required_unless_present = "print"
    )]
    database: Option<String>,
    /// Print the SQL and change nothing
    #[arg(long)]
    print: bool,
    /// The outbox table, as the invalidator's --outbox-table
    #[arg(long, value_name = "TABLE", default_value = "lookaside_outbox")]
    outbox_table: String,
    /// The publication, as the invalidator's --publication
    #[arg(long, value_name = "NAME", default_value = "lookaside")]
    publication: String,
    /// A rule file, as the invalidator's --rules: its tables are added to the publication, and get REPLICA IDENTITY FULL
    /// if their keys need values of old rows that the log would lack
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
}

/// Runs the command.
pub fn run(command: &Invalidator) -> Result<()> {
    match command {
        Invalidator::Setup(options) => setup(options),
        Invalidator::CheckRules(options) => check_rules::run(options),
        Invalidator::Try(options) => preview::run(options),
        Invalidator::Replay(options) => replay::run(options),
    }
}

fn setup(options: &SetupOptions) -> Result<()> {
    let mut sql = setup_sql(&options.publication, &options.outbox_table);
    let rules = match &options.rules {
        Some(path) => RuleFile::read(path).map_err(|why| anyhow!(why))?.1,
        None => Rules::default(),
    };
    if !rules.is_empty() {
        sql.push_str(&rules_setup_sql(&options.publication, &rules));
    }
    let Some(url) = options.database.as_deref().filter(|_| !options.print) else {
        return Ok(std::io::stdout().write_all(sql.as_bytes())?);
    };
    let server = PostgresOptions::from_url(url).map_err(|error| anyhow!("--database: {error}"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let server = PostgresOptions { publication: options.publication.clone(), ..server };
    let (wal_level, problems) = runtime.block_on(async {
        let mut connection = PostgresConnection::open(&TcpNetwork, &server, Purpose::Queries).await?;
        connection.query(&sql).await?;
        let wal_level = connection.query_one("SHOW wal_level").await?;
        let problems = if rules.is_empty() { Vec::new() } else { check_rules(&TcpNetwork, &server, &rules).await? };
        Ok::<_, SourceError>((wal_level, problems))
    })?;
    println!("{} is set up: {} and {}", server.database, options.outbox_table, options.publication);
    if !rules.is_empty() {
        println!("the tables of {} rules are in {}", rules.iter().count(), options.publication);
        problems.iter().for_each(|problem| println!("{problem}"));
    }
    if wal_level.as_deref() != Some("logical") {
        println!("the server must still be restarted after ALTER SYSTEM SET wal_level = logical");
    }
    Ok(())
}
