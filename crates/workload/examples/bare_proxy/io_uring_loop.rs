//! One ring for clients and servers. Every socket has a receive in flight; a round submits the sends of all sockets
//! that got bytes, and new receives, by the system call that waits for the next completions.

use super::relay::{Id, Relay};
use io_uring::{IoUring, opcode, squeue, types};
use std::io::{self, ErrorKind};
use std::mem::ManuallyDrop;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

const ENTRIES: u32 = 4_096;
const READ_BYTES: usize = 16 << 10;

/// What an operation is about, as the kernel returns it: the number of the connection and the kind, in the lowest bits.
const RECEIVE: u64 = 0;
const SEND: u64 = 1;
const ACCEPT: u64 = 2;
const KIND_BITS: u32 = 2;

struct Socket {
    stream: TcpStream,
    /// The kernel's while `is_receiving`.
    received: Box<[u8]>,
    is_receiving: bool,
    /// The kernel's while `is_sending`.
    output: Vec<u8>,
    sent: usize,
    is_sending: bool,
    is_closed: bool,
}

struct Ring {
    ring: IoUring,
    relay: Relay,
    /// By the numbers of the relay; `None` if it is gone and no operation on it is in flight.
    sockets: Vec<Option<Socket>>,
}

pub(crate) fn run(listener: &TcpListener, servers: Vec<TcpStream>) -> io::Result<()> {
    // Completions are made only while this thread, the only one that submits, waits: no interrupts in between.
    let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(ENTRIES)?;
    // If this returns, operations are in flight: their buffers must not be freed.
    let mut ring = ManuallyDrop::new(Ring { ring, relay: Relay::new(servers.len()), sockets: Vec::new() });
    for server in servers {
        ring.add(server)?;
    }
    ring.wait_for_clients(listener)?;
    let mut completions = Vec::new();
    loop {
        match ring.ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        completions.extend(ring.ring.completion().map(|completion| (completion.user_data(), completion.result())));
        for (data, result) in completions.drain(..) {
            let id = (data >> KIND_BITS) as Id;
            match data & ((1 << KIND_BITS) - 1) {
                RECEIVE => ring.on_received(id, result)?,
                SEND => ring.on_sent(id, result)?,
                _ => ring.accept(listener)?,
            }
        }
        while let Some(id) = ring.relay.next_with_new_output() {
            ring.send(id)?;
        }
    }
}

impl Ring {
    fn add(&mut self, stream: TcpStream) -> io::Result<()> {
        self.sockets.push(Some(Socket {
            stream,
            received: vec![0; READ_BYTES].into(),
            is_receiving: false,
            output: Vec::new(),
            sent: 0,
            is_sending: false,
            is_closed: false,
        }));
        self.receive(self.sockets.len() - 1)
    }

    fn wait_for_clients(&mut self, listener: &TcpListener) -> io::Result<()> {
        let poll = opcode::PollAdd::new(types::Fd(listener.as_raw_fd()), rustix::event::PollFlags::IN.bits().into());
        push(&mut self.ring, &poll.build().user_data(ACCEPT))
    }

    fn accept(&mut self, listener: &TcpListener) -> io::Result<()> {
        loop {
            match listener.accept() {
                Ok((client, _)) => {
                    client.set_nodelay(true)?;
                    self.relay.add_client();
                    self.add(client)?;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return self.wait_for_clients(listener),
                Err(error) => return Err(error),
            }
        }
    }

    fn receive(&mut self, id: Id) -> io::Result<()> {
        let Some(socket) = &mut self.sockets[id] else { return Ok(()) };
        let (fd, buffer) = (types::Fd(socket.stream.as_raw_fd()), &mut socket.received);
        let receive = opcode::Recv::new(fd, buffer.as_mut_ptr(), buffer.len() as u32);
        socket.is_receiving = true;
        push(&mut self.ring, &receive.build().user_data((id as u64) << KIND_BITS | RECEIVE))
    }

    fn on_received(&mut self, id: Id, result: i32) -> io::Result<()> {
        let Some(socket) = &mut self.sockets[id] else { return Ok(()) };
        socket.is_receiving = false;
        if socket.is_closed || result <= 0 {
            return self.close(id);
        }
        self.relay.receive(id, &socket.received[..result as usize]);
        self.receive(id)
    }

    /// Sends what the relay has for the socket, unless a send is in flight: then it leaves after that.
    fn send(&mut self, id: Id) -> io::Result<()> {
        let Some(socket) = &mut self.sockets[id] else { return Ok(()) };
        if socket.is_sending || socket.is_closed {
            return Ok(());
        }
        if socket.sent == socket.output.len() {
            socket.output.clear();
            socket.sent = 0;
            std::mem::swap(&mut socket.output, self.relay.output(id));
        }
        let rest = &socket.output[socket.sent..];
        if rest.is_empty() {
            return Ok(());
        }
        let send = opcode::Send::new(types::Fd(socket.stream.as_raw_fd()), rest.as_ptr(), rest.len() as u32);
        let send = send.flags(rustix::net::SendFlags::NOSIGNAL.bits() as i32);
        socket.is_sending = true;
        push(&mut self.ring, &send.build().user_data((id as u64) << KIND_BITS | SEND))
    }

    fn on_sent(&mut self, id: Id, result: i32) -> io::Result<()> {
        let Some(socket) = &mut self.sockets[id] else { return Ok(()) };
        socket.is_sending = false;
        if socket.is_closed || result < 0 {
            return self.close(id);
        }
        socket.sent += result as usize;
        self.send(id)
    }

    /// Drops the socket once no operation on it is in flight.
    fn close(&mut self, id: Id) -> io::Result<()> {
        if self.relay.is_server(id) {
            return Err(io::Error::new(ErrorKind::ConnectionAborted, "a server closed its connection"));
        }
        let Some(socket) = &mut self.sockets[id] else { return Ok(()) };
        if !std::mem::replace(&mut socket.is_closed, true) {
            self.relay.remove_client(id);
            // Operations in flight end.
            let _ = socket.stream.shutdown(std::net::Shutdown::Both);
        }
        if !socket.is_receiving && !socket.is_sending {
            self.sockets[id] = None;
        }
        Ok(())
    }
}

/// Adds an operation to those that are submitted next.
#[allow(unsafe_code)]
fn push(ring: &mut IoUring, operation: &squeue::Entry) -> io::Result<()> {
    // SAFETY: a socket's buffers lie on the heap and are neither moved, changed nor freed while an operation on them is
    // in flight (`is_receiving`, `is_sending`): `Ring::send` replaces `output` only if no send is, and `Ring::close`
    // drops the socket only if neither is. `run` never drops them. A poll has no buffer.
    while unsafe { ring.submission().push(operation) }.is_err() {
        ring.submit()?;
    }
    Ok(())
}
