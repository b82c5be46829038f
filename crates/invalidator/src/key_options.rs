//! The options that say how the commits of a database name keys. The daemon, `lookaside invalidator replay` and the
//! monitor have the same, so that they find the same keys.

use crate::{
    SourceError,
    rule_file::{RuleCheck, RuleChecker, RuleFile},
    rules::{ReadRows, RowRules, RowSelection, Rule, RuleProblem, Rules},
    source::{
        mysql::{self, MysqlOptions},
        postgres::{self, PostgresOptions},
        sqlite::SqliteLog,
    },
};
use lookaside_client::Network;
use std::{
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Relaxed},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};

/// How the commits of a database name keys.
#[derive(Clone, Debug, clap::Args)]
pub struct KeyOptions {
    /// MariaDB, MySQL, PostgreSQL: the table, in any schema, whose inserted rows name a key in their first column
    /// (PostgreSQL: the one named key, if there is one)
    #[arg(long, value_name = "TABLE", default_value = "lookaside_outbox")]
    pub outbox_table: String,
    /// MariaDB, MySQL: take no keys from comments, so that the log need not hold the text of statements
    #[arg(long)]
    pub outbox_only: bool,
    /// MariaDB, MySQL: take keys from comments only, so that the log need not hold rows (binlog_format STATEMENT or
    /// MIXED)
    #[arg(long, conflicts_with_all = ["outbox_only", "rules"])]
    pub comments_only: bool,
    /// MariaDB, MySQL, PostgreSQL: a rule file (TOML), which names the keys of changed rows by their tables and
    /// columns. A daemon loads it again when it changes, and on SIGHUP; a bad file is refused, and the old rules stay
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
}

impl KeyOptions {
    /// The text of the rule file and its rules; both empty if there is none.
    pub fn read_rules(&self) -> Result<(String, Rules), String> {
        match &self.rules {
            Some(path) => RuleFile::read(path).map_err(|why| format!("--rules: {why}")),
            None => Ok((String::new(), Rules::default())),
        }
    }

    /// Compares `rules` with the database, if there is a rule file.
    pub async fn check_rules(&self, check: &RuleChecker, rules: &Rules, strictness: RuleCheck) -> Result<(), String> {
        let Some(path) = &self.rules else { return Ok(()) };
        RuleFile::check(check, rules, strictness).await.map_err(|why| format!("--rules {}: {why}", path.display()))
    }

    /// Compares the rules of a daemon with the database, and spawns the task that loads them again when the file, whose
    /// text was `text`, changes, and on SIGHUP.
    pub async fn watch_rules(
        &self,
        database: &SourceDatabase,
        network: &Arc<dyn Network>,
        text: String,
        row_rules: Arc<RowRules>,
        strictness: RuleCheck,
        background: &mut JoinSet<()>,
    ) -> Result<(), String> {
        // Without rules too: the default action of SIGHUP ends the process.
        let mut hangup = signal(SignalKind::hangup()).map_err(|error| format!("cannot receive signals: {error}"))?;
        let (Some(path), Some(check)) = (&self.rules, database.rule_checker(network)) else {
            background.spawn(async move {
                while hangup.recv().await.is_some() {
                    tracing::info!("SIGHUP: there is no rule file to load (--rules)");
                }
            });
            return Ok(());
        };
        self.check_rules(&check, &row_rules.current(), strictness).await?;
        row_rules.statistics.loads.add(1);
        background.spawn(RuleFile::new(path.clone(), text, row_rules, check).watch(hangup));
        Ok(())
    }

    /// The server at `url`, which the flag `flag` has; its rows name keys by `row_rules`. `None` if `url` is that of
    /// another kind of database, which has no rules.
    pub fn row_database(
        &self,
        flag: &str,
        url: &str,
        row_rules: &Arc<RowRules>,
    ) -> Result<Option<RowDatabase>, String> {
        let (outbox_table, row_rules) = (self.outbox_table.clone(), row_rules.clone());
        match RowDatabase::from_url(url).map_err(|why| format!("{flag}: {why}"))? {
            Some(RowDatabase::Mysql(server)) => {
                let (outbox_only, comments_only) = (self.outbox_only, self.comments_only);
                let server = MysqlOptions { outbox_table, outbox_only, comments_only, row_rules, ..server };
                Ok(Some(RowDatabase::Mysql(server)))
            }
            Some(RowDatabase::Postgres(_)) if self.outbox_only || self.comments_only => {
                Err("--outbox-only and --comments-only are for MariaDB and MySQL: PostgreSQL's log has no text of \
                     statements"
                    .into())
            }
            Some(RowDatabase::Postgres(server)) => {
                Ok(Some(RowDatabase::Postgres(PostgresOptions { outbox_table, row_rules, ..server })))
            }
            None if self.rules.is_some() => {
                Err("--rules is for MariaDB, MySQL and PostgreSQL: the journal of SQLite has no rows of other tables, \
                     where triggers name keys"
                    .into())
            }
            None => Ok(None),
        }
    }
}

/// A database with a commit log, by its URL.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a process has one")]
pub enum SourceDatabase {
    /// The journal of an SQLite file.
    Sqlite(SqliteLog),
    /// The log of a server.
    Rows(RowDatabase),
}

impl SourceDatabase {
    /// The database at `url`, which the flag `flag` has. Its commits name keys as `keys` and `row_rules` say.
    pub fn from_url(
        keys: &KeyOptions,
        flag: &str,
        url: &str,
        row_rules: &Arc<RowRules>,
    ) -> Result<SourceDatabase, String> {
        if let Some(server) = keys.row_database(flag, url, row_rules)? {
            return Ok(SourceDatabase::Rows(server));
        }
        match url.strip_prefix("sqlite://").filter(|path| !path.is_empty()) {
            Some(path) => Ok(SourceDatabase::Sqlite(SqliteLog::new(path))),
            // Not the URL itself: it may hold a password.
            None => Err(format!(
                "{flag} must be sqlite:///PATH, or mysql://, mariadb:// or postgres:// with USER:PASSWORD@HOST:PORT"
            )),
        }
    }

    /// The same with other options if it is PostgreSQL.
    pub fn map_postgres(self, change: impl FnOnce(PostgresOptions) -> PostgresOptions) -> SourceDatabase {
        match self {
            SourceDatabase::Rows(RowDatabase::Postgres(server)) => {
                SourceDatabase::Rows(RowDatabase::Postgres(change(server)))
            }
            other => other,
        }
    }

    /// Another process has just read its log, in whose place this one reads it: it is no start that unsafe settings may
    /// refuse.
    pub fn note_read(&self) {
        if let SourceDatabase::Rows(RowDatabase::Mysql(server)) = self {
            server.has_been_read.store(true, Relaxed);
        }
    }

    /// Compares rules with the database; `None` if it has no row rules.
    pub fn rule_checker(&self, network: &Arc<dyn Network>) -> Option<RuleChecker> {
        let SourceDatabase::Rows(database) = self else { return None };
        Some(database.rule_checker(network))
    }

    /// Whether its log cannot be read again, so that commits must be kept until every cluster has them.
    pub fn needs_spool(&self) -> bool {
        matches!(self, SourceDatabase::Rows(RowDatabase::Postgres(_)))
    }
}

/// A database whose log has rows.
#[derive(Clone, Debug)]
pub enum RowDatabase {
    /// MariaDB or MySQL.
    Mysql(MysqlOptions),
    /// PostgreSQL.
    Postgres(PostgresOptions),
}

impl RowDatabase {
    /// The database at `url`; `None` if it is another kind of database.
    pub fn from_url(url: &str) -> Result<Option<RowDatabase>, SourceError> {
        let is_of = |schemes: [&str; 2]| schemes.iter().any(|scheme| url.starts_with(scheme));
        if is_of(["mysql://", "mariadb://"]) {
            return MysqlOptions::from_url(url).map(|server| Some(RowDatabase::Mysql(server)));
        }
        if is_of(["postgres://", "postgresql://"]) {
            return PostgresOptions::from_url(url).map(|server| Some(RowDatabase::Postgres(server)));
        }
        Ok(None)
    }

    /// The problems of `rules` with its tables and its log.
    pub async fn check_rules(&self, network: &dyn Network, rules: &Rules) -> Result<Vec<RuleProblem>, SourceError> {
        match self {
            RowDatabase::Mysql(server) => mysql::check_rules(network, server, rules).await,
            RowDatabase::Postgres(server) => postgres::check_rules(network, server, rules).await,
        }
    }

    /// The problems of its settings, for which a start would be refused or warn. PostgreSQL has none beside those of
    /// rules.
    pub async fn check_settings(&self, network: &dyn Network) -> Result<Vec<RuleProblem>, SourceError> {
        match self {
            RowDatabase::Mysql(server) => mysql::check_settings(network, server).await,
            RowDatabase::Postgres(_) => Ok(Vec::new()),
        }
    }

    /// The columns of a table with a rule, and the rows of `selection`, if any. Nothing is changed.
    pub async fn read_rows(
        &self,
        network: &dyn Network,
        rules: (&Rules, &Rule),
        selection: Option<&RowSelection>,
    ) -> Result<ReadRows, SourceError> {
        match self {
            RowDatabase::Mysql(server) => mysql::read_rows(network, server, rules, selection).await,
            RowDatabase::Postgres(server) => postgres::read_rows(network, server, rules, selection).await,
        }
    }

    /// Compares rules with its tables and its log.
    pub fn rule_checker(&self, network: &Arc<dyn Network>) -> RuleChecker {
        let (database, network) = (self.clone(), network.clone());
        Arc::new(move |rules| {
            let (database, network) = (database.clone(), network.clone());
            Box::pin(async move { database.check_rules(&*network, &rules).await })
        })
    }
}
