//! Where the record is: `--shared-state`.

use super::{mysql::MysqlRecord, postgres::PostgresRecord, record::RecordStore};
use crate::source::{mysql::MysqlOptions, postgres::PostgresOptions};
use lookaside_client::Network;
use std::sync::Arc;

/// The database that has the table.
#[derive(Clone, Debug)]
pub enum StateLocation {
    /// MariaDB or MySQL: the server, and the schema of the table.
    Mysql(MysqlOptions, String),
    /// PostgreSQL: the server and the database.
    Postgres(PostgresOptions),
}

impl StateLocation {
    /// Parses `url`, or `source` if it is `source`, which names the database whose log is read. An error names `flag`.
    pub fn parse(flag: &str, url: &str, source: &str) -> Result<StateLocation, String> {
        let url = if url == "source" { source } else { url };
        if url.starts_with("mysql://") || url.starts_with("mariadb://") {
            let server = MysqlOptions::from_url(url).map_err(|why| format!("{flag}: {why}"))?;
            let schema = server.schema.clone();
            let schema =
                schema.ok_or_else(|| format!("{flag}: the URL must name the schema of the table, as in /app"))?;
            return Ok(StateLocation::Mysql(server, schema));
        }
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            let server = PostgresOptions::from_url(url).map_err(|why| format!("{flag}: {why}"))?;
            return Ok(StateLocation::Postgres(server));
        }
        // Not the URL itself: it may hold a password.
        Err(format!("{flag} must be a database that two hosts can reach: mysql://, mariadb:// or postgres://"))
    }

    /// The SQL that creates the table and lets `account` use it.
    pub fn setup_sql(&self, account: &str) -> String {
        match self {
            StateLocation::Mysql(_, schema) => super::mysql::table_sql(schema, account),
            StateLocation::Postgres(_) => super::postgres::table_sql(account),
        }
    }

    /// The row `name` there.
    pub fn store(self, network: Arc<dyn Network>, name: &str) -> Arc<dyn RecordStore> {
        match self {
            StateLocation::Mysql(server, schema) => {
                Arc::new(MysqlRecord::new(network, server, schema, name.to_owned()))
            }
            StateLocation::Postgres(server) => Arc::new(PostgresRecord::new(network, server, name.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_databases_that_two_hosts_reach_are_accepted() {
        let parse = |url, source| StateLocation::parse("--shared-state", url, source);
        assert!(matches!(parse("source", "mysql://u@h/app"), Ok(StateLocation::Mysql(_, schema)) if schema == "app"));
        assert!(matches!(parse("postgres://u@h/app", "mysql://u@h"), Ok(StateLocation::Postgres(_))));
        for (url, source, why) in [
            ("source", "sqlite:///a", "must be a database"),
            ("source", "mysql://u:secret@h", "schema"),
            ("/var/lib", "mysql://u:secret@h/app", "must be a database"),
        ] {
            let error = parse(url, source).expect_err(url);
            assert!(error.contains(why) && !error.contains("secret"), "{error}");
        }
    }
}
