//! A network of memcached servers in one thread, for tests with a paused clock: each can be well, gone, or frozen.
#![allow(dead_code, missing_docs)]

use lookaside_client::{Listener, Network, Stream};
use lookaside_protocol::text::{END, Limits, Parsed, compose_reply, parse_command};
use lookaside_protocol::{Command, Operation, Reply, Request};
use lookaside_routing::{Address, BoxFuture};
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::sync::watch;

const LIMITS: Limits = Limits { value_bytes_max: 1 << 20, line_bytes_max: 1 << 20 };
const PIPE_BYTES: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Well,
    /// Refuses connections, and ends those there are.
    Gone,
    /// Takes connections and bytes, and answers when it is well again.
    Frozen,
}

/// One server. It keeps what it holds while it is gone, as one that is cut off does.
pub struct FakeServer {
    pub values: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
    /// `verb key`, in the order of being carried out.
    pub asked: Mutex<Vec<String>>,
    /// What is answered to a command that begins so, instead of its answer; it is not carried out.
    pub refusals: Mutex<BTreeMap<String, String>>,
    health: watch::Sender<Health>,
}

impl FakeServer {
    pub fn be(&self, health: Health) {
        self.health.send_replace(health);
    }

    pub fn put(&self, key: &str, value: &str) {
        self.values.lock().unwrap().insert(key.into(), value.into());
    }

    pub fn has(&self, key: &str) -> bool {
        self.values.lock().unwrap().contains_key(key.as_bytes())
    }

    pub fn refuse(&self, command: &str, answer: &str) {
        self.refusals.lock().unwrap().insert(command.into(), answer.into());
    }

    /// What it was asked that begins with `verb`.
    pub fn asked(&self, verb: &str) -> Vec<String> {
        self.asked.lock().unwrap().iter().filter(|line| line.starts_with(verb)).cloned().collect()
    }

    fn answer(&self, command: Command<'_>, out: &mut Vec<u8>) {
        let name = match &command {
            Command::Retrieve { .. } => "get",
            Command::FlushAll { .. } => "flush_all",
            Command::Version => "version",
            Command::Single { request, .. } => match &request.operation {
                Operation::Delete { hold_off_ms: 0 } => "delete",
                Operation::Delete { .. } => "delete-hold-off",
                Operation::Meta(_) => "md",
                _ => "set",
            },
            _ => "other",
        };
        if let Some(refusal) = self.refusals.lock().unwrap().get(name) {
            return out.extend_from_slice(format!("{refusal}\r\n").as_bytes());
        }
        let note = |key: &[u8]| self.asked.lock().unwrap().push(format!("{name} {}", String::from_utf8_lossy(key)));
        let mut values = self.values.lock().unwrap();
        match command {
            Command::Retrieve { keys, .. } => {
                for key in keys {
                    note(key);
                    if let Some(value) = values.get(key) {
                        compose_reply(key, &Reply::Value { flags: 0, cas: None, value: value.clone() }, out);
                    }
                }
                out.extend_from_slice(END);
            }
            Command::Single { request: Request { key, operation }, .. } => {
                note(key);
                let reply = match operation {
                    Operation::Store { value, .. } => {
                        values.insert(key.to_vec(), value.to_vec());
                        Reply::Stored
                    }
                    Operation::Meta(_) => {
                        values.remove(key);
                        return out.extend_from_slice(b"HD\r\n");
                    }
                    _ if values.remove(key).is_some() => Reply::Deleted,
                    _ => Reply::<Vec<u8>>::NotFound,
                };
                compose_reply(key, &reply, out);
            }
            Command::FlushAll { .. } => {
                note(b"");
                values.clear();
                out.extend_from_slice(b"OK\r\n");
            }
            _ => out.extend_from_slice(b"VERSION fake\r\n"),
        }
    }

    async fn serve(self: Arc<Self>, mut stream: DuplexStream) {
        let mut health = self.health.subscribe();
        let mut buffer = Vec::new();
        loop {
            tokio::select! {
                biased;
                _ = health.wait_for(|now| *now == Health::Gone) => return,
                read = stream.read_buf(&mut buffer) => if !matches!(read, Ok(1..)) { return },
            }
            let Ok(now) = health.wait_for(|now| *now != Health::Frozen).await.map(|now| *now) else { return };
            if now == Health::Gone {
                return;
            }
            let mut out = Vec::new();
            while let Parsed::Command { command, consumed } = parse_command(&buffer, &LIMITS) {
                self.answer(command, &mut out);
                buffer.drain(..consumed);
            }
            if stream.write_all(&out).await.is_err() {
                return;
            }
        }
    }
}

#[derive(Default)]
pub struct FakeNetwork {
    servers: Mutex<BTreeMap<Address, Arc<FakeServer>>>,
}

impl FakeNetwork {
    /// The server at `address`, which is well and empty at first.
    pub fn server(&self, address: &str) -> Arc<FakeServer> {
        let mut servers = self.servers.lock().unwrap();
        let make = || {
            Arc::new(FakeServer {
                values: Mutex::default(),
                asked: Mutex::default(),
                refusals: Mutex::default(),
                health: watch::Sender::new(Health::Well),
            })
        };
        servers.entry(Address(address.into())).or_insert_with(make).clone()
    }
}

impl Network for FakeNetwork {
    fn connect<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            // A round trip, so that a paused clock has somewhere to go.
            tokio::time::sleep(std::time::Duration::from_micros(100)).await;
            let server = self.server(&address.0);
            if *server.health.borrow() == Health::Gone {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let (near, far) = tokio::io::duplex(PIPE_BYTES);
            tokio::spawn(server.serve(far));
            Ok(Box::new(Pipe(near)) as Box<dyn Stream>)
        })
    }

    fn listen<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
}

struct Pipe(DuplexStream);

impl Stream for Pipe {
    fn peer(&self) -> Option<IpAddr> {
        None
    }
}

impl AsyncRead for Pipe {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, into)
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
