//! `lookaside invalidator setup`: creates what the invalidator needs in a database, or prints the SQL.

use super::rule_report::{count_rules, describe_problem};
use anyhow::{Result, anyhow, bail};
use lookaside_client::TcpNetwork;
use lookaside_invalidator::{
    SourceError,
    election::{StateLocation, TABLE},
    rule_file::RuleFile,
    rules::{ProblemKind, Rules},
    source::{
        SourceUrl,
        mysql::MysqlConnection,
        postgres::{
            PostgresConnection, PostgresOptions, Purpose, check_rules, has_failover_slots, rules_setup_sql, setup_sql,
        },
    },
};
use std::{
    io::Write as _,
    path::{Path, PathBuf},
};

const EXAMPLES: &str = "Examples:
  lookaside invalidator setup --database postgres://postgres:secret@db.example/shop
  lookaside invalidator setup --print | psql shop
  lookaside invalidator setup --rules rules.toml --database postgres://postgres:secret@db.example/shop

An application then names keys in its transactions:
  SELECT lookaside_invalidate('user:42', 'list:users');
  INSERT INTO lookaside_outbox (key) VALUES ('user:42');

With --rules the rules are compared with the tables first; if one does not fit, nothing is changed.

The invalidator itself needs an account with LOGIN and REPLICATION, and wal_level = logical on the server. It creates
its replication slot at its first start; setup does not, as a slot without saved positions is one whose reader has lost
them.

The table for an active and a standby invalidator (--shared-state of the daemon), and the rights on it:
  lookaside invalidator setup --shared-state --account lookaside --database mariadb://root:secret@db.example/shop
  lookaside invalidator setup --shared-state --account lookaside --database postgres://postgres:secret@db.example/shop";

/// What standbys of version 17 and later need so that a failover loses no position.
const STANDBY_SETTINGS: &str = "If the server has a physical standby that may be promoted, the standby needs \
    sync_replication_slots = on, hot_standby_feedback = on, a slot of its own (primary_slot_name) and a dbname in \
    primary_conninfo; this server needs that slot in synchronized_standby_slots";

/// The options of `setup`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct SetupOptions {
    /// The database, with an account that may create tables and publications in it: postgres://..., or with
    /// --shared-state mysql:// or mariadb:// and a schema
    #[arg(
        long,
        value_name = "URL",
        env = "LOOKASIDE_DATABASE",
        hide_env_values = true,
        required_unless_present = "print"
    )]
    database: Option<SourceUrl>,
    /// Print the SQL and change nothing
    #[arg(long)]
    print: bool,
    /// The outbox table, as the invalidator's --outbox-table
    #[arg(long, value_name = "TABLE", default_value = "lookaside_outbox")]
    outbox_table: String,
    /// The publication, as the invalidator's --publication
    #[arg(long, value_name = "NAME", default_value = "lookaside")]
    publication: String,
    /// A rule file, as the invalidator's --rules: its tables are added to the publication, and get REPLICA IDENTITY
    /// FULL if their keys need values of old rows that the log would lack
    #[arg(long, value_name = "FILE", conflicts_with = "shared_state")]
    rules: Option<PathBuf>,
    /// Create the table that an active and a standby invalidator share, and nothing else
    #[arg(long, requires_all = ["account", "database"])]
    shared_state: bool,
    /// The account of the invalidators, which is given the rights on the table (MariaDB, MySQL: of any host)
    #[arg(long, value_name = "USER", requires = "shared_state")]
    account: Option<String>,
}

/// Runs the command.
pub fn run(options: &SetupOptions) -> Result<()> {
    let database = options.database.as_deref().unwrap_or_default();
    if options.shared_state {
        return set_up_shared_state(options, database);
    }
    let rules = match &options.rules {
        Some(path) => RuleFile::read(path).map_err(|why| anyhow!(why))?.1,
        None => Rules::default(),
    };
    let mut sql = setup_sql(&options.publication, &options.outbox_table);
    if !rules.is_empty() {
        sql.push_str(&rules_setup_sql(&options.publication, &rules));
    }
    if options.print {
        return print(&sql);
    }
    if database.starts_with("mysql://") || database.starts_with("mariadb://") {
        bail!("MariaDB and MySQL need no preparation but that for a standby: see --shared-state");
    }
    let server = PostgresOptions::from_url(database).map_err(|error| anyhow!("--database: {error}"))?;
    let server = PostgresOptions { publication: options.publication.clone(), ..server };
    let file = options.rules.as_deref().unwrap_or(Path::new(""));
    let check = |is_fatal: fn(ProblemKind) -> bool| -> Result<usize> {
        if rules.is_empty() {
            return Ok(0);
        }
        let problems = block_on(check_rules(&TcpNetwork, &server, &rules))?;
        let fatal = problems.iter().filter(|problem| is_fatal(problem.kind));
        Ok(fatal.inspect(|problem| eprintln!("{}", describe_problem(file, &rules, problem))).count())
    };
    // What this mends is no problem yet.
    if check(|kind| matches!(kind, ProblemKind::TableMissing | ProblemKind::RuleRefused))? > 0 {
        bail!("the rules do not fit the database, and nothing was changed: correct {}", file.display());
    }
    let (wal_level, has_failover_slots) = block_on(async {
        let mut connection = PostgresConnection::open(&TcpNetwork, &server, Purpose::Queries).await?;
        connection.query(&sql).await?;
        let wal_level = connection.query_one("SHOW wal_level").await?;
        Ok((wal_level, has_failover_slots(&mut connection).await?))
    })?;
    println!("{} is set up: {} and {}", server.database, options.outbox_table, options.publication);
    if !rules.is_empty() {
        println!("the tables of {} are in {}", count_rules(&rules), options.publication);
    }
    if let Some(wal_level) = wal_level.filter(|wal_level| wal_level != "logical") {
        println!(
            "wal_level is {wal_level}, so nothing can be read yet: ALTER SYSTEM SET wal_level = logical, and restart the \
             server"
        );
    }
    if has_failover_slots {
        println!("{STANDBY_SETTINGS}");
    }
    let remaining = check(|kind| kind != ProblemKind::Warning)?;
    if remaining > 0 {
        bail!("the rules still do not fit the database; `lookaside invalidator check-rules` shows all of this");
    }
    Ok(())
}

fn set_up_shared_state(options: &SetupOptions, database: &str) -> Result<()> {
    let location = StateLocation::parse("--database", database, database).map_err(|why| anyhow!(why))?;
    let sql = location.setup_sql(options.account.as_deref().unwrap_or_default());
    if options.print {
        return print(&sql);
    }
    block_on(async {
        match location {
            StateLocation::Mysql(server, _) => {
                MysqlConnection::open(&TcpNetwork, &server).await?.query(&sql).await?;
            }
            StateLocation::Postgres(server) => {
                PostgresConnection::open(&TcpNetwork, &server, Purpose::Queries).await?.query(&sql).await?;
            }
        }
        Ok(())
    })?;
    println!("the table {TABLE} is set up");
    Ok(())
}

fn print(sql: &str) -> Result<()> {
    Ok(std::io::stdout().write_all(sql.as_bytes())?)
}

fn block_on<T>(work: impl Future<Output = Result<T, SourceError>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(work)?)
}
