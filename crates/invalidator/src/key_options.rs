//! The options that say how the commits of a database name keys. The daemon and `lookaside invalidator replay` have the
//! same, so that a replay finds the keys that the daemon finds.

use crate::{
    rule_file::{RuleChecker, RuleFile},
    rules::{RowRules, Rules},
    source::mysql::{MysqlOptions, check_rules},
};
use lookaside_client::Network;
use std::{path::PathBuf, sync::Arc};

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
    /// MariaDB, MySQL: take keys from comments only, so that the log need not hold rows (binlog_format STATEMENT or MIXED)
    #[arg(long, conflicts_with_all = ["outbox_only", "rules"])]
    pub comments_only: bool,
    /// MariaDB, MySQL: a rule file (TOML), which names the keys of changed rows by their tables and columns. A daemon
    /// loads it again when it changes, and on SIGHUP; a bad file is refused, and the old rules stay
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

    /// Compares `rules` with the database, if there is a rule file. A rule that does not fit its table is an error.
    pub async fn check_rules(&self, check: &RuleChecker, rules: &Rules) -> Result<(), String> {
        let Some(path) = &self.rules else { return Ok(()) };
        RuleFile::check(check, rules).await.map_err(|why| format!("--rules {}: {why}", path.display()))
    }

    /// The MariaDB or MySQL server at `url`, which the flag `flag` has; its rows name keys by `row_rules`. `None` if `url`
    /// is that of another kind of database, which has no rules.
    pub fn mysql_server(
        &self,
        flag: &str,
        url: &str,
        row_rules: &Arc<RowRules>,
    ) -> Result<Option<MysqlOptions>, String> {
        if !url.starts_with("mysql://") && !url.starts_with("mariadb://") {
            return match self.rules {
                Some(_) => Err("--rules is for MariaDB and MySQL: the journal of SQLite has no rows of other tables, \
                                where triggers name keys; PostgreSQL's rows are not read yet"
                    .into()),
                None => Ok(None),
            };
        }
        let server = MysqlOptions::from_url(url).map_err(|why| format!("{flag}: {why}"))?;
        Ok(Some(MysqlOptions {
            outbox_table: self.outbox_table.clone(),
            outbox_only: self.outbox_only,
            comments_only: self.comments_only,
            row_rules: row_rules.clone(),
            ..server
        }))
    }
}

/// Compares rules with the tables of `server`.
pub fn rule_checker(server: &MysqlOptions, network: &Arc<dyn Network>) -> RuleChecker {
    let (server, network) = (server.clone(), network.clone());
    Arc::new(move |rules| {
        let (server, network) = (server.clone(), network.clone());
        Box::pin(async move { check_rules(&*network, &server, &rules).await })
    })
}
