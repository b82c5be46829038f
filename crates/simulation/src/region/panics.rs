//! Panics count: a task that fails ends one connection, the other side makes another, and nobody would notice.

use std::{cell::RefCell, panic, sync::Once};

thread_local! {
    /// The messages of this thread's run. A run has one thread of its own.
    static MESSAGES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Notes the panics of this thread from its beginning on.
pub(super) struct Watch(());

impl Watch {
    pub(super) fn begin() -> Watch {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let usual = panic::take_hook();
            panic::set_hook(Box::new(move |panic| {
                MESSAGES.with_borrow_mut(|messages| messages.push(panic.to_string()));
                usual(panic);
            }));
        });
        MESSAGES.take();
        Watch(())
    }

    /// The first since the beginning.
    pub(super) fn first(&self) -> Option<String> {
        MESSAGES.with_borrow(|messages| messages.first().cloned())
    }
}
