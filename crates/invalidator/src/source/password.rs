//! The password of a database account, which no log line and no error shows.

use std::{fmt, ops::Deref};

/// A password. `Debug` hides it, so that options can be printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    /// The password itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Deref for Password {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<T: Into<String>> From<T> for Password {
    fn from(password: T) -> Password {
        Password(password.into())
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "none" } else { "hidden" })
    }
}

#[cfg(test)]
mod tests {
    use crate::source::{mysql::MysqlOptions, postgres::PostgresOptions};

    #[test]
    fn options_are_printed_without_the_password() {
        let mysql = MysqlOptions::from_url("mysql://reader:s3cr%65t@db").expect("a valid URL");
        let postgres = PostgresOptions::from_url("postgres://reader:s3cr%65t@db").expect("a valid URL");
        assert_eq!((mysql.password.as_str(), postgres.password.as_str()), ("s3cret", "s3cret"));
        for shown in [format!("{mysql:?} {mysql:#?}"), format!("{postgres:?} {postgres:#?}")] {
            assert!(shown.contains("reader") && !shown.contains("s3cret"), "{shown}");
        }
    }
}
