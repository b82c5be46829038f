//! What a connection costs this process while its client says nothing: counted by an allocator, in a daemon that runs in
//! this process. The kernel's own memory for a socket (some kilobytes) is not in it, nor are the buffers that a worker
//! has once for all of its connections.
#![allow(unsafe_code)]

use clap::Parser;
use lookaside_server::Arguments;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicIsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

static LIVE_BYTES: AtomicIsize = AtomicIsize::new(0);

struct Counting;

// SAFETY: every call goes to the system's allocator as it came; the counter is an atomic and never allocates itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's promises about `layout` are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: `pointer` came from `alloc` above, so from the system's allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One more than a list that grows by doubling has room for: what an idle connection costs at worst.
const CONNECTIONS_COUNT: usize = 4_097;

/// The bound, in bytes: half of the 400 that memcached 1.6.45 keeps for each connection without its buffers.
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

fn converse(mut client: &TcpStream, request: &[u8], reply: &[u8]) {
    client.write_all(request).expect("the server reads");
    let mut got = [0; 256];
    client.read_exact(&mut got[..reply.len()]).expect("the server answers");
    assert_eq!(&got[..reply.len()], reply);
}

/// Every kind of thing that a connection might keep something of: a request in two pieces, a value, requests in a row,
/// a refusal, meta.
fn serve(client: &TcpStream) {
    converse(client, b"mn\r\nget ab", b"MN\r\n");
    converse(client, b"sent\r\nset k 0 0 3\r\nabc\r\n", b"END\r\nSTORED\r\n");
    converse(client, b"get k\r\nmg k v\r\nnonsense\r\n", b"VALUE k 0 3\r\nabc\r\nEND\r\nVA 3\r\nabc\r\nERROR\r\n");
}

#[test]
fn an_idle_connection_costs_less_than_200_bytes() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("what is allowed can be asked for");
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|probe| probe.local_addr()).expect("a port").port();
    let port_text = port.to_string();
    let words = ["lookaside-server", "-p", &port_text, "-t", "1", "-A", "-c", "5000", "-m", "16"];
    let arguments = Arguments::try_parse_from(words).expect("a command line");
    let server = thread::spawn(|| lookaside_server::run(arguments));
    let administrator = connect(port);
    serve(&administrator);
    let mut clients = Vec::with_capacity(CONNECTIONS_COUNT);
    let before_bytes = LIVE_BYTES.load(Ordering::SeqCst);
    for _ in 0..CONNECTIONS_COUNT {
        clients.push(connect(port));
        serve(clients.last().expect("just pushed"));
    }
    // The worker has put everything away once it answers the next round.
    converse(&administrator, b"mn\r\n", b"MN\r\n");
    let idle_bytes = (LIVE_BYTES.load(Ordering::SeqCst) - before_bytes) / CONNECTIONS_COUNT as isize;
    println!("an idle connection costs {idle_bytes} bytes");
    assert!(idle_bytes < IDLE_BYTES_MAX, "an idle connection costs {idle_bytes} bytes");
    drop(clients);
    (&administrator).write_all(b"shutdown\r\n").expect("the server reads");
    server.join().expect("the server does not panic").expect("it ends in order");
}
