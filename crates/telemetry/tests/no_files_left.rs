//! A process without a free file descriptor does not spin on the metrics port. The only test of its process, because it
//! changes the process's limit.

use lookaside_telemetry::Endpoint;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long no connection can be accepted.
const WINDOW: Duration = Duration::from_secs(1);

fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).expect("a clock")
}

#[test]
fn client_without_a_descriptor_costs_no_cpu_and_is_served_later() {
    let endpoint = Endpoint::new(TcpListener::bind("127.0.0.1:0").expect("a port")).expect("a port");
    let address = endpoint.listener().local_addr().expect("an address");
    let (stop, stopped) = UnixStream::pair().expect("sockets");
    let mut client = TcpStream::connect(address).expect("the endpoint listens");
    client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("sent");
    let limit = getrlimit(Resource::Nofile);
    // A new descriptor gets the lowest free number, counted from 0.
    let last = client.as_raw_fd() as u64 + 1;
    setrlimit(Resource::Nofile, Rlimit { current: Some(last), ..limit }).expect("lowered");
    let thread = std::thread::spawn(move || endpoint.run(|| "metric 1\n".to_owned(), &stopped));
    client.set_read_timeout(Some(WINDOW)).expect("set");
    let before = cpu_time();
    assert!(client.read(&mut [0; 1]).is_err(), "no descriptor is free");
    let spent = cpu_time() - before;
    assert!(spent < WINDOW / 4, "{spent:?} of {WINDOW:?}");
    setrlimit(Resource::Nofile, limit).expect("raised");
    client.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    let mut response = String::new();
    client.read_to_string(&mut response).expect("served");
    assert!(response.ends_with("metric 1\n"), "{response}");
    drop(stop);
    thread.join().expect("no panic");
}
