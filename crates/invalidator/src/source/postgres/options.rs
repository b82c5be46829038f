//! The address, account and names that a source needs, and time limits.

use crate::{
    SourceError,
    rules::RowRules,
    source::{
        Password,
        database_url::{DatabaseUrl, endpoint},
        tls::DatabaseTls,
    },
};
use std::{sync::Arc, time::Duration};

const PORT_DEFAULT: u16 = 5432;

/// The beginning of the name that the server shows for our sessions.
pub(super) const APPLICATION_NAME: &str = "lookaside-invalidator";

/// After this many heartbeats in silence the source gives up the server, and the server the source.
pub(super) const HEARTBEATS_MISSED_MAX: u32 = 3;

/// The options of a source.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// Host name or address. Default 127.0.0.1.
    pub host: String,
    /// TCP port. Default 5432.
    pub port: u16,
    /// The account. Default postgres. It needs REPLICATION, and the right to connect to the database.
    pub user: String,
    /// Its password. Default none.
    pub password: Password,
    /// The database whose commits are read. Default: named like the user.
    pub database: String,
    /// How connections are secured; `None` (the default) for connections without TLS.
    pub tls: Option<DatabaseTls>,
    /// The name that the server shows for its sessions (`pg_stat_activity`). Default `lookaside-invalidator`.
    /// [`PostgresLog`](super::PostgresLog) adds a random number, by which it knows its own.
    pub application_name: String,
    /// The replication slot. Created at the first start. Default `lookaside`.
    pub slot: String,
    /// Whether the slot is created for each source, and ends with it: reading can only begin at the present. The server
    /// keeps no log for a reader that is stopped. Default false.
    pub is_slot_temporary: bool,
    /// The publication, which names the outbox table and the tables with a rule. Default `lookaside`.
    pub publication: String,
    /// The table, in any schema, whose inserted rows name a key in the first column of a text type. Default
    /// `lookaside_outbox`.
    pub outbox_table: String,
    /// The row rules. Default none.
    pub row_rules: Arc<RowRules>,
    /// The catalogue is looked at this often, to find an outbox or tables with a rule whose changes the log does not
    /// have. Default 2 s. If too short, it costs queries; if too long, cached values are stale for as long.
    pub catalogue_interval: Duration,
    /// How long connecting and login may take. Default 5 s; connecting alone takes 1 s at most.
    pub connect_wait_max: Duration,
    /// How long a reply to a query, or sending a report of the position, may take. Default 10 s. Creating a slot waits
    /// for all open transactions, so that one has no such limit.
    pub reply_wait_max: Duration,
    /// The server is asked for a sign of life this often. Default 5 s. After three times this in silence the connection
    /// is closed, by the server too (`wal_sender_timeout`), which frees the slot.
    pub heartbeat: Duration,
    /// How long a commit in the log may take until readers see it. Default 60 s. After that the gate reports the server
    /// as unreachable, and nothing is deleted until readers see the commit.
    pub visible_wait_max: Duration,
    /// For tests of the gate alone: deletes do not wait until readers see their commits, so a reader can fill a cache
    /// with what it was before. No flag and no parameter of a URL sets it. Default no.
    pub is_gate_off: bool,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        PostgresOptions {
            host: "127.0.0.1".into(),
            port: PORT_DEFAULT,
            user: "postgres".into(),
            password: Password::default(),
            database: "postgres".into(),
            tls: None,
            application_name: APPLICATION_NAME.into(),
            slot: "lookaside".into(),
            is_slot_temporary: false,
            publication: "lookaside".into(),
            outbox_table: "lookaside_outbox".into(),
            row_rules: Arc::default(),
            catalogue_interval: Duration::from_secs(2),
            connect_wait_max: Duration::from_secs(5),
            reply_wait_max: Duration::from_secs(10),
            heartbeat: Duration::from_secs(5),
            visible_wait_max: Duration::from_secs(60),
            is_gate_off: false,
        }
    }
}

impl PostgresOptions {
    /// Parses `postgres://user:password@host:port/database?sslmode=verify-full&sslrootcert=FILE`, or the same with
    /// `postgresql://`. User, password, database and values may be percent-encoded. `sslmode` is `disable` (the
    /// default), `verify-full` or `verify-ca`, which need `sslrootcert`; `sslcert` and `sslkey` identify the client.
    /// Other parameters are refused, except `application_name`.
    ///
    /// ```
    /// use lookaside_invalidator::source::postgres::PostgresOptions;
    /// let options = PostgresOptions::from_url("postgres://reader:p%40ss@db.example/shop").unwrap();
    /// assert_eq!((options.user.as_str(), options.password.as_str(), options.port), ("reader", "p@ss", 5432));
    /// assert_eq!(options.database, "shop");
    /// ```
    pub fn from_url(url: &str) -> Result<Self, SourceError> {
        let options = DatabaseUrl::parse(url, ["postgres://", "postgresql://"]).and_then(PostgresOptions::from_parsed);
        options.map_err(|what| {
            // Not the URL itself: it may hold a password.
            let why = format!("the database URL {what}; expected postgres://user:password@host:5432/database");
            SourceError::Unusable { why }
        })
    }

    fn from_parsed(url: DatabaseUrl) -> Result<Self, String> {
        let DatabaseUrl { account, host, port, database, tls, parameters } = url;
        let mut options = PostgresOptions { host, tls, ..PostgresOptions::default() };
        options.port = port.unwrap_or(options.port);
        if let Some((user, password)) = account {
            (options.user, options.password) = (user, password);
        }
        if options.user.is_empty() {
            return Err("has no user".into());
        }
        options.database = database.unwrap_or_else(|| options.user.clone());
        if parameters.iter().any(|(name, _)| name != "application_name") {
            return Err("has a parameter other than sslmode, sslrootcert, sslcert and sslkey".into());
        }
        Ok(options)
    }

    /// The same with a temporary slot, whose name begins with `prefix` and has this number, since names are unique on a
    /// server. Its sessions are shown by that name.
    pub fn with_temporary_slot(self, prefix: &str, number: u64) -> PostgresOptions {
        let slot = format!("{prefix}_{number:016x}");
        PostgresOptions { application_name: prefix.replace('_', "-"), slot, is_slot_temporary: true, ..self }
    }

    /// `host:port`, with brackets around an IPv6 address.
    pub(super) fn address(&self) -> String {
        endpoint(&self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_urls_are_refused_without_showing_the_password() {
        for url in [
            "mysql://h",
            "postgres://u:secret@h:x/d",
            "postgres://u:secret%4@h",
            "postgres://u:secret@",
            "postgres://u:secret@h/d?sslmode=prefer",
            "postgres://u:secret@h/d?sslmode=verify-full",
            "postgres://u:secret@h/d?sslrootcert=a",
            "postgres://u:secret@h/d?options=x",
        ] {
            let error = PostgresOptions::from_url(url).expect_err(url).to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn urls_name_server_database_and_tls() {
        let options =
            PostgresOptions::from_url("postgresql://app:x@[::1]:4000/shop?sslmode=verify-full&sslrootcert=%2Fca.pem")
                .expect("a valid URL");
        assert_eq!(options.address(), "[::1]:4000");
        assert_eq!(options.tls, Some(DatabaseTls::verify_full("/ca.pem")));
        assert_eq!(PostgresOptions::from_url("postgres://app@h").expect("valid").database, "app");
    }
}
