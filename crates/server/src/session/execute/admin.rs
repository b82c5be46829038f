//! Runs an operator's command ([`AdminCommand`]).

use crate::session::admin_command::{AdminAction, AdminCommand};
use crate::session::context::{ServerControl, SessionContext};
use crate::session::crawl::{CrawlCommand, CrawlKind};
use crate::session::reply;
use lookaside_store::{Now, PageMove};
use std::borrow::Cow;

/// memcached's way to say that it has no sizes.
const TOO_MANY_CRAWLS_FOR_SIZES: &str =
    "STAT sizes_status error\r\nSTAT sizes_error too many crawls are under way\r\nEND";

const BUSY_CRAWLING: &str = "BUSY currently processing crawler request";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminOutcome {
    Done,
    /// The connection is to be closed, or to become a watcher.
    Close,
    /// Its crawl is not finished.
    Crawling,
}

/// The reply or outcome of an action.
enum Response {
    Line(Cow<'static, str>),
    Outcome(AdminOutcome),
}

impl From<&'static str> for Response {
    fn from(line: &'static str) -> Response {
        Response::Line(line.into())
    }
}

/// Runs an operator's command, or continues the crawl that it has started.
pub(crate) fn run_admin_command(
    context: &SessionContext<'_>,
    command: &AdminCommand<'_>,
    crawl: &mut Option<Box<CrawlCommand>>,
    now: Now,
    reply_bytes_max: usize,
    out: &mut Vec<u8>,
) -> AdminOutcome {
    let response = match command.action(context.control.is_crawler_enabled()) {
        AdminAction::Crawl(kind) => match crawl_refusal(context.control, kind) {
            Some(refusal) => refusal.into(),
            None => run_crawl(context, kind, crawl, now, reply_bytes_max, out),
        },
        action => run_action(context, action, now),
    };
    match response {
        Response::Line(line) => {
            if !command.is_quiet() {
                reply::write_line(line.as_bytes(), out);
            }
            AdminOutcome::Done
        }
        Response::Outcome(outcome) => outcome,
    }
}

/// Why keys or sizes may not be listed; `None` if they may.
fn crawl_refusal(control: &dyn ServerControl, kind: CrawlKind) -> Option<&'static str> {
    match kind {
        CrawlKind::Metadump(_) | CrawlKind::Mgdump(_) if !control.allows_key_dump() => {
            Some("ERROR metadump not allowed")
        }
        CrawlKind::Cachedump { .. } if !control.allows_key_dump() => Some("CLIENT_ERROR stats cachedump not allowed"),
        CrawlKind::Sizes if !control.tracks_sizes() => Some("STAT sizes_status disabled\r\nEND"),
        _ => None,
    }
}

fn run_crawl(
    context: &SessionContext<'_>,
    kind: CrawlKind,
    crawl: &mut Option<Box<CrawlCommand>>,
    now: Now,
    reply_bytes_max: usize,
    out: &mut Vec<u8>,
) -> Response {
    if crawl.is_none() {
        *crawl = CrawlCommand::start(context.store, kind, now, out).map(Box::new);
    }
    match crawl {
        Some(crawl) => {
            let is_finished = crawl.step(context, now, reply_bytes_max, out);
            Response::Outcome(if is_finished { AdminOutcome::Done } else { AdminOutcome::Crawling })
        }
        None if kind == CrawlKind::Sizes => TOO_MANY_CRAWLS_FOR_SIZES.into(),
        None => BUSY_CRAWLING.into(),
    }
}

/// Runs any action but a crawl.
fn run_action(context: &SessionContext<'_>, action: AdminAction, now: Now) -> Response {
    let control = context.control;
    let line = match action {
        AdminAction::Crawl(_) => unreachable!("crawls are run step by step"),
        AdminAction::MovePage { from, to } => match context.store.move_page(from, to, now) {
            PageMove::Moved => "OK",
            PageMove::Busy => "BUSY currently processing reassign request",
            PageMove::NoSpare => "NOSPARE source class has no spare pages",
            PageMove::BadClass => "BADCLASS invalid src or dst class id",
        },
        AdminAction::Automove(is_on) => {
            context.store.set_rebalance_enabled(is_on);
            "OK"
        }
        AdminAction::VoidLeases => {
            context.store.void_leases(now);
            context.counters.cmd_lease_void_all.add(1);
            "OK"
        }
        AdminAction::Line(line) => line,
        AdminAction::ReclaimExpired(classes) => match control.reclaim_expired(classes, now) {
            true => "OK",
            false => BUSY_CRAWLING,
        },
        AdminAction::SetCrawlerEnabled(is_enabled) => {
            control.set_crawler_enabled(is_enabled);
            "OK"
        }
        AdminAction::MemoryLimit(megabytes) => match control.set_memory_limit(megabytes) {
            true => "OK",
            false => "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust",
        },
        AdminAction::ShutDown if control.shut_down() => return Response::Outcome(AdminOutcome::Close),
        AdminAction::ShutDownBadMode if control.allows_shutdown() => "CLIENT_ERROR invalid shutdown mode",
        AdminAction::ShutDown | AdminAction::ShutDownBadMode => "SERVER_ERROR: shutdown not enabled",
        AdminAction::Watch(kinds) => match control.watch_refusal() {
            Some(refusal) => refusal,
            // The watchers' thread replies, once all threads record.
            None if context.events.connection.request_watch(kinds) => {
                return Response::Outcome(AdminOutcome::Close);
            }
            None => "ERROR",
        },
        AdminAction::RefreshCertificates => match control.refresh_certificates() {
            Ok(()) => "OK",
            Err(why) => return Response::Line(why.into()),
        },
    };
    line.into()
}
