//! Clients that do not read, and more clients than `-c` allows.

use crate::running_server::{Client, RunningServer};
use std::io::Write;

const VALUE_BYTES: usize = 500_000;

fn server_with_a_large_value() -> (RunningServer, Client) {
    let server = RunningServer::start(&["-t", "1"]);
    let mut client = server.connect();
    client.exchange(format!("set large 0 0 {VALUE_BYTES}\r\n{}\r\n", "v".repeat(VALUE_BYTES)), "STORED\r\n");
    (server, client)
}

/// The resident memory of the server process, in bytes.
fn resident_bytes(server: &RunningServer) -> usize {
    let text = std::fs::read_to_string(format!("/proc/{}/statm", server.child.id())).expect("the server runs");
    let pages: usize = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number of pages");
    pages * rustix::param::page_size()
}

#[test]
fn a_client_that_never_reads_costs_little_and_does_not_delay_others() {
    let (server, mut other) = server_with_a_large_value();
    let before = resident_bytes(&server);
    let mut silent: Vec<Client> = (0..10).map(|_| server.connect()).collect();
    for client in &mut silent {
        client.send("get large large\r\n".repeat(400)); // 400 MB of replies that are never read.
    }
    for n in 0..200 {
        other.exchange(
            format!("set k 0 0 3\r\n{n:03}\r\nget k\r\n"),
            format!("STORED\r\nVALUE k 0 3\r\n{n:03}\r\nEND\r\n"),
        );
    }
    let grown = resident_bytes(&server).saturating_sub(before);
    let bound =
        10 * (lookaside_server::REPLY_BYTES_MAX + 2 * VALUE_BYTES + lookaside_server::READ_BYTES_MAX) + (8 << 20);
    assert!(grown < bound, "ten clients that never read cost {grown} bytes, bound {bound}");
    drop(silent);
    other.wait_for_stat("curr_connections", 1);
}

#[test]
fn a_client_that_reads_late_gets_everything_in_order() {
    let (server, mut other) = server_with_a_large_value();
    let mut late = server.connect();
    late.send("gets absent\r\n");
    late.expect("END\r\n");
    other.exchange("set a 1 0 1\r\na\r\nset b 2 0 1\r\nb\r\n", "STORED\r\nSTORED\r\n");
    // A get whose reply pauses between its keys many times, and commands behind it.
    let get = format!("get{} b\r\nset c 3 0 1\r\nc\r\nget c\r\n", " a large absent".repeat(60));
    late.send(&get);
    other.exchange("get a\r\n", "VALUE a 1 1\r\na\r\nEND\r\n");
    let large = format!("VALUE a 1 1\r\na\r\nVALUE large 0 {VALUE_BYTES}\r\n{}\r\n", "v".repeat(VALUE_BYTES));
    for _ in 0..60 {
        late.expect(&large);
    }
    late.expect("VALUE b 2 1\r\nb\r\nEND\r\nSTORED\r\nVALUE c 3 1\r\nc\r\nEND\r\n");
    late.exchange("gat 0 a\r\n", "VALUE a 1 1\r\na\r\nEND\r\n");
}

#[test]
fn a_late_reader_that_quits_gets_its_replies_first() {
    let (server, _other) = server_with_a_large_value();
    let mut late = server.connect();
    late.send("get large large large large large large\r\nget large\r\nquit\r\nget large\r\n");
    late.stream.shutdown(std::net::Shutdown::Write).expect("half a connection can be closed");
    let bytes = late.read_to_end();
    let large = format!("VALUE large 0 {VALUE_BYTES}\r\n{}\r\n", "v".repeat(VALUE_BYTES));
    assert_eq!(bytes.len(), 7 * large.len() + 2 * "END\r\n".len());
}

#[test]
fn connections_over_the_cap_are_refused() {
    let server = RunningServer::start(&["-c", "3"]);
    let mut clients: Vec<Client> = (0..3).map(|_| server.connect()).collect();
    clients.iter_mut().for_each(|client| client.exchange("get k\r\n", "END\r\n"));
    let mut fourth = server.connect();
    assert_eq!(fourth.read_to_end(), b"ERROR Too many open connections\r\n");
    assert_eq!((clients[0].stat("rejected_connections"), clients[0].stat("total_connections")), (1, 3));
    drop(clients.pop());
    clients[0].wait_for_stat("curr_connections", 2);
    server.connect().exchange("get k\r\n", "END\r\n");
}

#[test]
fn a_large_partial_value_does_not_delay_other_clients() {
    let server = RunningServer::start(&["-t", "1"]);
    let (mut slow, mut other) = (server.connect(), server.connect());
    slow.stream.write_all(b"set k 0 0 1000000\r\n").expect("sent");
    for _ in 0..10 {
        slow.send(vec![b'x'; 99_999]);
        other.exchange("get k\r\n", "END\r\n");
    }
    slow.send("0123456789\r\n");
    slow.expect("STORED\r\n");
}
