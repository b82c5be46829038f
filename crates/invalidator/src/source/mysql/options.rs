//! Which server to read, and how patiently.

use crate::SourceError;
use std::time::Duration;

const PORT_DEFAULT: u16 = 3306;

/// Where the server is, who we are there, and the limits of waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MysqlOptions {
    /// Host name or address. Default 127.0.0.1.
    pub host: String,
    /// TCP port. Default 3306.
    pub port: u16,
    /// The account. Default root. It needs REPLICATION SLAVE, and REPLICATION CLIENT (MariaDB: BINLOG MONITOR).
    pub user: String,
    /// Its password. Default none.
    pub password: String,
    /// The table, in any schema, whose inserted rows name a key in their first column. Default `lookaside_outbox`.
    pub outbox_table: String,
    /// Keys come from the outbox table alone, so that the log need not hold the texts of statements. Default no.
    pub outbox_only: bool,
    /// Our number among the server's replicas. Two readers with the same number throw each other out. Default: 2^31
    /// plus the number that the server gives to the connection, which no two connections share.
    pub server_id: Option<u32>,
    /// How long a connection and its login may take. Default 5 s. Too short: a busy server is never reached.
    pub connect_wait_max: Duration,
    /// How long an answer to a query may take. Default 10 s.
    pub answer_wait_max: Duration,
    /// How often the server says that it lives while nothing is committed. Default 5 s. After three times this in
    /// silence the connection is given up. Too short: needless traffic; too long: a dead connection is noticed late.
    pub heartbeat: Duration,
    /// How long a commit in the log may take until readers see it. Default 60 s. When it is over, the gate reports the
    /// server unreachable, and nothing is deleted until it answers better.
    pub visible_wait_max: Duration,
    /// How long a start from the present waits for the end of transactions that are prepared (XA) already, as the keys
    /// that they named lie before it. Default 10 s. When it is over, reading begins with a warning that names them.
    pub prepared_wait_max: Duration,
}

impl Default for MysqlOptions {
    fn default() -> Self {
        MysqlOptions {
            host: "127.0.0.1".into(),
            port: PORT_DEFAULT,
            user: "root".into(),
            password: String::new(),
            outbox_table: "lookaside_outbox".into(),
            outbox_only: false,
            server_id: None,
            connect_wait_max: Duration::from_secs(5),
            answer_wait_max: Duration::from_secs(10),
            heartbeat: Duration::from_secs(5),
            visible_wait_max: Duration::from_secs(60),
            prepared_wait_max: Duration::from_secs(10),
        }
    }
}

impl MysqlOptions {
    /// Reads `mysql://user:password@host:port/schema`, with `mariadb://` for the same. Percent signs escape bytes in
    /// user and password. The schema may be missing and changes nothing, as the log is the whole server's; it is allowed
    /// so that an application's URL can be taken as it is. Options behind a question mark are refused.
    ///
    /// ```
    /// use lookaside_invalidator::source::mysql::MysqlOptions;
    /// let options = MysqlOptions::from_url("mysql://reader:p%40ss@db.example:3307").unwrap();
    /// assert_eq!((options.user.as_str(), options.password.as_str(), options.port), ("reader", "p@ss", 3307));
    /// ```
    pub fn from_url(url: &str) -> Result<Self, SourceError> {
        let bad = |what: &str| SourceError::Unusable {
            // Not the URL itself: it may hold a password.
            why: format!("the database's URL {what}; it looks like mysql://user:password@host:3306"),
        };
        let rest = url
            .strip_prefix("mysql://")
            .or_else(|| url.strip_prefix("mariadb://"))
            .ok_or_else(|| bad("does not begin with mysql:// or mariadb://"))?;
        let (rest, after) = rest.split_once('/').unwrap_or((rest, ""));
        if after.contains(['/', '?']) {
            return Err(bad("has more than a schema after the host"));
        }
        let mut options = MysqlOptions::default();
        let place = match rest.rsplit_once('@') {
            Some((who, place)) => {
                let (user, password) = who.split_once(':').unwrap_or((who, ""));
                options.user = unescape(user).ok_or_else(|| bad("has a broken percent escape"))?;
                options.password = unescape(password).ok_or_else(|| bad("has a broken percent escape"))?;
                place
            }
            None => rest,
        };
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().map_err(|_| bad("has no good port"))?),
            _ => (place, PORT_DEFAULT),
        };
        if host.is_empty() || options.user.contains('\0') {
            return Err(bad("names no host"));
        }
        options.host = host.trim_start_matches('[').trim_end_matches(']').into();
        options.port = port;
        Ok(options)
    }

    /// `host:port`, brackets around a v6 address.
    pub(super) fn address(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::MysqlOptions;

    #[test]
    fn urls_that_cannot_be_meant_are_refused_without_their_password() {
        for url in
            ["postgres://h", "mysql://u:secret@h/app?ssl=0", "mysql://u:secret%4@h", "mysql://u:secret@h:x", "mysql://"]
        {
            let error = MysqlOptions::from_url(url).expect_err(url).to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_v6_host_keeps_its_colons() {
        let options = MysqlOptions::from_url("mariadb://[::1]:4000/").expect("a good URL");
        assert_eq!(options.address(), "[::1]:4000");
        assert_eq!(MysqlOptions::from_url("mysql://[::1]").expect("a good URL").address(), "[::1]:3306");
    }
}
