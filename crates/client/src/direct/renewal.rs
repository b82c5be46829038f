//! The task that keeps a direct client permitted: it asks a router for a permit, again and again.
//!
//! | the router | next |
//! |---|---|
//! | permits what the client can use | it is used for all else, too, and asked again |
//! | refuses, or permits what the client cannot use: another configuration, other options | the next router at once; its connection is kept |
//! | does not answer | the next router at once |
//!
//! A router that refuses, while it waits for the invalidator, may refuse all else, too. When all have been asked in
//! vain, it asks again after a moment. When the configuration names other routers, it begins with those at once; a
//! permit that a former one has given holds until its end, as that router counts on it.

use super::permission::{DirectState, UnusedPermit};
use super::permit::{PERMIT_DURATION, PERMIT_KEY, PermitReply};
use crate::command_connection::{CommandConnection, CommandError};
use lookaside_protocol::Reply;
use lookaside_protocol::text::{Limits, ReplyPart};
use lookaside_routing::Address;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Between two requests: one that is lost does not end the permission.
const RENEWAL_INTERVAL: Duration = Duration::from_millis(70);
/// Between two requests to a router while none answers, or none knows of permits.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// A thousand fenced servers fit.
const LIMITS: Limits = Limits { value_bytes_max: 1 << 20, line_bytes_max: 2_048 };

/// A router's reply to a request for a permit.
enum RouterReply {
    Understood(PermitReply),
    /// It is malformed, or of a later router, and restricts what this client does not know.
    NotUnderstood,
    /// A miss: the router does not know of permits, nor of leases for plain clients.
    KnowsNone,
}

impl RouterReply {
    /// Whether the router takes leases for plain clients; `None` if it does not say.
    fn takes_leases(&self) -> Option<bool> {
        match self {
            RouterReply::Understood(reply) => reply.takes_leases(),
            RouterReply::NotUnderstood => None,
            RouterReply::KnowsNone => Some(false),
        }
    }
}

/// A router that is asked.
#[derive(Default)]
struct AskedRouter {
    connection: Option<CommandConnection>,
    /// Why the client could not read directly when that was last logged.
    logged: Option<String>,
}

/// Renews the permit. Never returns.
pub(super) async fn renew_permits(state: Arc<DirectState>) {
    let mut list = state.settings.routers.list();
    let mut asked: BTreeMap<Address, AskedRouter> = BTreeMap::new();
    let mut router = 0;
    // Routers in a row that gave no permit of use, and whether one of them answered.
    let (mut failures, mut is_answered) = (0, false);
    loop {
        let newest = state.settings.routers.list();
        if !Arc::ptr_eq(&newest, &list) {
            list = newest;
            asked.retain(|address, _| list.addresses().any(|router| router == address));
            (router, failures, is_answered) = (list.preferred(), 0, false);
        }
        if list.count() == 0 {
            state.settings.routers.replaced().await;
            continue;
        }
        let address = list.address(router);
        let of_router = asked.entry(address.clone()).or_default();
        let requested_at = Instant::now();
        let reply = request_permit(&state, address, &mut of_router.connection).await;
        is_answered |= matches!(reply, Ok(RouterReply::Understood(_)));
        if let Ok(Some(takes_leases)) = reply.as_ref().map(RouterReply::takes_leases) {
            state.settings.leases.record(takes_leases, requested_at);
        }
        let interval = if apply_reply(&state, address, &reply, requested_at, &mut of_router.logged) {
            list.prefer(router);
            failures = 0;
            RENEWAL_INTERVAL
        } else {
            router = (router + 1) % list.count();
            failures += 1;
            match failures % list.count() {
                0 if is_answered => RENEWAL_INTERVAL,
                0 => RETRY_INTERVAL,
                _ => Duration::ZERO,
            }
        };
        if interval > Duration::ZERO {
            is_answered = false;
            state.first_reply.notify_one();
        }
        let (routers, next) = (&state.settings.routers, requested_at + interval);
        // It may resolve for a replacement that the list already is.
        while Arc::ptr_eq(&routers.list(), &list) && timeout_at(next, routers.replaced()).await.is_ok() {}
    }
}

/// Asks one router for a permit. After an error the connection is of no more use.
async fn request_permit(
    state: &DirectState,
    router: &Address,
    open: &mut Option<CommandConnection>,
) -> Result<RouterReply, CommandError> {
    let mut connection = match open.take() {
        Some(connection) => connection,
        None => {
            let network = state.settings.routers.network();
            CommandConnection::connect(network, router, LIMITS, PERMIT_DURATION).await?
        }
    };
    // A reply that comes later is of no use.
    connection.set_timeout(PERMIT_DURATION);
    connection.send(format!("get {PERMIT_KEY}\r\n").as_bytes()).await?;
    let mut router_reply = RouterReply::KnowsNone;
    let on_part = |part: ReplyPart<'_>| {
        if let ReplyPart::Item { reply: Reply::Value { value, .. }, .. } = part {
            router_reply = PermitReply::parse(value).map_or(RouterReply::NotUnderstood, RouterReply::Understood);
        }
    };
    connection.read_until_end(on_part).await?;
    *open = Some(connection);
    Ok(router_reply)
}

/// Whether the reply permits the client to read servers. `logged` is the reason against it that was logged last, so
/// that each is logged once.
fn apply_reply(
    state: &DirectState,
    router: &Address,
    reply: &Result<RouterReply, CommandError>,
    requested_at: Instant,
    logged: &mut Option<String>,
) -> bool {
    let counters = &state.settings.counters;
    let (counter, is_permitted) = match reply {
        Ok(RouterReply::Understood(PermitReply::Permitted(permit))) => match state.apply(permit, requested_at) {
            Ok(()) => {
                *logged = None;
                (&counters.permits, true)
            }
            Err(UnusedPermit::OtherConfiguration) => (&counters.permits_of_other_configurations, false),
            Err(UnusedPermit::OtherOptions) => {
                let (of_router, of_client) = (&permit.data_options, &state.data_options);
                if is_new(logged, &format!("options {of_router}")) {
                    tracing::warn!(
                        router = %router, of_router, of_client,
                        "the client has other options than the router, so it reads through the router; \
                         give it the same defaults"
                    );
                }
                (&counters.permits_of_other_options, false)
            }
            Err(UnusedPermit::ForRoutersOnly) => {
                if is_new(logged, "for routers only") {
                    tracing::info!(
                        router = %router,
                        "a WarmUpRoute, StagingRoute or L1L2CacheRoute of the configuration is below a route that \
                         changes or copies reads, so the client reads through the routers"
                    );
                }
                (&counters.permits_of_filling_routes, false)
            }
        },
        Ok(RouterReply::Understood(PermitReply::Refused { why, .. })) => {
            if is_new(logged, why) {
                tracing::info!(router = %router, why, "no read permit: the client reads through the routers");
            }
            (&counters.permits_refused, false)
        }
        Ok(RouterReply::NotUnderstood) => {
            tracing::debug!(router = %router, "a read permit that this client does not know; it may need an upgrade");
            (&counters.permits_refused, false)
        }
        Ok(RouterReply::KnowsNone) => {
            tracing::debug!(router = %router, "the router gives no read permits");
            (&counters.permits_unanswered, false)
        }
        Err(error) => {
            tracing::debug!(router = %router, %error, "no read permit");
            (&counters.permits_unanswered, false)
        }
    };
    counter.add(1);
    is_permitted
}

/// Whether a reason is another one than the last, which it replaces.
fn is_new(logged: &mut Option<String>, reason: &str) -> bool {
    let is_new = logged.as_deref() != Some(reason);
    if is_new {
        *logged = Some(reason.to_owned());
    }
    is_new
}
