//! `/region/cluster/`: the cluster to whose tree a key goes. In a key, `*` matches any run of characters.
//!
//! Every verb passes here; `root_route.rs` defines the effect of `*` for each.

use std::fmt;

/// The name of one cluster's tree: `/region/cluster/`, without `*`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RoutingPrefix(String);

/// Not a routing prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutingPrefixError {
    text: String,
}

impl std::error::Error for RoutingPrefixError {}

impl fmt::Display for RoutingPrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a routing prefix: expected \"/region/cluster/\", without \"*\"", self.text)
    }
}

impl RoutingPrefix {
    /// Parses `/region/cluster/`; the last slash may be missing.
    pub fn parse(text: &str) -> Result<Self, RoutingPrefixError> {
        let refused = || RoutingPrefixError { text: text.to_owned() };
        let inner = text.strip_prefix('/').ok_or_else(refused)?;
        let inner = inner.strip_suffix('/').unwrap_or(inner);
        let (region, cluster) = inner.split_once('/').ok_or_else(refused)?;
        let bad = |name: &str| name.is_empty() || name.contains(['/', '*']) || name.contains(char::is_whitespace);
        if bad(region) || bad(cluster) {
            return Err(refused());
        }
        Ok(RoutingPrefix(format!("/{region}/{cluster}/")))
    }

    /// The prefix with both outer slashes.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The region.
    pub fn region(&self) -> &str {
        self.0[1..].split('/').next().unwrap_or_default()
    }

    /// The cluster.
    pub fn cluster(&self) -> &str {
        self.0[1..].split('/').nth(1).unwrap_or_default()
    }

    /// Whether this prefix matches `pattern` (three slashes, `*` allowed).
    pub(crate) fn matches_pattern(&self, pattern: &[u8]) -> bool {
        let mut ours = self.0.as_bytes().split(|&byte| byte == b'/');
        let mut theirs = pattern.split(|&byte| byte == b'/');
        loop {
            match (ours.next(), theirs.next()) {
                (None, None) => return true,
                (Some(name), Some(pattern)) if glob(pattern, name) => {}
                _ => return false,
            }
        }
    }
}

impl Default for RoutingPrefix {
    /// mcrouter's: `/././`.
    fn default() -> Self {
        RoutingPrefix("/././".to_owned())
    }
}

impl fmt::Display for RoutingPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether `name` matches `pattern`, where `*` matches any run of characters. The time is at worst proportional to the
/// product of both lengths, which is bounded, as a key has at most 250 bytes.
fn glob(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p, n));
                p += 1;
            }
            Some(byte) if *byte == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match &mut retry {
                Some((star, matched)) => {
                    *matched += 1;
                    (p, n) = (*star + 1, *matched);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_has_two_names() {
        assert_eq!(RoutingPrefix::parse("/east/web/").unwrap().as_str(), "/east/web/");
        let east = RoutingPrefix::parse("/east/web").unwrap();
        assert_eq!((east.region(), east.cluster()), ("east", "web"));
        assert_eq!(RoutingPrefix::parse("/././").unwrap(), RoutingPrefix::default());
        for bad in ["", "/", "east/web/", "/east/", "//web/", "/east//", "/a/b/c/", "/*/web/", "/a b/c/"] {
            let error = RoutingPrefix::parse(bad).unwrap_err();
            assert!(error.to_string().contains("expected \"/region/cluster/\""), "{bad}");
        }
    }

    #[test]
    fn a_star_does_not_match_a_slash() {
        let prefix = RoutingPrefix::parse("/east/web12/").unwrap();
        for pattern in ["/east/web12/", "/*/*/", "/east/*/", "/e*/web*/", "/*/*1*/", "/*t/**/", "/east/w*b*2/"] {
            assert!(prefix.matches_pattern(pattern.as_bytes()), "{pattern}");
        }
        for pattern in ["/east/web1/", "/*/", "/west/*/", "/*/*/*/", "/e*2/web12/", "/east/web*3/", "//web12/"] {
            assert!(!prefix.matches_pattern(pattern.as_bytes()), "{pattern}");
        }
    }
}
