//! The URL of a database on the command line, which may hold a password.

use std::{fmt, ops::Deref};

/// The URL of a database. `Debug` shows its scheme alone, so that options can be printed.
#[derive(Clone, PartialEq, Eq)]
pub struct SourceUrl(String);

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
}
