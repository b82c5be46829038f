//! The memory of a connection while its client is idle, counted by an allocator in a server that runs in this process.
//! It includes neither the kernel's memory for a socket (some kilobytes) nor the buffers that a worker has once for all
//! its connections.

use clap::Parser;
use lookaside_server::Arguments;
use lookaside_test_support::{CountingAllocator, live_bytes};
use rustix::process::{Resource, getrlimit};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// One more than fits into a list that grows by doubling: the worst case of an idle connection.
const CONNECTIONS_COUNT: usize = 4_097;

/// The bound, in bytes: half of the 400 that memcached 1.6.45 keeps for a connection without buffers.
const IDLE_BYTES_MAX: isize = 200;

const WITHIN: Duration = Duration::from_secs(20);

fn connect(port: u16) -> TcpStream {
    let deadline = Instant::now() + WITHIN;
    loop {
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            Ok(client) => {
                client.set_read_timeout(Some(WITHIN)).expect("a time-out");
                return client;
            }
            Err(error) => assert!(Instant::now() < deadline, "cannot connect: {error}"),
        }
        thread::yield_now();
    }
}

fn exchange(mut client: &TcpStream, request: &[u8], reply: &[u8]) {
    client.write_all(request).expect("the server reads");
    let mut got = [0; 256];
    client.read_exact(&mut got[..reply.len()]).expect("the server answers");
    assert_eq!(&got[..reply.len()], reply);
}

/// Everything that might leave state in a connection: a request in two pieces, a value, several requests at once, an
/// error, meta commands.
fn serve(client: &TcpStream) {
    exchange(client, b"mn\r\nget ab", b"MN\r\n");
    exchange(client, b"sent\r\nset k 0 0 3\r\nabc\r\n", b"END\r\nSTORED\r\n");
    exchange(client, b"get k\r\nmg k v\r\nnonsense\r\n", b"VALUE k 0 3\r\nabc\r\nEND\r\nVA 3\r\nabc\r\nERROR\r\n");
}

#[test]
fn an_idle_connection_costs_less_than_200_bytes() {
    let descriptors_max = lookaside_net::raise_fd_limit(None);
    assert_eq!(descriptors_max, getrlimit(Resource::Nofile).maximum, "the soft limit is raised to the hard limit");
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|probe| probe.local_addr()).expect("a port").port();
    let port_text = port.to_string();
    let words = ["lookaside-server", "-p", &port_text, "-t", "1", "-A", "-c", "5000", "-m", "16"];
    let arguments = Arguments::try_parse_from(words).expect("a command line");
    let server = thread::spawn(|| lookaside_server::run(arguments));
    let administrator = connect(port);
    serve(&administrator);
    let mut clients = Vec::with_capacity(CONNECTIONS_COUNT);
    let before_bytes = live_bytes();
    for _ in 0..CONNECTIONS_COUNT {
        clients.push(connect(port));
        serve(clients.last().expect("just pushed"));
    }
    // Once the worker answers the next round, it has released everything.
    exchange(&administrator, b"mn\r\n", b"MN\r\n");
    let idle_bytes = (live_bytes() - before_bytes) / CONNECTIONS_COUNT as isize;
    println!("an idle connection costs {idle_bytes} bytes");
    assert!(idle_bytes < IDLE_BYTES_MAX, "an idle connection costs {idle_bytes} bytes");
    drop(clients);
    (&administrator).write_all(b"shutdown\r\n").expect("the server reads");
    server.join().expect("the server does not panic").expect("it stops cleanly");
}
