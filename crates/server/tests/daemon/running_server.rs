//! A server process on a free port of 127.0.0.1, and a client that sends bytes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// The time after which a test fails.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// A server that is killed when dropped.
pub struct RunningServer {
    pub child: Child,
    pub port: u16,
    log: Receiver<String>,
}

impl RunningServer {
    /// Starts a server with `arguments` and waits until it listens.
    pub fn start(arguments: &[&str]) -> RunningServer {
        let mut child = command(arguments).stderr(Stdio::piped()).spawn().expect("the server starts");
        let stderr = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let (sender, log) = channel();
        std::thread::spawn(move || stderr.lines().map_while(Result::ok).for_each(|line| drop(sender.send(line))));
        let mut server = RunningServer { child, port: 0, log };
        let line = server.wait_for_log("listening on 127.0.0.1:");
        server.port = line.rsplit(':').next().and_then(|port| port.trim().parse().ok()).expect("a port in the log");
        server
    }

    /// The next line of the log that contains `text`.
    pub fn wait_for_log(&self, text: &str) -> String {
        loop {
            let line = self.log.recv_timeout(DEADLINE).unwrap_or_else(|_| panic!("no log line with {text:?}"));
            if line.contains(text) {
                return line;
            }
        }
    }

    pub fn connect(&self) -> Client {
        Client::connect(self.port)
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("our own child can be signalled");
    }

    pub fn wait(&mut self) -> ExitStatus {
        let _watchdog = Watchdog::over(&self.child);
        self.child.wait().expect("a child can be waited for")
    }
}

/// Kills a process that outlives the deadline, so that waiting for it fails.
struct Watchdog(#[expect(dead_code, reason = "dropping it ends the thread's wait")] Sender<()>);

impl Watchdog {
    fn over(child: &Child) -> Watchdog {
        let (sender, receiver) = channel();
        let pid = rustix::process::Pid::from_child(child);
        std::thread::spawn(move || {
            if receiver.recv_timeout(DEADLINE) == Err(RecvTimeoutError::Timeout) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        });
        Watchdog(sender)
    }
}

/// Runs `command` to its end, which must come before the deadline, and returns its output.
pub fn run_to_end(command: &mut Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let _watchdog = Watchdog::over(&child);
    child.wait_with_output().expect("a child can be waited for")
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The server's command line: two workers on a free port, unless `arguments` contain these options.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lookaside-server"));
    if !arguments.contains(&"-p") {
        command.args(["-p", "-1"]);
    }
    if !arguments.contains(&"-t") {
        command.args(["-t", "2"]);
    }
    command.args(arguments).stdout(Stdio::null());
    command
}

/// A UDP port that was free a moment ago.
pub fn free_udp_port() -> u16 {
    let probe = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    probe.local_addr().expect("it is bound").port()
}

/// The first of `count` consecutive UDP ports that were free a moment ago.
pub fn free_udp_ports(count: u16) -> u16 {
    let is_free = |port: u16| UdpSocket::bind(("127.0.0.1", port)).is_ok();
    let first_of_many = |first: u16| (first..).take(count.into()).all(is_free);
    std::iter::repeat_with(free_udp_port)
        .take(1_000)
        .find(|&first| first < u16::MAX - count && first_of_many(first))
        .expect("ports in a row")
}

/// A TCP client that sends bytes.
pub struct Client {
    pub stream: TcpStream,
}

impl Client {
    pub fn connect(port: u16) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout can be set");
        stream.set_write_timeout(Some(DEADLINE)).expect("a timeout can be set");
        stream.set_nodelay(true).expect("nodelay can be set");
        Client { stream }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("the server takes it");
    }

    /// Reads exactly what is expected; a difference is shown as text.
    pub fn expect(&mut self, expected: impl AsRef<[u8]>) {
        let expected = expected.as_ref();
        let mut got = vec![0; expected.len()];
        let mut filled = 0;
        while filled < got.len() && got[..filled] == expected[..filled] {
            match self.stream.read(&mut got[filled..]) {
                Ok(0) => {
                    panic!("the server closed the connection after {:?}", got[..filled].escape_ascii().to_string())
                }
                Ok(count) => filled += count,
                Err(error) => panic!("{error} after {:?}", got[..filled].escape_ascii().to_string()),
            }
        }
        let shown = |bytes: &[u8]| bytes[..bytes.len().min(300)].escape_ascii().to_string();
        assert!(got[..filled] == *expected, "got {:?}, expected {:?}", shown(&got[..filled]), shown(expected));
    }

    pub fn exchange(&mut self, request: impl AsRef<[u8]>, expected: impl AsRef<[u8]>) {
        self.send(request);
        self.expect(expected);
    }

    /// One line, without its end.
    pub fn read_line(&mut self) -> String {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).expect("the server answers");
            line.push(byte[0]);
        }
        String::from_utf8(line).expect("the line is text").trim_end().to_owned()
    }

    /// Everything until the server closes the connection. A reset counts: the server may close it with unread input.
    pub fn read_to_end(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self.stream.read_to_end(&mut bytes) {
            Ok(_) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => bytes,
            Err(error) => panic!("the server does not close the connection: {error}"),
        }
    }

    /// The statistic `name` of `stats`.
    pub fn stat(&mut self, name: &str) -> u64 {
        self.send("stats\r\n");
        let mut text = Vec::new();
        while !text.ends_with(b"END\r\n") {
            let mut piece = [0; 4096];
            let count = self.stream.read(&mut piece).expect("stats are answered");
            assert_ne!(count, 0, "stats are answered");
            text.extend_from_slice(&piece[..count]);
        }
        let text = String::from_utf8(text).expect("stats are text");
        let prefix = format!("STAT {name} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&prefix));
        value.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("no number {name} in {text}"))
    }

    /// Waits until the statistic `name` is `expected`.
    pub fn wait_for_stat(&mut self, name: &str, expected: u64) {
        let started = std::time::Instant::now();
        loop {
            let value = self.stat(name);
            if value == expected {
                return;
            }
            assert!(started.elapsed() < DEADLINE, "{name} stays at {value} instead of {expected}");
            std::thread::yield_now();
        }
    }
}
