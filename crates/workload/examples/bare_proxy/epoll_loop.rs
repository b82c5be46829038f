//! One level-triggered epoll for clients and servers. A round reads every socket that is ready once, and then writes
//! each that got bytes once: requests of many clients for a server leave in one `send`, and so do a client's replies.

use super::relay::{Id, Relay};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

const EVENTS_MAX: usize = 1_024;
const READ_BYTES: usize = 64 << 10;
const LISTENER: u64 = u64::MAX;

struct Sockets {
    epoll: OwnedFd,
    relay: Relay,
    /// By the numbers of the relay; `None` if it is gone.
    sockets: Vec<Option<Socket>>,
}

struct Socket {
    stream: TcpStream,
    /// The kernel took only a part of the last bytes: the rest waits until it takes more.
    is_full: bool,
}

pub(crate) fn run(listener: TcpListener, servers: Vec<TcpStream>) -> io::Result<()> {
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    let mut sockets = Sockets { epoll, relay: Relay::new(servers.len()), sockets: Vec::new() };
    for server in servers {
        sockets.add(server)?;
    }
    let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
    let mut buffer = vec![0; READ_BYTES];
    loop {
        events.clear();
        match epoll::wait(&sockets.epoll, spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut writable = Vec::new();
        for event in &events {
            let (token, flags) = (event.data.u64(), event.flags);
            if token == LISTENER {
                sockets.accept(&listener)?;
                continue;
            }
            if flags.contains(EventFlags::OUT) {
                writable.push(token as Id);
            }
            if flags != EventFlags::OUT {
                sockets.read(token as Id, &mut buffer)?;
            }
        }
        while let Some(id) = writable.pop().or_else(|| sockets.relay.next_with_new_output()) {
            sockets.write(id)?;
        }
    }
}

impl Sockets {
    fn add(&mut self, stream: TcpStream) -> io::Result<()> {
        epoll::add(&self.epoll, &stream, EventData::new_u64(self.sockets.len() as u64), EventFlags::IN)?;
        self.sockets.push(Some(Socket { stream, is_full: false }));
        Ok(())
    }

    fn accept(&mut self, listener: &TcpListener) -> io::Result<()> {
        loop {
            match listener.accept() {
                Ok((client, _)) => {
                    client.set_nodelay(true)?;
                    client.set_nonblocking(true)?;
                    self.relay.add_client();
                    self.add(client)?;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn read(&mut self, id: Id, buffer: &mut [u8]) -> io::Result<()> {
        let Some(Socket { stream, .. }) = &mut self.sockets[id] else { return Ok(()) };
        match stream.read(buffer) {
            Ok(0) => self.close(id),
            Ok(bytes) => {
                self.relay.receive(id, &buffer[..bytes]);
                Ok(())
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(()),
            Err(_) => self.close(id),
        }
    }

    fn write(&mut self, id: Id) -> io::Result<()> {
        let Some(Socket { stream, is_full }) = &mut self.sockets[id] else { return Ok(()) };
        let output = self.relay.output(id);
        let sent = match stream.write(output) {
            Ok(sent) => sent,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => 0,
            Err(_) => return self.close(id),
        };
        if sent == output.len() {
            output.clear();
        } else {
            output.drain(..sent);
        }
        let (was_full, is_full_now) = (std::mem::replace(is_full, !output.is_empty()), !output.is_empty());
        if was_full != is_full_now {
            let flags = if is_full_now { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            epoll::modify(&self.epoll, stream, EventData::new_u64(id as u64), flags)?;
        }
        Ok(())
    }

    /// Dropping the socket also removes it from epoll.
    fn close(&mut self, id: Id) -> io::Result<()> {
        if self.relay.is_server(id) {
            return Err(io::Error::new(ErrorKind::ConnectionAborted, "a server closed its connection"));
        }
        self.sockets[id] = None;
        self.relay.remove_client(id);
        Ok(())
    }
}
