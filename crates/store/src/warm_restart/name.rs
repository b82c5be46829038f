//! How a region is found: by a name that people choose, and a number that the kernel wants.

/// The name of a region: 1 to 1024 bytes without control characters. The key by which the kernel knows it is a hash of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionName(String);

impl RegionName {
    pub(crate) const BYTES_MAX: usize = 1024;

    /// The name, if it can be one.
    pub fn new(name: impl Into<String>) -> Option<RegionName> {
        let name = name.into();
        let is_one = (1..=RegionName::BYTES_MAX).contains(&name.len()) && !name.contains(char::is_control);
        is_one.then_some(RegionName(name))
    }

    /// The name as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Never 0, by which the kernel knows segments without a key.
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
