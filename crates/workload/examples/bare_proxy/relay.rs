//! The bytes between clients and servers, without sockets: what a loop has received goes in, what it is to send comes
//! out. A client's replies leave in the order of its requests, whichever server answers first.

use super::framing::{reply_bytes, request_bytes, server_of};
use std::collections::VecDeque;

/// The number of a connection. The servers have the first ones.
pub(crate) type Id = usize;

#[derive(Default)]
struct Peer {
    /// The beginning of a request or a reply whose end has not arrived.
    input: Vec<u8>,
    output: Vec<u8>,
    has_new_output: bool,
    /// Of a server: the client and its request's number for each reply to come.
    asked: VecDeque<(Id, u64)>,
    /// Of a client: a place for the reply of each unanswered request; `None` if it is to come.
    replies: VecDeque<Option<Vec<u8>>>,
    /// Of a client: the number of the first request of `replies`.
    answered: u64,
    is_gone: bool,
}

/// All connections of a proxy.
pub(crate) struct Relay {
    servers: usize,
    peers: Vec<Peer>,
    with_new_output: Vec<Id>,
}

impl Relay {
    pub(crate) fn new(servers: usize) -> Relay {
        let peers = std::iter::repeat_with(Peer::default).take(servers).collect();
        Relay { servers, peers, with_new_output: Vec::new() }
    }

    /// A new client. Numbers are not used again.
    pub(crate) fn add_client(&mut self) -> Id {
        self.peers.push(Peer::default());
        self.peers.len() - 1
    }

    /// The client is gone: what servers still answer it is dropped.
    pub(crate) fn remove_client(&mut self, id: Id) {
        self.peers[id] = Peer { is_gone: true, ..Peer::default() };
    }

    pub(crate) fn is_server(&self, id: Id) -> bool {
        id < self.servers
    }

    /// Takes what a connection has received.
    pub(crate) fn receive(&mut self, id: Id, bytes: &[u8]) {
        let mut input = std::mem::take(&mut self.peers[id].input);
        if input.is_empty() {
            let used = self.relay(id, bytes);
            input.extend_from_slice(&bytes[used..]);
        } else {
            input.extend_from_slice(bytes);
            let used = self.relay(id, &input);
            input.drain(..used);
        }
        self.peers[id].input = input;
    }

    /// A connection that has new bytes to send; each once until it has more.
    pub(crate) fn next_with_new_output(&mut self) -> Option<Id> {
        let id = self.with_new_output.pop()?;
        self.peers[id].has_new_output = false;
        Some(id)
    }

    /// The bytes to send to a connection. The loop removes what it has sent.
    pub(crate) fn output(&mut self, id: Id) -> &mut Vec<u8> {
        &mut self.peers[id].output
    }

    /// Passes on the whole requests or replies; returns their bytes.
    fn relay(&mut self, id: Id, bytes: &[u8]) -> usize {
        let mut used = 0;
        while used < bytes.len() {
            let rest = &bytes[used..];
            let length = if self.is_server(id) { reply_bytes(rest) } else { request_bytes(rest) };
            let Some(length) = length else { break };
            match self.is_server(id) {
                true => self.answer(id, &rest[..length]),
                false => self.ask(id, &rest[..length]),
            }
            used += length;
        }
        used
    }

    fn ask(&mut self, client: Id, request: &[u8]) {
        let server = server_of(request, self.servers);
        let Peer { replies, answered, .. } = &mut self.peers[client];
        let number = *answered + replies.len() as u64;
        replies.push_back(None);
        self.peers[server].asked.push_back((client, number));
        self.append(server, request);
    }

    fn answer(&mut self, server: Id, reply: &[u8]) {
        let (client, number) = self.peers[server].asked.pop_front().expect("a server answers what it was asked");
        let Peer { replies, answered, is_gone, .. } = &mut self.peers[client];
        if *is_gone {
            return;
        }
        if number != *answered {
            replies[(number - *answered) as usize] = Some(reply.to_vec());
            return;
        }
        replies.pop_front();
        *answered += 1;
        self.append(client, reply);
        while let Some(Some(reply)) = self.peers[client].replies.pop_front_if(|reply| reply.is_some()) {
            self.peers[client].answered += 1;
            self.append(client, &reply);
        }
    }

    fn append(&mut self, id: Id, bytes: &[u8]) {
        let peer = &mut self.peers[id];
        peer.output.extend_from_slice(bytes);
        if !std::mem::replace(&mut peer.has_new_output, true) {
            self.with_new_output.push(id);
        }
    }
}
