//! What a router tells the other routers of its cluster about its configurations: the value of
//! `__mcrouter__.coverage`, as JSON.
//!
//! ```text
//!   {"reads": [ID, ID], "waits_for": ID, "claims": [ID], "covers": [ID], "is_ordered": true,
//!    "departed": ["10.0.0.7:11211"]}
//! ```

use lookaside_client::config::ConfigId;
use lookaside_routing::Address;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What one router reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CoverageReport {
    /// The configuration that it reads by, then the former one that it reads after misses, and those by which batches
    /// still run.
    pub(crate) reads: Vec<ConfigId>,
    /// The configuration that it will read by; `None` if it reads by the newest.
    pub(crate) waits_for: Option<ConfigId>,
    /// Configurations to whose places all its deletes go, and will go until others have seen a report without them.
    pub(crate) claims: BTreeSet<ConfigId>,
    /// Configurations under which copies may exist.
    pub(crate) covers: Vec<ConfigId>,
    /// Deletes of a key go to the places under these one after the other, in the order of `covers`. Routers of earlier
    /// versions send them at once, and report nothing.
    pub(crate) is_ordered: bool,
    /// Servers that it no longer sends deletes to, and that hold copies.
    pub(crate) departed: BTreeSet<Address>,
    /// Those of `departed` that were in no configuration of which the router knows that it was read.
    pub(crate) departed_unread: BTreeSet<Address>,
}

#[derive(Serialize, Deserialize)]
struct Text {
    reads: Vec<String>,
    waits_for: Option<String>,
    claims: Vec<String>,
    covers: Vec<String>,
    #[serde(default)]
    is_ordered: bool,
    departed: Vec<String>,
    /// Earlier versions report none, and read none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    departed_unread: Vec<String>,
}

impl CoverageReport {
    pub(crate) fn to_json(&self) -> String {
        let text = Text {
            reads: self.reads.iter().map(ConfigId::to_string).collect(),
            waits_for: self.waits_for.map(|id| id.to_string()),
            claims: self.claims.iter().map(ConfigId::to_string).collect(),
            covers: self.covers.iter().map(ConfigId::to_string).collect(),
            is_ordered: self.is_ordered,
            departed: self.departed.iter().map(Address::to_string).collect(),
            departed_unread: self.departed_unread.iter().map(Address::to_string).collect(),
        };
        serde_json::to_string(&text).expect("text and lists are JSON")
    }

    /// Parses a report. The caller has bounded its length.
    pub(crate) fn parse(json: &[u8]) -> Result<CoverageReport, String> {
        let text: Text = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        let id = |name: &String| ConfigId::parse(name).ok_or_else(|| format!("{name:?} is not an identity"));
        let report = CoverageReport {
            reads: text.reads.iter().map(id).collect::<Result<_, _>>()?,
            waits_for: text.waits_for.as_ref().map(id).transpose()?,
            claims: text.claims.iter().map(id).collect::<Result<_, _>>()?,
            covers: text.covers.iter().map(id).collect::<Result<_, _>>()?,
            is_ordered: text.is_ordered,
            departed: text.departed.iter().map(|name| Address(name.as_str().into())).collect(),
            departed_unread: text.departed_unread.iter().map(|name| Address(name.as_str().into())).collect(),
        };
        match report.reads.is_empty() {
            true => Err("\"reads\" is empty: expected the configuration that the router reads by".to_owned()),
            false => Ok(report),
        }
    }

    /// Whether the router reads by `id`, or is going to.
    pub(crate) fn needs(&self, id: ConfigId) -> bool {
        self.reads.contains(&id) || self.waits_for == Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_as_it_is_written() {
        let (one, two) = (ConfigId(1), ConfigId(2));
        let report = CoverageReport {
            reads: vec![two, one],
            waits_for: Some(one),
            claims: [one, two].into(),
            covers: vec![two, one],
            is_ordered: true,
            departed: ["10.0.0.7:11211", "10.0.0.8:11211"].map(|name| Address(name.into())).into(),
            departed_unread: [Address("10.0.0.8:11211".into())].into(),
        };
        assert_eq!(CoverageReport::parse(report.to_json().as_bytes()), Ok(report));
        let earlier =
            r#"{"reads":["1"],"waits_for":null,"claims":[],"covers":[],"departed":[]}"#.replace('1', &one.to_string());
        assert!(
            CoverageReport::parse(earlier.as_bytes())
                .is_ok_and(|report| !report.is_ordered && report.departed_unread.is_empty()),
            "of an earlier version"
        );
        for bad in ["", "{}", r#"{"reads":[],"waits_for":null,"claims":[],"covers":[],"departed":[]}"#] {
            assert!(CoverageReport::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
