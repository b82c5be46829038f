//! The name of a region, and the System V key that it is hashed to.

/// The name of a region: 1 to 1024 bytes without control characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionName(String);

impl RegionName {
    pub(crate) const BYTES_MAX: usize = 1024;

    /// `None` if the name is not valid.
    pub fn new(name: impl Into<String>) -> Option<RegionName> {
        let name = name.into();
        let is_valid = (1..=RegionName::BYTES_MAX).contains(&name.len()) && !name.contains(char::is_control);
        is_valid.then_some(RegionName(name))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The System V key: a hash of the name. Never 0, the key of private segments.
    pub(crate) fn key(&self) -> i32 {
        let hash = rapidhash::v3::rapidhash_v3(self.0.as_bytes());
        ((hash ^ hash >> 32) as u32).max(1) as i32
    }
}

/// In quotes.
impl std::fmt::Display for RegionName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0)
    }
}
