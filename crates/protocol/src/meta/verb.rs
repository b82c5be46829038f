//! The verbs of meta commands and the first words of their replies.

/// The meta commands that name a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaVerb {
    /// `mg`
    Get,
    /// `ms`
    Set,
    /// `md`
    Delete,
    /// `ma`
    Arithmetic,
    /// `me`
    Debug,
}

/// The first word of a meta reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaStatus {
    /// `HD`: done, or found.
    Done,
    /// `VA`: found, with the value.
    Value,
    /// `EN`: a miss of `mg` or `me`.
    Miss,
    /// `NF`: not found.
    NotFound,
    /// `NS`: not stored.
    NotStored,
    /// `EX`: the CAS unique has changed.
    Exists,
    /// `ME`: an item's metadata.
    Debug,
}

impl MetaStatus {
    /// Whether the flag `q` suppresses this reply to `verb`: it suppresses the expected one. Errors are always sent.
    ///
    /// | | silent |
    /// |---|---|
    /// | `mg` | `EN` |
    /// | `ms`, `md` | `HD` |
    /// | `ma` | `HD`, `VA` |
    pub fn is_silent(self, verb: MetaVerb) -> bool {
        match verb {
            MetaVerb::Get => self == MetaStatus::Miss,
            MetaVerb::Set | MetaVerb::Delete => self == MetaStatus::Done,
            MetaVerb::Arithmetic => matches!(self, MetaStatus::Done | MetaStatus::Value),
            MetaVerb::Debug => false,
        }
    }
}
