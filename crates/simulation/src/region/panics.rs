//! Records panics. A task that panics closes one connection, and its peer reconnects, so it would go unnoticed.

use std::{cell::RefCell, panic, sync::Once};

thread_local! {
    /// The messages of this thread's run. A run has one thread of its own.
    static MESSAGES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

pub(crate) struct PanicWatcher(());

impl PanicWatcher {
    pub(crate) fn install() -> PanicWatcher {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let default_hook = panic::take_hook();
            panic::set_hook(Box::new(move |panic| {
                MESSAGES.with_borrow_mut(|messages| messages.push(panic.to_string()));
                default_hook(panic);
            }));
        });
        MESSAGES.take();
        PanicWatcher(())
    }

    pub(crate) fn first(&self) -> Option<String> {
        MESSAGES.with_borrow(|messages| messages.first().cloned())
    }
}
