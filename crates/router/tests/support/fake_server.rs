//! A minimal memcached server over real sockets: a map, and a list of its commands.

use lookaside_protocol::text::{END, Limits, Parsed, compose_reply, parse_command};
use lookaside_protocol::{Command, Operation, Reply, Request};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

const LIMITS: Limits = Limits { value_bytes_max: 1 << 20, line_bytes_max: 1 << 20 };

#[derive(Default)]
pub struct State {
    pub values: BTreeMap<Vec<u8>, Vec<u8>>,
    /// `verb key`, in the order of arrival.
    pub asked: Vec<String>,
    /// Those that were accepted, but for connections of maintenance, by commands that no client sends.
    pub connections: usize,
    pub flushes: usize,
    open: Vec<TcpStream>,
}

pub struct FakeServer {
    pub address: SocketAddr,
    pub state: Arc<Mutex<State>>,
    stopped: Arc<AtomicBool>,
}

impl FakeServer {
    pub fn start() -> FakeServer {
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into())
    }

    pub fn start_at(address: SocketAddr) -> FakeServer {
        let listener = TcpListener::bind(address).expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (state, stopped) = (Arc::<Mutex<State>>::default(), Arc::<AtomicBool>::default());
        let (for_thread, until) = (state.clone(), stopped.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                if until.load(Ordering::SeqCst) {
                    return;
                }
                {
                    let mut state = for_thread.lock().unwrap();
                    state.connections += 1;
                    state.open.push(stream.try_clone().unwrap());
                }
                let state = for_thread.clone();
                thread::spawn(move || serve(stream, &state));
            }
        });
        FakeServer { address, state, stopped }
    }

    /// Refuses connections from now on and ends those there are.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts, which then closes the listener.
        let _ = TcpStream::connect(self.address);
        for stream in self.state.lock().unwrap().open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        while TcpStream::connect(self.address).is_ok() {}
    }

    pub fn asked(&self) -> Vec<String> {
        self.state.lock().unwrap().asked.clone()
    }

    pub fn put(&self, key: &str, value: &str) {
        self.state.lock().unwrap().values.insert(key.into(), value.into());
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn serve(mut stream: TcpStream, state: &Mutex<State>) {
    let mut buffer = Vec::new();
    let mut block = [0; 4096];
    let mut is_counted = true;
    loop {
        let mut out = Vec::new();
        loop {
            match parse_command(&buffer, &LIMITS) {
                Parsed::Command { command, consumed } => {
                    answer(command, &mut state.lock().unwrap(), &mut out);
                    buffer.drain(..consumed);
                }
                Parsed::Incomplete { .. } => break,
                Parsed::Bad { .. } => {
                    if std::mem::take(&mut is_counted) {
                        state.lock().unwrap().connections -= 1;
                    }
                    out.extend_from_slice(b"ERROR\r\n");
                    buffer.clear();
                    break;
                }
            }
        }
        if stream.write_all(&out).is_err() {
            return;
        }
        match stream.read(&mut block) {
            Ok(0) | Err(_) => return,
            Ok(bytes) => buffer.extend_from_slice(&block[..bytes]),
        }
    }
}

fn answer(command: Command<'_>, state: &mut State, out: &mut Vec<u8>) {
    match command {
        Command::Retrieve { keys, .. } => {
            for key in keys {
                state.asked.push(format!("get {}", String::from_utf8_lossy(key)));
                if let Some(value) = state.values.get(key) {
                    compose_reply(key, &Reply::Value { flags: 0, cas: None, value: value.clone() }, out);
                }
            }
            out.extend_from_slice(END);
        }
        Command::Single { request, noreply } => {
            let reply = single(&request, state);
            if !noreply {
                compose_reply(request.key, &reply, out);
            }
        }
        Command::Version => out.extend_from_slice(b"VERSION fake\r\n"),
        Command::FlushAll { .. } => {
            state.values.clear();
            state.flushes += 1;
            out.extend_from_slice(b"OK\r\n");
        }
        _ => out.extend_from_slice(b"ERROR\r\n"),
    }
}

fn single(request: &Request<&[u8]>, state: &mut State) -> Reply<Vec<u8>> {
    let key = String::from_utf8_lossy(request.key).into_owned();
    match &request.operation {
        Operation::Store { value, exptime, .. } => {
            state.asked.push(format!("set {key} {exptime}"));
            state.values.insert(request.key.to_vec(), value.to_vec());
            Reply::Stored
        }
        Operation::Delete { .. } => {
            state.asked.push(format!("delete {key}"));
            match state.values.remove(request.key) {
                Some(_) => Reply::Deleted,
                None => Reply::NotFound,
            }
        }
        _ => Reply::NotFound,
    }
}
