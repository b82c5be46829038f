//! What is remembered of a spool elsewhere, if its files are a cache that another invalidator does not have (ADR 015).
//!
//! Serves the start of an invalidator that takes the place of another one. The clusters' positions alone do not show
//! that a loss was met: the log of a promoted server may have grown beyond them since.

use crate::SourceError;
use lookaside_routing::BoxFuture;

/// The marks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpoolMarksState {
    /// How many losses were met: the epoch of the log.
    pub losses: u64,
    /// Why the last of them happened; empty if none has.
    pub loss_reason: String,
    /// Whether a first start is about to begin. Means nothing once a cluster has a position.
    pub is_starting: bool,
}

/// Stores the marks.
pub trait SpoolMarks: Send + Sync {
    /// What is stored.
    fn state(&self) -> SpoolMarksState;

    /// Replaces them. Once this returns, every later reader of the log will have them.
    fn save(&self, marks: SpoolMarksState) -> BoxFuture<'_, Result<(), SourceError>>;
}
