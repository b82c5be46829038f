//! The address and account of the server, and time limits.

use crate::{
    SourceError,
    rules::RowRules,
    source::{
        Password,
        database_url::{DatabaseUrl, endpoint},
        mysql::unsafe_setting::UnsafeSetting,
        tls::DatabaseTls,
    },
};
use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

const PORT_DEFAULT: u16 = 3306;

/// The options of a source.
#[derive(Clone, Debug)]
pub struct MysqlOptions {
    /// Host name or address. Default 127.0.0.1.
    pub host: String,
    /// TCP port. Default 3306.
    pub port: u16,
    /// The account. Default root. It needs REPLICATION SLAVE, and REPLICATION CLIENT (MariaDB: BINLOG MONITOR and
    /// SLAVE MONITOR).
    pub user: String,
    /// Its password. Default none.
    pub password: Password,
    /// The schema of the URL, which has the table of the shared state; `None` (the default) if it names none. The log
    /// covers all schemas.
    pub schema: Option<String>,
    /// How connections are secured; `None` (the default) for connections without TLS.
    pub tls: Option<DatabaseTls>,
    /// Unsafe settings of the server that are warned of instead of refused. Default none.
    pub accepted: BTreeSet<UnsafeSetting>,
    /// Whether this process has read the log, or one that was active in its place: some unsafe settings are warned of
    /// then, and no longer refused. Set when a source is opened, and shared with all clones. Default no.
    pub has_been_read: Arc<AtomicBool>,
    /// The table, in any schema, whose inserted rows name a key in their first column. Default `lookaside_outbox`.
    pub outbox_table: String,
    /// The row rules. Default none.
    pub row_rules: Arc<RowRules>,
    /// Take no keys from comments, so that the log need not hold the text of statements. Default no.
    pub outbox_only: bool,
    /// Take keys from comments only, so that the log may have statements instead of rows (`binlog_format` STATEMENT or
    /// MIXED). Default no.
    pub comments_only: bool,
    /// Read the log once more for a replay, which ends at a position: transactions that are prepared do not hold the
    /// position back, and the commit of one whose keys are not known is no loss. Default no.
    pub is_replay: bool,
    /// Our server id among the replicas. The server disconnects a replica when another one with the same id connects.
    /// Default: 2^31 plus the connection id, which is unique on the server.
    pub server_id: Option<u32>,
    /// How long connecting and login may take. Default 5 s. If too short, a busy server is never reached.
    pub connect_wait_max: Duration,
    /// How long a reply to a query may take. Default 10 s.
    pub reply_wait_max: Duration,
    /// The heartbeat interval of the server while nothing is committed. Default 5 s. After three times this in silence
    /// the connection is closed. If too short, it causes traffic; if too long, a dead connection is noticed late.
    pub heartbeat: Duration,
    /// How long a commit in the log may take until readers see it. Default 60 s. After that the gate reports the server
    /// as unreachable, and nothing is deleted until readers see the commit.
    pub visible_wait_max: Duration,
    /// For tests of the gate alone: deletes do not wait until readers see their commits, so a reader can fill a cache
    /// with what it was before. No flag and no parameter of a URL sets it. Default no.
    pub is_gate_off: bool,
    /// How long a start from the present waits until prepared transactions (XA) are resolved, whose keys are in the log
    /// before it. Default 10 s. After that reading begins, with a warning that names them.
    pub prepared_wait_max: Duration,
}

impl Default for MysqlOptions {
    fn default() -> Self {
        MysqlOptions {
            host: "127.0.0.1".into(),
            port: PORT_DEFAULT,
            user: "root".into(),
            password: Password::default(),
            schema: None,
            tls: None,
            accepted: BTreeSet::new(),
            has_been_read: Arc::default(),
            outbox_table: "lookaside_outbox".into(),
            row_rules: Arc::default(),
            outbox_only: false,
            comments_only: false,
            is_replay: false,
            server_id: None,
            connect_wait_max: Duration::from_secs(5),
            reply_wait_max: Duration::from_secs(10),
            heartbeat: Duration::from_secs(5),
            visible_wait_max: Duration::from_secs(60),
            is_gate_off: false,
            prepared_wait_max: Duration::from_secs(10),
        }
    }
}

impl MysqlOptions {
    /// Parses `mysql://user:password@host:port/schema?ssl-mode=VERIFY_IDENTITY&ssl-ca=FILE` or the same with
    /// `mariadb://`. User, password and values may be percent-encoded. The schema is optional, as the log covers all
    /// schemas. `ssl-mode` is `DISABLED` (the default), `VERIFY_IDENTITY` or `VERIFY_CA`, which need `ssl-ca`;
    /// `ssl-cert` and `ssl-key` identify the client. `accept-unsafe` names [settings](UnsafeSetting) that are accepted,
    /// with commas between them. Other parameters are refused.
    ///
    /// ```
    /// use lookaside_invalidator::source::mysql::MysqlOptions;
    /// let options = MysqlOptions::from_url("mysql://reader:p%40ss@db.example:3307").unwrap();
    /// assert_eq!((options.user.as_str(), options.password.as_str(), options.port), ("reader", "p@ss", 3307));
    /// ```
    pub fn from_url(url: &str) -> Result<Self, SourceError> {
        let options = DatabaseUrl::parse(url, ["mysql://", "mariadb://"]).and_then(MysqlOptions::from_parsed);
        options.map_err(|what| {
            // Not the URL itself: it may hold a password.
            let why = format!("the database URL {what}; expected mysql://user:password@host:3306");
            SourceError::Unusable { why }
        })
    }

    fn from_parsed(url: DatabaseUrl) -> Result<Self, String> {
        let DatabaseUrl { account, host, port, database, tls, parameters } = url;
        let mut options = MysqlOptions { host, schema: database, tls, ..MysqlOptions::default() };
        options.port = port.unwrap_or(options.port);
        if let Some((user, password)) = account {
            (options.user, options.password) = (user, password);
        }
        for (name, value) in parameters {
            if name != "accept-unsafe" {
                return Err("has a parameter other than ssl-mode, ssl-ca, ssl-cert, ssl-key and accept-unsafe".into());
            }
            options.accepted = UnsafeSetting::parse_list(&value)?;
        }
        Ok(options)
    }

    /// `host:port`, with brackets around an IPv6 address.
    pub(super) fn address(&self) -> String {
        endpoint(&self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::{DatabaseTls, MysqlOptions, UnsafeSetting};

    #[test]
    fn invalid_urls_are_refused_without_showing_the_password() {
        for url in [
            "postgres://h",
            "mysql://u:secret@h/app?ssl=0",
            "mysql://u:secret@h?ssl-mode=REQUIRED",
            "mysql://u:secret@h?ssl-mode=VERIFY_IDENTITY",
            "mysql://u:secret@h?accept-unsafe=all",
            "mysql://u:secret%4@h",
            "mysql://u:secret@h:x",
            "mysql://",
        ] {
            let error = MysqlOptions::from_url(url).expect_err(url).to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn tls_is_parsed_with_and_without_a_schema() {
        for url in [
            "mysql://u@h/app?ssl-mode=VERIFY_IDENTITY&ssl-ca=%2Fca.pem",
            "mariadb://u@h?sslmode=verify-full&sslrootcert=/ca.pem",
        ] {
            let options = MysqlOptions::from_url(url).expect(url);
            assert_eq!((options.host.as_str(), options.tls), ("h", Some(DatabaseTls::verify_full("/ca.pem"))), "{url}");
        }
    }

    #[test]
    fn unsafe_settings_are_accepted_by_name() {
        let url = "mysql://h/app?accept-unsafe=sync_binlog,binlog_do_db";
        let accepted = MysqlOptions::from_url(url).expect("a valid URL").accepted;
        assert_eq!(accepted, [UnsafeSetting::SyncBinlog, UnsafeSetting::BinlogDoDb].into());
        assert!(MysqlOptions::from_url("mysql://h").expect("a valid URL").accepted.is_empty());
    }

    #[test]
    fn ipv6_host_is_bracketed() {
        let options = MysqlOptions::from_url("mariadb://[::1]:4000/").expect("a valid URL");
        assert_eq!(options.address(), "[::1]:4000");
        assert_eq!(MysqlOptions::from_url("mysql://[::1]").expect("a valid URL").address(), "[::1]:3306");
    }
}
