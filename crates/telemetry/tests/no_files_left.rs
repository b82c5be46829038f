//! A process that has no file left for those who read metrics: nobody is served, and no core is busy with it. Alone in its
//! process, whose limit it changes.

use lookaside_telemetry::Endpoint;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long nobody can be let in.
const WINDOW: Duration = Duration::from_secs(1);

fn busy() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).expect("time goes on")
}

#[test]
fn who_cannot_be_let_in_keeps_no_core_busy_and_is_served_later() {
    let endpoint = Endpoint::new(TcpListener::bind("127.0.0.1:0").expect("a port")).expect("a port");
    let address = endpoint.listener().local_addr().expect("an address");
    let (stop, stopped) = UnixStream::pair().expect("sockets");
    let mut client = TcpStream::connect(address).expect("somebody listens");
    client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("sent");
    let limit = getrlimit(Resource::Nofile);
    // Files are numbered from 0, and the lowest number that is free is given out.
    let last = client.as_raw_fd() as u64 + 1;
    setrlimit(Resource::Nofile, Rlimit { current: Some(last), ..limit }).expect("lowered");
    let thread = std::thread::spawn(move || endpoint.run(|| "it 1\n".to_owned(), &stopped));
    client.set_read_timeout(Some(WINDOW)).expect("set");
    let before = busy();
    assert!(client.read(&mut [0; 1]).is_err(), "there is no file for it");
    let spent = busy() - before;
    assert!(spent < WINDOW / 4, "{spent:?} of {WINDOW:?}");
    setrlimit(Resource::Nofile, limit).expect("raised");
    client.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    let mut response = String::new();
    client.read_to_string(&mut response).expect("served");
    assert!(response.ends_with("it 1\n"), "{response}");
    drop(stop);
    thread.join().expect("it ends");
}
