//! The other routers of a cluster: what one owes to a server keeps all of them from reading it.
//!
//! ```text
//!   A: a delete fails at S, is kept
//!      -> every peer at once: will S take it from you?      one says yes: acknowledged
//!      -> nobody can reach S: every peer, HOLD S for me     all have it on disk, S fenced off: acknowledged
//!      ... further deletes of S are acknowledged at once, as long as every peer has confirmed lately
//!      S has carried out everything -> every peer, RELEASE S
//! ```
//!
//! A confirmation counts for half of `peer_timeout` from when it was asked for; a peer holds the server for all of it
//! from when it was told. So whatever is lost or delayed, A stops to acknowledge before a peer stops to hold. A peer
//! that hears nothing of A for so long makes S forget everything, and reads it after that.
//!
//! Invariant: no router reads a server from the moment that any router has acknowledged a delete which it owes it, until the
//! server has carried it out, or has forgotten. If a peer cannot be told, the delete is not acknowledged; it is kept all
//! the same. (An operator may choose to go on without: [`PeerMissing::Ignore`].)
//!
//! All is said over the port for clients ([`super::peer_protocol`]). Every message has a number, so that one which was held up on
//! an old connection does not undo a newer one.

use super::SpoolSettings;
use super::ids::Owner;
use super::peer_protocol;
use super::record::Deletion;
use super::server_log::Server;
use lookaside_client::{Network, Stream};
use lookaside_protocol::Reply;
use lookaside_protocol::text::{Limits, ParsedReply, ReplyPart, parse_reply};
use lookaside_routing::Address;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Questions that travel together: each may cost the peer a sync.
const QUESTIONS_MAX: usize = 50;
/// Batches of deletes that may wait to be passed on by one peer; one more is not.
const RELAYS_WAITING_MAX: usize = 1_000;
/// A run has so many bits of message numbers: more than it can send.
const RUN_SHIFT: u32 = 40;
/// The wait after a peer could not be reached.
const RETRY: Duration = Duration::from_millis(200);
const LIMITS: Limits = Limits { value_bytes_max: 1 << 20, line_bytes_max: 2_048 };

/// What becomes of a delete that must be kept while a peer cannot be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerMissing {
    /// It fails, so that whoever sent it sends it again.
    Fail,
    /// It is acknowledged. The peer, if it lives, may read what was deleted.
    Ignore,
}

/// All other routers of the cluster, as this one tells them.
pub(super) struct Peers {
    owner: Owner,
    /// Of the next message. Grows over restarts.
    sequence: AtomicU64,
    confirmed_for: Duration,
    /// How long a server may take to answer another router.
    limit: Duration,
    missing: PeerMissing,
    peers: Vec<Peer>,
}

struct Peer {
    address: Address,
    /// Servers that it is to hold, and when it was asked for its last confirmation.
    wanted: Mutex<BTreeMap<Address, Option<Instant>>>,
    /// It could not be told the last time.
    is_away: AtomicBool,
    /// There is something to tell.
    demand: Notify,
    /// Counts attempts to tell that failed; changes with those that did not, too.
    progress: watch::Sender<Progress>,
    relay: mpsc::Sender<Relay>,
    relays: Mutex<Option<mpsc::Receiver<Relay>>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    failures: u64,
    successes: u64,
}

/// What this router owes a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Debt {
    /// Nothing: peers may read it.
    Nothing,
    /// Something that it is working off.
    Owed,
    /// Something that it does not work off, as no configuration names the server. Peers hear nothing more of it, and have
    /// the server forget.
    Abandoned,
}

/// Deletes that a peer may carry out instead.
struct Relay {
    questions: Arc<Vec<Vec<u8>>>,
    reply: oneshot::Sender<bool>,
}

impl Peers {
    /// The peers that `settings` name. `owed` are the servers that this router owes something from an earlier run.
    pub(super) fn new(
        (owner, run): (Owner, u64),
        settings: &SpoolSettings,
        owed: impl Iterator<Item = Address> + Clone,
    ) -> Peers {
        let peer = |address: &Address| {
            let (relay, relays) = mpsc::channel(RELAYS_WAITING_MAX);
            Peer {
                address: address.clone(),
                wanted: Mutex::new(owed.clone().map(|server| (server, None)).collect()),
                is_away: AtomicBool::new(false),
                demand: Notify::new(),
                progress: watch::Sender::new(Progress::default()),
                relay,
                relays: Mutex::new(Some(relays)),
            }
        };
        Peers {
            owner,
            sequence: AtomicU64::new(run << RUN_SHIFT),
            confirmed_for: settings.peer_timeout / 2,
            limit: settings.timeout,
            missing: settings.peer_missing,
            peers: settings.peers.iter().map(peer).collect(),
        }
    }

    /// Whether this router calls itself so.
    pub(super) fn is_own(&self, owner: Owner) -> bool {
        self.owner == owner
    }

    pub(super) fn is_alone(&self) -> bool {
        self.peers.is_empty()
    }

    /// Makes sure that no peer reads what `deletions` end at `server`, which this router keeps already. False if a peer
    /// may: then they must not be acknowledged.
    pub(super) async fn assure(&self, server: &Server, deletions: &[Deletion]) -> bool {
        let address = &server.address;
        let may_be_missing = |peer: &Peer| self.missing == PeerMissing::Ignore && peer.is_away();
        let is_assured = |peer: &Peer| may_be_missing(peer) || peer.is_confirmed(address, self.confirmed_for);
        if server.debt() == Debt::Nothing || self.peers.iter().all(is_assured) {
            return true;
        }
        if self.pass_on(address, deletions).await {
            return true;
        }
        self.peers.iter().for_each(|peer| peer.demand(address));
        let deadline = Instant::now() + self.limit;
        for peer in self.peers.iter().filter(|peer| !may_be_missing(peer)) {
            if !peer.confirmation(server, self.confirmed_for, deadline).await && self.missing == PeerMissing::Fail {
                tracing::debug!(peer = %peer.address, server = %address, "a peer could not be told: deletes fail");
                return false;
            }
        }
        true
    }

    /// Asks all peers at once to carry out `deletions`; true when one has. There may be more at the server: those stay.
    pub(super) async fn pass_on(&self, server: &Address, deletions: &[Deletion]) -> bool {
        let ask = |deletion| peer_protocol::delete(self.owner, || self.next_sequence(), server, deletion);
        let Some(questions) = deletions.iter().map(ask).collect::<Option<Vec<_>>>() else { return false };
        let questions: Arc<Vec<Vec<u8>>> = Arc::new(questions.concat());
        let ask = |peer: &Peer| {
            let (reply, answer) = oneshot::channel();
            peer.relay.try_send(Relay { questions: questions.clone(), reply }).ok().map(|()| answer)
        };
        let answers: Vec<_> = self.peers.iter().filter(|peer| !peer.is_away()).filter_map(ask).collect();
        let deadline = Instant::now() + self.limit;
        for answer in answers {
            if let Ok(Ok(true)) = timeout_at(deadline, answer).await {
                return true;
            }
        }
        false
    }

    /// Something may be owed no more.
    pub(super) fn settle(&self) {
        self.peers.iter().for_each(|peer| peer.demand.notify_one());
    }

    pub(super) fn len(&self) -> usize {
        self.peers.len()
    }

    /// Tells the peer of that index what it is to hold, for ever. `debt` says what this router owes a server.
    pub(super) async fn tell(&self, index: usize, network: &dyn Network, debt: &(dyn Fn(&Address) -> Debt + Sync)) {
        let peer = &self.peers[index];
        let Some(mut relays) = lock(&peer.relays).take() else { return std::future::pending().await };
        let mut told = Told {
            peers: self,
            peer,
            connection: None,
            asked_at: Instant::now(),
            unreleased: BTreeSet::new(),
            trouble: String::new(),
        };
        loop {
            let was_connected = told.connection.is_some();
            let mut is_well = told.try_to_tell(network, debt).await;
            if !is_well && was_connected {
                // The peer may only have been restarted.
                is_well = told.try_to_tell(network, debt).await;
            }
            let was_away = peer.is_away.swap(!is_well, Relaxed);
            if was_away == is_well {
                told.say(is_well);
            }
            peer.progress.send_modify(|progress| match is_well {
                true => progress.successes += 1,
                false => progress.failures += 1,
            });
            let pause = if is_well { self.confirmed_for / 2 } else { RETRY };
            tokio::select! {
                biased;
                () = peer.demand.notified() => {}
                relay = relays.recv() => {
                    let relay = relay.expect("the peer itself can send");
                    if relay.reply.is_closed() {
                        continue; // Who asked has given up, and asks again.
                    }
                    let passed_on = told.pass_on(network, &relay.questions).await;
                    if passed_on.is_err() {
                        told.connection = None;
                    }
                    let _ = relay.reply.send(passed_on == Ok(true));
                }
                () = sleep(pause) => {}
            }
        }
    }

    fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Relaxed)
    }
}

impl Peer {
    fn is_away(&self) -> bool {
        self.is_away.load(Relaxed)
    }

    fn wanted(&self) -> MutexGuard<'_, BTreeMap<Address, Option<Instant>>> {
        lock(&self.wanted)
    }

    fn is_confirmed(&self, server: &Address, confirmed_for: Duration) -> bool {
        let asked_at = self.wanted().get(server).copied().flatten();
        asked_at.is_some_and(|at| Instant::now() < at + confirmed_for)
    }

    fn demand(&self, server: &Address) {
        self.wanted().entry(server.clone()).or_default();
        self.demand.notify_one();
    }

    /// Waits until the peer has confirmed, or could not be told, or time is up. Once the server has carried out all that
    /// it is owed, there is nothing to confirm.
    async fn confirmation(&self, server: &Server, confirmed_for: Duration, deadline: Instant) -> bool {
        let is_assured = || self.is_confirmed(&server.address, confirmed_for) || server.debt() == Debt::Nothing;
        let mut progress = self.progress.subscribe();
        let failures = progress.borrow_and_update().failures;
        loop {
            if is_assured() {
                return true;
            }
            match timeout_at(deadline, progress.changed()).await {
                Ok(Ok(())) if progress.borrow_and_update().failures == failures => {}
                _ => return is_assured(),
            }
        }
    }
}

/// One peer, and what it has been told.
struct Told<'a> {
    peers: &'a Peers,
    peer: &'a Peer,
    connection: Option<Connection>,
    /// When it was last asked what it holds.
    asked_at: Instant,
    /// Servers that it may hold and need not.
    unreleased: BTreeSet<Address>,
    /// Why it could not be told the last time.
    trouble: String,
}

impl Told<'_> {
    async fn try_to_tell(&mut self, network: &dyn Network, debt: &(dyn Fn(&Address) -> Debt + Sync)) -> bool {
        let outcome = self.tell(network, debt).await;
        if let Err(trouble) = &outcome {
            tracing::debug!(peer = %self.peer.address, trouble, "a peer could not be told what this router owes");
            self.trouble.clone_from(trouble);
            self.connection = None;
        }
        outcome.is_ok()
    }

    /// Tells an operator that a peer has gone away, or is back.
    fn say(&self, is_well: bool) {
        let (peer, trouble) = (&self.peer.address, &self.trouble);
        match (is_well, self.peers.missing) {
            (true, _) => tracing::info!(%peer, "a peer of --spool-peers can be told again what this router owes"),
            (false, PeerMissing::Fail) => tracing::warn!(
                %peer, trouble,
                "a peer of --spool-peers cannot be told what this router owes: deletes that servers do not answer fail \
                 until it can"
            ),
            (false, PeerMissing::Ignore) => tracing::warn!(
                %peer, trouble,
                "a peer of --spool-peers cannot be told what this router owes: it may read what has been deleted"
            ),
        }
    }

    /// Releases what is owed no more, and has the rest held.
    async fn tell(&mut self, network: &dyn Network, debt: &(dyn Fn(&Address) -> Debt + Sync)) -> Result<(), String> {
        let wanted = self.sort_out(debt);
        let owner = self.peers.owner;
        let is_new = self.connection.is_none();
        let connection = connected(&mut self.connection, network, &self.peer.address, self.peers.limit).await?;
        if is_new || self.asked_at.elapsed() > self.peers.confirmed_for / 4 {
            self.asked_at = Instant::now();
            // What an earlier connection, or run, has left there, or a crash of the peer's machine has brought back. It also
            // tells a connection that has died from one that has nothing to say.
            let held = connection.ask(&[peer_protocol::held(owner)]).await?.remove(0);
            let held = String::from_utf8(held.ok_or("it has no spool, or no peers, or is this router itself")?)
                .unwrap_or_default();
            let held = held.split("\r\n").filter(|line| !line.is_empty()).map(|line| Address(line.into()));
            // Who is wanted still may be confirmed still: its time comes when it is wanted no more.
            let is_over = |server: &Address| !wanted.contains(server) && debt(server) == Debt::Nothing;
            self.unreleased.extend(held.filter(is_over));
        }
        let said = |verb: &str, server: &Address| peer_protocol::said(verb, owner, self.peers.next_sequence(), server);
        let releases: Vec<_> = self.unreleased.iter().filter_map(|server| said("release", server)).collect();
        connection.ask(&releases).await?;
        self.unreleased.clear();
        // What there is no question for stays unconfirmed.
        let holds: Vec<_> = wanted.iter().filter_map(|server| Some((server, said("hold", server)?))).collect();
        for holds in holds.chunks(QUESTIONS_MAX) {
            let asked_at = Instant::now();
            let questions: Vec<_> = holds.iter().map(|(_, question)| question.clone()).collect();
            let answers = connection.ask(&questions).await?;
            let mut confirmed = self.peer.wanted();
            for ((server, _), answer) in holds.iter().zip(answers) {
                if let (Some(b"ok"), Some(last)) = (answer.as_deref(), confirmed.get_mut(*server)) {
                    *last = Some(asked_at);
                }
            }
        }
        Ok(())
    }

    /// The servers that are still owed something. The others are forgotten, their confirmations first of all: whoever
    /// keeps a delete from now on asks for a new one.
    fn sort_out(&mut self, debt: &(dyn Fn(&Address) -> Debt + Sync)) -> Vec<Address> {
        let mut wanted = self.peer.wanted();
        let unreleased = &mut self.unreleased;
        wanted.retain(|server, _| {
            let debt = debt(server);
            match debt {
                Debt::Owed => drop(unreleased.remove(server)),
                Debt::Nothing => drop(unreleased.insert(server.clone())),
                Debt::Abandoned => {}
            }
            debt == Debt::Owed
        });
        wanted.keys().cloned().collect()
    }

    async fn pass_on(&mut self, network: &dyn Network, questions: &[Vec<u8>]) -> Result<bool, String> {
        let connection = connected(&mut self.connection, network, &self.peer.address, self.peers.limit).await?;
        let answers = connection.ask(questions).await?;
        Ok(answers.iter().all(|answer| answer.as_deref() == Some(b"ok")))
    }
}

async fn connected<'a>(
    connection: &'a mut Option<Connection>,
    network: &dyn Network,
    address: &Address,
    limit: Duration,
) -> Result<&'a mut Connection, String> {
    let made = match connection.take() {
        Some(made) => made,
        None => {
            let connecting = timeout(limit, network.connect(address)).await;
            let stream = connecting.map_err(|_| "no connection in time")?.map_err(|error| error.to_string())?;
            Connection { stream, read: Vec::new(), limit }
        }
    };
    Ok(connection.insert(made))
}

/// A connection to a peer's port for clients.
struct Connection {
    stream: Box<dyn Stream>,
    read: Vec<u8>,
    /// For one line of questions and its answers.
    limit: Duration,
}

impl Connection {
    /// The answers to gets of `keys`, in order; nothing for a miss.
    async fn ask(&mut self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, String> {
        let mut answers = Vec::with_capacity(keys.len());
        for keys in keys.chunks(QUESTIONS_MAX) {
            let line = [b"get ".as_slice(), &keys.join(&b' '), b"\r\n"].concat();
            let values = match timeout(self.limit, self.exchange(&line)).await {
                Ok(values) => values?,
                Err(_) => return Err("no answer in time".to_owned()),
            };
            // A key may stand there twice: one that is deleted often is kept as often.
            answers.extend(keys.iter().map(|key| values.get(key).cloned()));
        }
        Ok(answers)
    }

    async fn exchange(&mut self, line: &[u8]) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, String> {
        self.stream.write_all(line).await.map_err(|error| error.to_string())?;
        self.stream.flush().await.map_err(|error| error.to_string())?;
        self.values().await
    }

    async fn values(&mut self) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, String> {
        let mut values = BTreeMap::new();
        loop {
            match parse_reply(&self.read, &LIMITS) {
                ParsedReply::Part { part: ReplyPart::Item { key, reply: Reply::Value { value, .. } }, consumed } => {
                    values.insert(key.to_vec(), value.to_vec());
                    self.read.drain(..consumed);
                }
                ParsedReply::Part { part: ReplyPart::End, consumed } => {
                    self.read.drain(..consumed);
                    return Ok(values);
                }
                ParsedReply::Part { part: answer, .. } => return Err(format!("{answer:?} is no answer to a get")),
                ParsedReply::Malformed { why } => return Err(why.to_owned()),
                ParsedReply::Incomplete { .. } => {
                    if self.stream.read_buf(&mut self.read).await.map_err(|error| error.to_string())? == 0 {
                        return Err("it closed the connection".to_owned());
                    }
                }
            }
        }
    }
}

/// Nothing panics under these locks; if it did, what they guard is still whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
