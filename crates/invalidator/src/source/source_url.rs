//! The URL of a database on the command line, which may hold a password.

use std::{fmt, ops::Deref};

/// The URL of a database. `Debug` shows its scheme alone, so that options can be printed.
#[derive(Clone, PartialEq, Eq)]
pub struct SourceUrl(String);

impl SourceUrl {
    /// A number for the database that it leads to, whatever the account and the options are: invalidators of one
    /// database have the same.
    pub fn database_id(&self) -> u64 {
        let (_, place) = self.0.split_once("://").unwrap_or(("", &self.0));
        let place = place.split_once('?').map_or(place, |(place, _)| place);
        let place = place.rsplit_once('@').map_or(place, |(_, place)| place);
        crc32fast::hash(place.trim_end_matches('/').as_bytes()).into()
    }
}

impl Deref for SourceUrl {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<T: Into<String>> From<T> for SourceUrl {
    fn from(url: T) -> SourceUrl {
        SourceUrl(url.into())
    }
}

impl fmt::Debug for SourceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.split_once("://") {
            Some((scheme, _)) if scheme.bytes().all(|byte| byte.is_ascii_alphabetic()) => {
                write!(f, "{scheme}://hidden")
            }
            _ => f.write_str("hidden"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SourceUrl;

    #[test]
    fn url_is_printed_without_what_may_be_a_password() {
        for (url, shown) in [
            ("mysql://reader:s3cret@db", "mysql://hidden"),
            ("postgres://db/shop?password=s3cret", "postgres://hidden"),
            ("reader:s3cret@db", "hidden"),
            ("reader:s3cret://db", "hidden"),
            ("sqlite:///srv/app.db", "sqlite://hidden"),
        ] {
            assert_eq!(format!("{:?}", SourceUrl::from(url)), shown);
            assert_eq!(&*SourceUrl::from(url), url);
        }
    }

    #[test]
    fn a_database_has_one_number_by_every_account() {
        let id = |url: &str| SourceUrl::from(url).database_id();
        for same in ["mysql://reader:s3c@ret@db:3306/", "mariadb://db:3306?ssl-mode=DISABLED", "mysql://other@db:3306"]
        {
            assert_eq!(id(same), id("mysql://db:3306"), "{same}");
        }
        for other in ["mysql://db:3307", "mysql://db2:3306", "mysql://db:3306/shop"] {
            assert_ne!(id(other), id("mysql://db:3306"), "{other}");
        }
    }
}
