//! Asks another router of the cluster for its coverage, over a connection of its own. No request of a client passes
//! here.
//!
//! ```text
//!   get __mcrouter__.coverage        its report
//!   get __mcrouter__.coverage(ID)    the text of a configuration that it covers
//! ```

use super::report::CoverageReport;
use crate::admin_key::ADMIN_KEY_PREFIX;
use lookaside_client::config::ConfigId;
use lookaside_client::{CommandConnection, CommandError, Network};
use lookaside_protocol::Reply;
use lookaside_protocol::text::{Limits, ReplyPart};
use lookaside_routing::Address;
use std::fmt;
use std::time::Duration;

/// The limit on connecting, and on each reply.
pub(super) const POLL_TIMEOUT: Duration = Duration::from_secs(1);
/// A longer report, or a longer configuration, is malformed.
const LIMITS: Limits = Limits { value_bytes_max: 16 << 20, line_bytes_max: 2_048 };

#[derive(Debug)]
pub(crate) enum PollError {
    Connection(CommandError),
    /// It does not know the key.
    NotSupported,
    Invalid(String),
}

impl fmt::Display for PollError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PollError::Connection(error) => error.fmt(f),
            PollError::NotSupported => f.write_str("it does not report which configurations it covers; upgrade it"),
            PollError::Invalid(why) => write!(f, "its report is invalid: {why}"),
        }
    }
}

impl From<CommandError> for PollError {
    fn from(error: CommandError) -> PollError {
        PollError::Connection(error)
    }
}

/// A connection to a peer.
pub(crate) struct PeerConnection(CommandConnection);

impl PeerConnection {
    pub(super) async fn connect(network: &dyn Network, peer: &Address) -> Result<PeerConnection, PollError> {
        Ok(PeerConnection(CommandConnection::connect(network, peer, LIMITS, POLL_TIMEOUT).await?))
    }

    /// The peer's report.
    pub(super) async fn report(&mut self) -> Result<CoverageReport, PollError> {
        let value = self.get("coverage").await?.ok_or(PollError::NotSupported)?;
        CoverageReport::parse(&value).map_err(PollError::Invalid)
    }

    /// The text of a configuration; `None` if the peer no longer covers it.
    pub(super) async fn text(&mut self, id: ConfigId) -> Result<Option<String>, PollError> {
        let Some(value) = self.get(&format!("coverage({id})")).await? else { return Ok(None) };
        let text = String::from_utf8(value).map_err(|error| PollError::Invalid(error.to_string()))?;
        match ConfigId::of(&text) {
            Ok(of_text) if of_text == id => Ok(Some(text)),
            _ => Err(PollError::Invalid(format!("the text of {id} has another identity"))),
        }
    }

    async fn get(&mut self, name: &str) -> Result<Option<Vec<u8>>, PollError> {
        self.0.set_timeout(POLL_TIMEOUT);
        let key = [ADMIN_KEY_PREFIX, name.as_bytes()].concat();
        self.0.send(&[b"get ", &key[..], b"\r\n"].concat()).await?;
        let mut found = None;
        let on_part = |part: ReplyPart<'_>| {
            if let ReplyPart::Item { reply: Reply::Value { value, .. }, .. } = part {
                found = Some(value.to_vec());
            }
        };
        self.0.read_until_end(on_part).await?;
        Ok(found)
    }
}
