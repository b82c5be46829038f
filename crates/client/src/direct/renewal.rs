//! The task that keeps a direct client permitted: it asks a router for a permit, again and again.
//!
//! | the router | next |
//! |---|---|
//! | permits what the client can use | it is used for all else, too, and asked again |
//! | refuses, or permits another configuration | the next router at once; its connection is kept |
//! | does not answer | the next router at once |
//!
//! A router that refuses, while it waits for the invalidator, may refuse all else, too. When all have been asked in vain,
//! it asks again after a moment.

use super::permission::DirectState;
use super::permit::{PERMIT_DURATION, PERMIT_KEY, PermitReply};
use crate::command_connection::{CommandConnection, CommandError};
use lookaside_protocol::Reply;
use lookaside_protocol::text::{Limits, ReplyPart};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Between two requests: one that is lost does not end the permission.
const RENEWAL_INTERVAL: Duration = Duration::from_millis(70);
/// Between two requests to a router while none answers, or none knows of permits.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// A thousand fenced servers fit.
const LIMITS: Limits = Limits { value_bytes_max: 1 << 20, line_bytes_max: 2_048 };

/// Renews the permit. Never returns.
pub(super) async fn renew_permits(state: Arc<DirectState>) {
    let mut connections: Vec<Option<CommandConnection>> = Vec::new();
    connections.resize_with(state.routers.count(), || None);
    let mut router = 0;
    // Routers in a row that gave no permit of use, and whether one of them answered.
    let (mut failures, mut is_answered) = (0, false);
    loop {
        let requested_at = Instant::now();
        let reply = request_permit(&state, router, &mut connections[router]).await;
        is_answered |= reply.is_ok();
        let interval = if apply_reply(&state, router, &reply, requested_at) {
            state.routers.prefer(router);
            failures = 0;
            RENEWAL_INTERVAL
        } else {
            router = (router + 1) % state.routers.count();
            failures += 1;
            match failures % state.routers.count() {
                0 if is_answered => RENEWAL_INTERVAL,
                0 => RETRY_INTERVAL,
                _ => Duration::ZERO,
            }
        };
        if interval > Duration::ZERO {
            is_answered = false;
        }
        sleep_until(requested_at + interval).await;
    }
}

/// Asks one router for a permit. After an error the connection is of no more use.
async fn request_permit(
    state: &DirectState,
    router: usize,
    open: &mut Option<CommandConnection>,
) -> Result<PermitReply, CommandError> {
    let mut connection = match open.take() {
        Some(connection) => connection,
        None => {
            let (network, address) = (&*state.settings.network, state.routers.address(router));
            CommandConnection::connect(network, address, LIMITS, PERMIT_DURATION).await?
        }
    };
    // A reply that comes later is of no use.
    connection.set_timeout(PERMIT_DURATION);
    connection.send(format!("get {PERMIT_KEY}\r\n").as_bytes()).await?;
    let mut reply = None;
    let on_part = |part: ReplyPart<'_>| {
        if let ReplyPart::Item { reply: Reply::Value { value, .. }, .. } = part {
            reply = PermitReply::parse(value);
        }
    };
    connection.read_until_end(on_part).await?;
    *open = Some(connection);
    reply.ok_or_else(|| CommandError::Unexpected("the router gives no read permits".to_owned()))
}

/// Whether the reply permits the client to read servers.
fn apply_reply(
    state: &DirectState,
    router: usize,
    reply: &Result<PermitReply, CommandError>,
    requested_at: Instant,
) -> bool {
    let counters = &state.counters;
    let (counter, is_permitted) = match reply {
        Ok(PermitReply::Permitted(permit)) if state.apply(permit, requested_at) => (&counters.permits, true),
        Ok(PermitReply::Permitted(_)) => (&counters.permits_of_other_configurations, false),
        Ok(PermitReply::Refused(_)) => (&counters.permits_refused, false),
        Err(error) => {
            tracing::debug!(router = %state.routers.address(router), %error, "no read permit");
            (&counters.permits_unanswered, false)
        }
    };
    counter.add(1);
    is_permitted
}
