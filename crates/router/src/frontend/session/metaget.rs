//! The reply to a `metaget` ([`crate::frontend::metaget`]).

use super::batch::BatchInProgress;
use super::{Session, SessionEnd, WRITE_BYTES_MAX};
use crate::admin_key::is_admin_key;
use lookaside_protocol::Keys;

impl Session<'_> {
    /// Writes a line for each key that was found, and the end. The router's own keys have no metadata.
    pub(super) async fn reply_to_metaget(
        &mut self,
        keys: &[u8],
        batch: &mut BatchInProgress,
    ) -> Result<(), SessionEnd> {
        let mut error_line = None;
        for key in Keys::from_checked(keys).filter(|key| !is_admin_key(key)) {
            let outcome = self.next_outcome_or_route(batch).await;
            let unix_s = self.context.tree().config().map_or(0, |config| config.host().unix_s_now());
            let line = self.reply_writer().write_metadata(key, unix_s, outcome);
            error_line = error_line.or(line);
            if self.out.len() >= WRITE_BYTES_MAX {
                self.write().await?;
            }
        }
        self.reply_writer().end_get(error_line);
        Ok(())
    }
}
