//! The commands of one round, parsed and with their keys hashed, before any of them is executed.
//!
//! [`Session::scan`](crate::session::Session::scan) fills a batch from the input of one or many connections, and
//! [`Batch::execute`] runs it in order. The keys of all commands are in one flat list. At every [`PREFETCH_KEYS`]th key
//! the processor prefetches the index lines, then the items, of the next [`PREFETCH_KEYS`] keys: memory latency is paid
//! once per window, not once per key.
//!
//! Invariants: each key is hashed once. Steps are executed in the order in which they were scanned. A batch borrows the
//! input that it was scanned from, and keeps the memory of its two lists from round to round ([`Batch::recycle`]): a
//! request allocates nothing.

use crate::observe::metrics::latency::CommandClass;
use crate::session::admin_command::AdminCommand;
use crate::session::binary::{self, BinaryStep};
use crate::session::context::SessionContext;
use crate::session::crawl::CrawlCommand;
use crate::session::execute;
use crate::session::execute::admin::{AdminOutcome, run_admin_command};
use lookaside_protocol::text::CloseReason;
use lookaside_protocol::{Command, Operation};
use lookaside_store::{HashedKey, KeyHasher, Now};

/// Keys prefetched at a time: enough to hide memory latency, few enough to stay in the L1 cache.
pub const PREFETCH_KEYS: usize = 64;

/// A batch takes no more commands once it holds this many, with or without keys.
const STEPS_MAX: usize = 256;

/// Commands waiting to be executed.
#[derive(Default)]
pub struct Batch<'b> {
    steps: Vec<Step<'b>>,
    keys: Vec<HashedKey<'b>>,
    /// The step that is executed next.
    step_next: usize,
    /// The number of keys of that step that are answered.
    step_keys_done: usize,
    /// The key that is looked up next.
    key_next: usize,
    /// Keys before this one have been prefetched.
    key_prefetched: usize,
}

/// One command, or the refusal of one.
pub(crate) struct Step<'b> {
    /// Where it begins in its connection's input.
    input_at: usize,
    /// The number of its keys in the batch.
    keys_count: usize,
    pub(crate) action: Action<'b>,
}

pub(crate) enum Action<'b> {
    Command(Command<'b>),
    AdminCommand(AdminCommand<'b>, Option<Box<CrawlCommand>>),
    Binary(BinaryStep<'b>),
    /// Replies with `line`. The step's key, if it has one, is that of a set that was too large: its old value is
    /// deleted.
    ReplyLine {
        line: Option<&'static str>,
        /// `None` if the connection stays open.
        close: Option<CloseReason>,
        /// It is a store that was refused for its size.
        is_too_large: bool,
    },
}

/// How far [`Batch::execute`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchProgress {
    /// Every step up to the given one has been answered.
    Done,
    /// The reply has reached its bound: send it, then continue, or take [`Batch::unexecuted`].
    Full,
    /// The connection is to be closed once the reply is sent.
    Close,
    /// A crawl has done one step: as `Full`, but other connections come first.
    Yield,
}

/// The part of a connection's input that a paused execution leaves for later.
#[derive(Debug, PartialEq, Eq)]
pub struct Unexecuted {
    /// To be put in front of it: the verb of a get that was cut off between two keys.
    pub prefix: Vec<u8>,
    /// Where it begins in the connection's input.
    pub input_at: usize,
}

impl<'b> Batch<'b> {
    /// Whether no further command should be added.
    pub fn is_full(&self) -> bool {
        self.keys.len() >= PREFETCH_KEYS || self.steps.len() >= STEPS_MAX
    }

    /// The number of steps: the end for [`Batch::execute`].
    pub fn steps_count(&self) -> usize {
        self.steps.len()
    }

    /// Removes all steps and keeps the memory, for input of another lifetime.
    pub fn recycle<'c>(self) -> Batch<'c> {
        Batch { steps: recycle(self.steps), keys: recycle(self.keys), ..Batch::default() }
    }

    /// Removes all steps.
    pub fn clear(&mut self) {
        self.steps.clear();
        self.keys.clear();
        (self.step_next, self.step_keys_done, self.key_next, self.key_prefetched) = (0, 0, 0, 0);
    }

    pub(crate) fn push_command(&mut self, hasher: &KeyHasher, input_at: usize, command: Command<'b>) {
        let keys_before = self.keys.len();
        match &command {
            Command::Retrieve { keys, .. } => self.keys.extend(keys.map(|key| hasher.hash(key))),
            Command::Single { request, .. } => self.keys.push(hasher.hash(request.key)),
            _ => {}
        }
        let keys_count = self.keys.len() - keys_before;
        self.steps.push(Step { input_at, keys_count, action: Action::Command(command) });
    }

    /// `crawl` is the crawl that the command has started already, if any.
    pub(crate) fn push_admin_command(
        &mut self,
        input_at: usize,
        command: AdminCommand<'b>,
        crawl: Option<Box<CrawlCommand>>,
    ) {
        self.steps.push(Step { input_at, keys_count: 0, action: Action::AdminCommand(command, crawl) });
    }

    /// Takes the crawl of the step that is executed next. It continues when the step is scanned again.
    pub(crate) fn take_crawl(&mut self) -> Option<Box<CrawlCommand>> {
        match &mut self.steps.get_mut(self.step_next)?.action {
            Action::AdminCommand(_, crawl) => crawl.take(),
            _ => None,
        }
    }

    /// `key_to_delete` is the key of a refused `set`, whose old value must be deleted.
    pub(crate) fn push_binary(
        &mut self,
        hasher: &KeyHasher,
        input_at: usize,
        step: BinaryStep<'b>,
        key_to_delete: Option<&'b [u8]>,
    ) {
        let key = step.key().or(key_to_delete);
        self.keys.extend(key.map(|key| hasher.hash(key)));
        self.steps.push(Step { input_at, keys_count: usize::from(key.is_some()), action: Action::Binary(step) });
    }

    /// Adds a command whose reply is known already: `line`; `None` if the client wants none.
    pub(crate) fn push_line(&mut self, input_at: usize, line: Option<&'static str>, close: Option<CloseReason>) {
        let action = Action::ReplyLine { line, close, is_too_large: false };
        self.steps.push(Step { input_at, keys_count: 0, action });
    }

    /// The same for a store that was refused for its size. `key_to_delete` is the key of a `set`, whose old value must
    /// be deleted.
    pub(crate) fn push_too_large(
        &mut self,
        hasher: &KeyHasher,
        input_at: usize,
        line: Option<&'static str>,
        key_to_delete: Option<&'b [u8]>,
    ) {
        self.keys.extend(key_to_delete.map(|key| hasher.hash(key)));
        let keys_count = usize::from(key_to_delete.is_some());
        let action = Action::ReplyLine { line, close: None, is_too_large: true };
        self.steps.push(Step { input_at, keys_count, action });
    }

    pub(crate) fn next_latency_class(&self) -> CommandClass {
        self.steps.get(self.step_next).map_or(CommandClass::Other, |step| class_of(&step.action))
    }

    /// Executes the steps before `steps_end` and appends their replies to `out`, stopping early once `out` holds
    /// `reply_bytes_max` bytes or more. The last item may exceed the bound by its own size.
    pub fn execute(
        &mut self,
        context: &SessionContext<'_>,
        now: Now,
        steps_end: usize,
        reply_bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> BatchProgress {
        while self.step_next < steps_end {
            if out.len() >= reply_bytes_max {
                return BatchProgress::Full;
            }
            self.prefetch(context, now);
            let step = &mut self.steps[self.step_next];
            let keys_end = self.key_next + step.keys_count - self.step_keys_done;
            let keys = &self.keys[self.key_next..keys_end.min(self.key_prefetched)];
            let mut answered = keys.len();
            match &mut step.action {
                Action::Command(Command::Retrieve { operation, .. }) => {
                    answered = execute::retrieve(context, operation, keys, now, reply_bytes_max, out);
                    if self.step_keys_done + answered == step.keys_count {
                        out.extend_from_slice(lookaside_protocol::text::END);
                    }
                }
                Action::Command(Command::Quit) => return BatchProgress::Close,
                Action::Command(command) => execute::run_command(context, command, keys.first(), now, out),
                Action::AdminCommand(command, crawl) => {
                    match run_admin_command(context, command, crawl, now, reply_bytes_max, out) {
                        AdminOutcome::Done => {}
                        AdminOutcome::Close => return BatchProgress::Close,
                        AdminOutcome::Crawling => return BatchProgress::Yield,
                    }
                }
                Action::Binary(step) => {
                    if binary::execute(context, step, keys.first(), now, out) {
                        return BatchProgress::Close;
                    }
                }
                Action::ReplyLine { line, close, is_too_large } => {
                    if *is_too_large {
                        context.counters.store_too_large.add(1);
                    }
                    execute::write_reply_line(context, *line, keys.first(), now, out);
                    if let Some(reason) = close {
                        count_close(context, *reason);
                        return BatchProgress::Close;
                    }
                }
            }
            self.advance(answered);
        }
        BatchProgress::Done
    }

    /// The unexecuted input of the connection whose steps end before `steps_end`; `None` if all of them are answered.
    /// `input` must be the bytes that these steps were scanned from.
    pub fn unexecuted(&self, steps_end: usize, input: &[u8]) -> Option<Unexecuted> {
        if self.step_next >= steps_end {
            return None;
        }
        let step = &self.steps[self.step_next];
        if self.step_keys_done == 0 {
            return Some(Unexecuted { prefix: Vec::new(), input_at: step.input_at });
        }
        let key_at = self.keys[self.key_next].key().as_ptr() as usize - input.as_ptr() as usize;
        Some(Unexecuted { prefix: resumed_verb(&step.action), input_at: key_at })
    }

    /// Where the commands before `steps_end` that are not executed yet begin in their connection's input, and whether
    /// each is refused.
    pub(crate) fn command_offsets(&self, steps_end: usize) -> impl Iterator<Item = (usize, bool)> {
        let waiting = self.steps.get(self.step_next..steps_end).unwrap_or_default();
        waiting.iter().map(|step| (step.input_at, matches!(step.action, Action::ReplyLine { .. })))
    }

    /// Skips the remaining steps before `steps_end`: their connection is paused or closed.
    pub fn skip(&mut self, steps_end: usize) {
        while self.step_next < steps_end {
            self.advance(self.steps[self.step_next].keys_count - self.step_keys_done);
            self.key_prefetched = self.key_prefetched.max(self.key_next);
        }
    }

    /// Counts `keys` more keys of the current step as answered, and moves to the next step after the last one.
    fn advance(&mut self, keys: usize) {
        self.key_next += keys;
        self.step_keys_done += keys;
        if self.step_keys_done == self.steps[self.step_next].keys_count {
            self.step_next += 1;
            self.step_keys_done = 0;
        }
    }

    /// Once the prefetched keys are used up, prefetches those of the next window: all index lines, then all items.
    fn prefetch(&mut self, context: &SessionContext<'_>, now: Now) {
        if self.key_next < self.key_prefetched || self.key_next == self.keys.len() {
            return;
        }
        let window_end = self.keys.len().min(self.key_next + PREFETCH_KEYS);
        let window = &mut self.keys[self.key_next..window_end];
        if let Some(sampler) = context.sampler {
            sampler.sample_keys(window);
        }
        if window.len() > 1 {
            context.store.reader(now).prefetch(window);
        }
        self.key_prefetched = window_end;
    }
}

fn count_close(context: &SessionContext<'_>, reason: CloseReason) {
    match reason {
        CloseReason::ForeignProtocol => context.counters.closed_foreign_protocol.add(1),
        CloseReason::LineTooLong => context.counters.closed_long_line.add(1),
    }
}

/// The verb, up to the first key, that requests the remaining keys of a get.
fn resumed_verb(action: &Action<'_>) -> Vec<u8> {
    let Action::Command(Command::Retrieve { operation, .. }) = action else {
        unreachable!("only a get has several keys");
    };
    match operation {
        Operation::GetAndTouch { exptime, cas: false } => format!("gat {exptime} ").into_bytes(),
        Operation::GetAndTouch { exptime, cas: true } => format!("gats {exptime} ").into_bytes(),
        Operation::LeaseGet => b"lease-get ".to_vec(),
        Operation::Get { cas: true } => b"gets ".to_vec(),
        _ => b"get ".to_vec(),
    }
}

/// The class under which a step's latency is counted.
fn class_of(action: &Action<'_>) -> CommandClass {
    let operation = match action {
        Action::Command(Command::Retrieve { operation, .. }) => operation,
        Action::Command(Command::Single { request, .. }) => &request.operation,
        Action::Binary(step) => return step.latency_class(),
        _ => return CommandClass::Other,
    };
    match operation {
        Operation::Get { .. } => CommandClass::Get,
        Operation::GetAndTouch { .. } | Operation::Touch { .. } => CommandClass::Touch,
        Operation::LeaseGet => CommandClass::LeaseGet,
        Operation::LeaseSet { .. } => CommandClass::LeaseSet,
        Operation::Store { .. } => CommandClass::Store,
        Operation::Delete { .. } => CommandClass::Delete,
        Operation::Arithmetic { .. } => CommandClass::Arithmetic,
        Operation::Meta(_) => CommandClass::Meta,
    }
}

/// An empty vector in the memory of `vec`: the standard library collects in place if element sizes agree.
fn recycle<A, B>(mut vec: Vec<A>) -> Vec<B> {
    vec.clear();
    vec.into_iter().map(|_| unreachable!("the vector is empty")).collect()
}
