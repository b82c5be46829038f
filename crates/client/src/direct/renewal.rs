//! The task that keeps a direct client permitted: it asks a router for a permit, again and again. If the router does not
//! answer, it asks the next one.

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
/// Between two requests while no router answers, or none gives permits.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// A thousand fenced servers fit.
const LIMITS: Limits = Limits { value_bytes_max: 1 << 20, line_bytes_max: 2_048 };

/// Renews the permit. Never returns.
pub(super) async fn renew_permits(state: Arc<DirectState>) {
    let (mut router, mut failures) = (0, 0);
    let mut connection = None;
    loop {
        let requested_at = Instant::now();
        match request_permit(&state, router, &mut connection).await {
            Ok(reply) => {
                apply_reply(&state, &reply, requested_at);
                state.routers.prefer(router);
                failures = 0;
            }
            Err(error) => {
                tracing::debug!(router = %state.routers.address(router), %error, "no read permit");
                state.counters.permits_unanswered.add(1);
                connection = None;
                router = (router + 1) % state.routers.count();
                failures += 1;
            }
        }
        let is_retry = failures > 0 && failures % state.routers.count() == 0;
        let interval = match (failures, is_retry) {
            (0, _) => RENEWAL_INTERVAL,
            // The next router at once.
            (_, false) => Duration::ZERO,
            (_, true) => RETRY_INTERVAL,
        };
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

fn apply_reply(state: &DirectState, reply: &PermitReply, requested_at: Instant) {
    let counters = &state.counters;
    match reply {
        PermitReply::Permitted(permit) => match state.apply(permit, requested_at) {
            true => counters.permits.add(1),
            false => counters.permits_of_other_configurations.add(1),
        },
        PermitReply::Refused(_) => counters.permits_refused.add(1),
    }
}
