//! The command lines of a connection, by the replies that they get. Serves every path.

use super::meta_translation as meta;
use bytes::Bytes;
use lookaside_protocol::Operation;
use lookaside_routing::Protocol;

/// One command line that has been sent, or is being composed.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentLine {
    pub(super) requests: usize,
    pub(super) kind: LineKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineKind {
    /// Answered by items and an END.
    Retrieve,
    /// Answered by one line.
    Single,
    /// Answered by one line; a data block followed the command line.
    SingleWithData,
    /// A classic request, sent as a meta command; the reply is a meta reply.
    Translated,
    /// The same with a data block.
    TranslatedWithData,
    /// A `version` that belongs to no request.
    Version,
}

impl LineKind {
    pub(super) fn of(operation: &Operation<Bytes>, protocol: Protocol) -> LineKind {
        match operation {
            Operation::Store { .. } if protocol == Protocol::Meta => LineKind::TranslatedWithData,
            other if protocol == Protocol::Meta && meta::is_translated(other) => LineKind::Translated,
            Operation::Get { .. } | Operation::GetAndTouch { .. } | Operation::LeaseGet => LineKind::Retrieve,
            Operation::Store { .. } | Operation::LeaseSet { .. } => LineKind::SingleWithData,
            Operation::Meta(meta) if meta.value.is_some() => LineKind::SingleWithData,
            _ => LineKind::Single,
        }
    }

    pub(super) fn is_translated(self) -> bool {
        matches!(self, LineKind::Translated | LineKind::TranslatedWithData)
    }

    pub(super) fn has_data(self) -> bool {
        matches!(self, LineKind::SingleWithData | LineKind::TranslatedWithData)
    }
}
