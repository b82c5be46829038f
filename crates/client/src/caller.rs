//! Whether a request's caller has gone, for what is in front of its server. A lookup whose caller was dropped goes on
//! in the background, since its reply may bring a lease that is to be released; but what has not been sent by then
//! needs not be sent at all.
//!
//! The caller is known to all that a task polls on its behalf, as in a task-local, without a parameter in every route.

use std::{
    cell::RefCell,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
};
use tokio::sync::Notify;

thread_local! {
    /// The caller of the future that is polled now; `None` if it cannot go without the future being dropped.
    static CURRENT: RefCell<Option<Caller>> = const { RefCell::new(None) };
}

/// The caller of a request. Clones are the same caller.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caller(Arc<CallerState>);

#[derive(Debug, Default)]
struct CallerState {
    is_gone: AtomicBool,
    leaving: Notify,
}

impl Caller {
    /// The caller of the future that is polled now; `None` if it has none.
    pub(crate) fn current() -> Option<Caller> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// A future that is polled for this caller.
    pub(crate) fn scope<F>(&self, future: F) -> CallerScope<F> {
        CallerScope { caller: Some(self.clone()), future }
    }

    pub(crate) fn leave(&self) {
        self.0.is_gone.store(true, Relaxed);
        self.0.leaving.notify_waiters();
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.0.is_gone.load(Relaxed)
    }

    /// Waits until it has gone; for ever if there is none.
    pub(crate) async fn gone(caller: Option<&Caller>) {
        let Some(caller) = caller else { return std::future::pending().await };
        let leaving = caller.0.leaving.notified();
        tokio::pin!(leaving);
        leaving.as_mut().enable();
        if !caller.is_gone() {
            leaving.await;
        }
    }
}

/// A future that is polled for no caller, so that it is finished although its caller has gone.
pub(crate) fn detach<F>(future: F) -> CallerScope<F> {
    CallerScope { caller: None, future }
}

/// A future that is polled for a caller.
pub(crate) struct CallerScope<F> {
    /// `None` if it has none.
    caller: Option<Caller>,
    future: F,
}

impl<F: Future + Unpin> Future for CallerScope<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let _until_polled = CurrentCaller { before: CURRENT.replace(self.caller.clone()) };
        Pin::new(&mut self.future).poll(cx)
    }
}

/// The current caller until this is dropped, which restores the one before.
struct CurrentCaller {
    before: Option<Caller>,
}

impl Drop for CurrentCaller {
    fn drop(&mut self) {
        CURRENT.set(self.before.take());
    }
}
