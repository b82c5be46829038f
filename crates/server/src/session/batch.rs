//! The commands of one round, parsed and with their keys hashed, before any of them is executed.
//!
//! This is what makes the two passes of a round possible: [`crate::session::Session::scan`] fills a batch from one or many
//! connections' bytes, and [`Batch::execute`] carries it out in order. Keys lie in one flat list across all commands,
//! and at every [`PREFETCH_KEYS`]th key the processor is asked for the index lines, then for the items, of that many
//! keys ahead. Memory latency is then paid once per window instead of once per key.
//!
//! Invariants: a key is hashed once. Steps are executed in the order they were scanned. A batch borrows the bytes it was
//! scanned from, and its two lists are kept from round to round ([`Batch::recycle`]), so that nothing is allocated per
//! request.

use crate::observe::metrics::latency::CommandClass;
use crate::session::admin_command::AdminCommand;
use crate::session::binary;
use crate::session::binary::BinaryStep;
use crate::session::context::SessionContext;
use crate::session::crawl::CrawlCommand;
use crate::session::execute;
use crate::session::execute::AdminOutcome;
use lookaside_protocol::{Command, Operation};
use lookaside_store::{HashedKey, Now};

/// How many keys are prefetched at a time: enough to hide memory latency, few enough to stay in the first cache.
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
    /// How many keys of that step are answered already.
    step_keys_done: usize,
    /// The key that is looked up next.
    key_next: usize,
    /// Keys before this one have been prefetched.
    key_prefetched: usize,
}

/// One command, or the refusal of one.
pub(crate) struct Step<'b> {
    /// Where in its connection's bytes it begins.
    input_at: usize,
    /// How many keys of the batch are its own.
    keys_count: usize,
    pub(crate) action: Action<'b>,
}

/// What a step does.
pub(crate) enum Action<'b> {
    Command(Command<'b>),
    AdminCommand(AdminCommand<'b>, Option<Box<CrawlCommand>>),
    Binary(BinaryStep<'b>),
    /// Says `line`; a set that was too large drops its key's old value too.
    Refuse {
        line: Option<&'static str>,
        close: bool,
    },
}

/// How far [`Batch::execute`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Every step up to the given one has been answered.
    Done,
    /// The reply has reached its bound: send it, then go on or take the [`Batch::remainder`].
    Full,
    /// The session is over once the reply is sent.
    Close,
    /// A walk over all keys has had its turn: as `Full`, but others come first.
    Yield,
}

/// The part of a connection's bytes that a paused execution leaves for later.
#[derive(Debug, PartialEq, Eq)]
pub struct Unexecuted {
    /// What to put in front of the bytes: the verb of a get that was cut off between two keys.
    pub prefix: Vec<u8>,
    /// Where in the connection's bytes the rest begins.
    pub input_at: usize,
}

impl<'b> Batch<'b> {
    /// Whether no further command should be scanned into this batch.
    pub fn is_full(&self) -> bool {
        self.keys.len() >= PREFETCH_KEYS || self.steps.len() >= STEPS_MAX
    }

    /// How many steps it holds: what [`Batch::execute`] takes as its end.
    pub fn steps_count(&self) -> usize {
        self.steps.len()
    }

    /// Forgets all steps and keeps the memory, for bytes of another lifetime.
    pub fn recycle<'c>(self) -> Batch<'c> {
        Batch { steps: recycle(self.steps), keys: recycle(self.keys), ..Batch::default() }
    }

    /// Forgets all steps.
    pub fn clear(&mut self) {
        self.steps.clear();
        self.keys.clear();
        (self.step_next, self.step_keys_done, self.key_next, self.key_prefetched) = (0, 0, 0, 0);
    }

    pub(crate) fn push_command(&mut self, input_at: usize, command: Command<'b>) {
        let keys_before = self.keys.len();
        match &command {
            Command::Retrieve { keys, .. } => self.keys.extend(keys.map(HashedKey::new)),
            Command::Single { request, .. } => self.keys.push(HashedKey::new(request.key)),
            _ => {}
        }
        let keys_count = self.keys.len() - keys_before;
        self.steps.push(Step { input_at, keys_count, action: Action::Command(command) });
    }

    /// `crawl` is the walk that the order has begun already, if it has.
    pub(crate) fn push_order(&mut self, input_at: usize, command: AdminCommand<'b>, crawl: Option<Box<CrawlCommand>>) {
        self.steps.push(Step { input_at, keys_count: 0, action: Action::AdminCommand(command, crawl) });
    }

    /// The walk of the step that is executed next: it goes on when the step is scanned again.
    pub(crate) fn take_crawl(&mut self) -> Option<Box<CrawlCommand>> {
        match &mut self.steps.get_mut(self.step_next)?.action {
            Action::AdminCommand(_, crawl) => crawl.take(),
            _ => None,
        }
    }

    /// `key_to_delete` is the key of a refused `set`, whose old value must go.
    pub(crate) fn push_binary(&mut self, input_at: usize, step: BinaryStep<'b>, key_to_delete: Option<&'b [u8]>) {
        let key = step.key().or(key_to_delete);
        self.keys.extend(key.map(HashedKey::new));
        self.steps.push(Step { input_at, keys_count: usize::from(key.is_some()), action: Action::Binary(step) });
    }

    /// `line` is what the client is told, if it wants to know; `outdated` is the key whose old value must go because its replacement was refused.
    pub(crate) fn push_refusal(
        &mut self,
        input_at: usize,
        line: Option<&'static str>,
        close: bool,
        outdated: Option<&'b [u8]>,
    ) {
        self.keys.extend(outdated.map(HashedKey::new));
        let keys_count = usize::from(outdated.is_some());
        self.steps.push(Step { input_at, keys_count, action: Action::Refuse { line, close } });
    }

    /// What the step that is executed next belongs to.
    pub(crate) fn next_latency_class(&self) -> CommandClass {
        self.steps.get(self.step_next).map_or(CommandClass::Other, |step| CommandClass::of(&step.action))
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
    ) -> Progress {
        while self.step_next < steps_end {
            if out.len() >= reply_bytes_max {
                return Progress::Full;
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
                Action::Command(Command::Quit) => return Progress::Close,
                Action::Command(command) => execute::run_command(context, command, keys.first(), now, out),
                Action::AdminCommand(command, crawl) => {
                    match execute::run_admin_command(context, command, crawl, now, reply_bytes_max, out) {
                        AdminOutcome::Done => {}
                        AdminOutcome::Close => return Progress::Close,
                        AdminOutcome::Crawling => return Progress::Yield,
                    }
                }
                Action::Binary(step) => {
                    if binary::execute(context, step, keys.first(), now, out) {
                        return Progress::Close;
                    }
                }
                Action::Refuse { line, close } => {
                    execute::reply_refusal(context, *line, keys.first(), now, out);
                    if *close {
                        return Progress::Close;
                    }
                }
            }
            self.advance(answered);
        }
        Progress::Done
    }

    /// What is left of the bytes of the connection whose steps end before `steps_end`: `None` if all of them have been
    /// answered. `input` must be what these steps were scanned from.
    pub fn remainder(&self, steps_end: usize, input: &[u8]) -> Option<Unexecuted> {
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

    /// Where in their connection's bytes the commands begin that are to be executed before `steps_end`, and which of them
    /// are refused.
    pub(crate) fn command_offsets(&self, steps_end: usize) -> impl Iterator<Item = (usize, bool)> {
        let waiting = self.steps.get(self.step_next..steps_end).unwrap_or_default();
        waiting.iter().map(|step| (step.input_at, matches!(step.action, Action::Refuse { .. })))
    }

    /// Passes over what is left of the steps before `steps_end`: their connection is paused or gone.
    pub fn skip(&mut self, steps_end: usize) {
        while self.step_next < steps_end {
            self.advance(self.steps[self.step_next].keys_count - self.step_keys_done);
            self.key_prefetched = self.key_prefetched.max(self.key_next);
        }
    }

    /// `keys` more of the current step have been answered; without any left, the next step comes.
    fn advance(&mut self, keys: usize) {
        self.key_next += keys;
        self.step_keys_done += keys;
        if self.step_keys_done == self.steps[self.step_next].keys_count {
            self.step_next += 1;
            self.step_keys_done = 0;
        }
    }

    /// Once the keys prefetched are used up, asks for those of the next window: all index lines, then all items.
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

/// The verb, up to the first key, that asks for the rest of a get.
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

/// An empty vector in the memory of `vec`: the standard library collects in place where element sizes agree.
fn recycle<A, B>(mut vec: Vec<A>) -> Vec<B> {
    vec.clear();
    vec.into_iter().map(|_| unreachable!("the vector is empty")).collect()
}
