//! Gets by UDP: one datagram in, one or several out.

use crate::running_server::{Client, DEADLINE, RunningServer, free_udp_port, free_udp_ports};
use std::net::UdpSocket;

/// The token of a miss that another client fills.
const HOT_MISS: u64 = 1;

fn start() -> (RunningServer, UdpSocket) {
    start_with(&[])
}

fn start_with(arguments: &[&str]) -> (RunningServer, UdpSocket) {
    let port = free_udp_port();
    let server = RunningServer::start(&[&["-U", &port.to_string()], arguments].concat());
    (server, client_of(port))
}

/// A client that receives only from this port.
fn client_of(port: u16) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.connect(("127.0.0.1", port)).expect("an address");
    socket.set_read_timeout(Some(DEADLINE)).expect("a timeout can be set");
    socket
}

fn request(id: u16, text: &str) -> Vec<u8> {
    let mut datagram = id.to_be_bytes().to_vec();
    datagram.extend_from_slice(&[0, 0, 0, 1, 0, 0]);
    datagram.extend_from_slice(text.as_bytes());
    datagram
}

/// The text of a reply, reassembled from its datagrams, and their number.
fn receive(socket: &UdpSocket, id: u16) -> (String, usize) {
    let mut parts: Vec<Option<Vec<u8>>> = Vec::new();
    loop {
        let mut datagram = [0; 65536];
        let count = socket.recv(&mut datagram).expect("a reply");
        assert!((8..=1400).contains(&count), "a datagram of {count} bytes");
        let number = |at: usize| u16::from_be_bytes([datagram[at], datagram[at + 1]]);
        assert_eq!(number(0), id);
        parts.resize(usize::from(number(4)), None);
        parts[usize::from(number(2))] = Some(datagram[8..count].to_vec());
        if parts.iter().all(Option::is_some) {
            let text: Vec<u8> = parts.iter().flatten().flatten().copied().collect();
            return (String::from_utf8(text).expect("text"), parts.len());
        }
    }
}

#[test]
fn a_get_in_one_datagram() {
    let (server, socket) = start();
    server.connect().exchange("set k 9 0 3\r\nabc\r\n", "STORED\r\n");
    socket.send(&request(0xbeef, "get k absent\r\n")).expect("sent");
    assert_eq!(receive(&socket, 0xbeef), ("VALUE k 9 3\r\nabc\r\nEND\r\n".to_string(), 1));
}

#[test]
fn a_large_reply_in_numbered_datagrams() {
    let (server, socket) = start();
    let value: String = (0..10_000).map(|n| char::from(b'a' + (n % 23) as u8)).collect();
    server.connect().exchange(format!("set k 0 0 10000\r\n{value}\r\n"), "STORED\r\n");
    socket.send(&request(7, "get k\r\n")).expect("sent");
    let (text, datagrams) = receive(&socket, 7);
    assert_eq!(text, format!("VALUE k 0 10000\r\n{value}\r\nEND\r\n"));
    assert_eq!(datagrams, 8);
}

/// The kernel gets 45 datagrams at a time; the boundaries between bursts must not be visible.
#[test]
fn a_reply_of_several_bursts() {
    let (server, socket) = start();
    let value: String = (0..100_000).map(|n| char::from(b'a' + (n % 23) as u8)).collect();
    server.connect().exchange(format!("set k 0 0 100000\r\n{value}\r\n"), "STORED\r\n");
    socket.send(&request(7, "get k\r\n")).expect("sent");
    let (text, datagrams) = receive(&socket, 7);
    assert_eq!(text, format!("VALUE k 0 100000\r\n{value}\r\nEND\r\n"));
    assert_eq!(datagrams, 72);
}

#[test]
fn other_verbs_and_bad_datagrams() {
    let (_server, socket) = start();
    socket.send(b"short").expect("sent");
    socket.send(&request(1, "get cut off without an end")).expect("sent");
    socket.send(&request(2, "set k 0 0 1\r\nx\r\n")).expect("sent");
    assert_eq!(receive(&socket, 2).0, "STORED\r\n");
    let mut of_two = request(3, "get k\r\n");
    of_two[5] = 2;
    socket.send(&of_two).expect("sent");
    socket.send(&request(4, "delete k\r\nget k\r\n")).expect("sent");
    assert_eq!(receive(&socket, 4).0, "DELETED\r\nEND\r\n");
}

#[test]
fn a_reply_that_is_too_large_is_replaced_by_an_error() {
    let (server, socket) = start();
    let value = "v".repeat(lookaside_server::UDP_REPLY_BYTES_MAX);
    server.connect().exchange(format!("set k 0 0 {}\r\n{value}\r\n", value.len()), "STORED\r\n");
    socket.send(&request(5, "get k\r\n")).expect("sent");
    assert_eq!(receive(&socket, 5).0, "SERVER_ERROR reply too large for UDP, use TCP\r\n");
}

/// Once its tokens went with the reply: by TCP the same keys were hot misses, and keys that are only read in pages of
/// this size were never filled.
#[test]
fn a_reply_that_is_too_large_leaves_no_lease_behind() {
    let (server, socket) = start();
    let mut connection = server.connect();
    let value = "v".repeat(lookaside_server::UDP_REPLY_BYTES_MAX / 2);
    for key in ["large", "larger"] {
        connection.exchange(format!("set {key} 0 0 {}\r\n{value}\r\n", value.len()), "STORED\r\n");
    }
    socket.send(&request(5, "lease-get absent large missing larger\r\n")).expect("sent");
    assert_eq!(receive(&socket, 5).0, "SERVER_ERROR reply too large for UDP, use TCP\r\n");
    for key in ["absent", "missing"] {
        let token = lease(&mut connection, key);
        assert!(token > HOT_MISS, "{key} has the token {token}");
        assert_eq!(lease(&mut connection, key), HOT_MISS);
        connection.exchange(format!("lease-set {key} {token} 0 0 1\r\n1\r\n"), "STORED\r\n");
    }
}

/// Likewise where the bound is the length of the request, as the client's address is not known.
#[test]
fn a_reply_that_a_stranger_may_not_get_leaves_no_lease_behind() {
    let (server, socket) = start();
    socket.send(&request(5, "lease-get a\r\n")).expect("sent");
    assert_eq!(receive(&socket, 5).0, "ERROR\r\n");
    assert!(lease(&mut server.connect(), "a") > HOT_MISS);
}

/// The token of a `lease-get` that misses.
fn lease(connection: &mut Client, key: &str) -> u64 {
    connection.send(format!("lease-get {key}\r\n"));
    let line = connection.read_line();
    let token = line.strip_prefix(&format!("LVALUE {key} ")).and_then(|rest| rest.split(' ').next());
    let token = token.and_then(|token| token.parse().ok()).unwrap_or_else(|| panic!("{line}"));
    assert_eq!((connection.read_line(), connection.read_line()), (String::new(), "END".to_owned()));
    token
}

/// While the server is stopped, more datagrams arrive than one call receives: from several clients, valid and invalid,
/// and with more keys together than a batch holds. Each client gets the replies to its own datagrams, in order.
#[test]
fn waiting_datagrams_are_answered_one_by_one() {
    let (server, first) = start_with(&["-t", "1"]);
    let mut connection = server.connect();
    let value: String = (0..3_000).map(|n| char::from(b'a' + (n % 23) as u8)).collect();
    connection.exchange(format!("set long 0 0 3000\r\n{value}\r\n"), "STORED\r\n");
    connection.exchange("set count 0 0 1\r\n0\r\n", "STORED\r\n");
    let port = first.peer_addr().expect("it is connected").port();
    let clients: Vec<UdpSocket> = (0..5).map(|_| client_of(port)).collect();
    let (many, huge) = ("none ".repeat(100), "x".repeat(20_000));
    server.signal(rustix::process::Signal::STOP);
    // Its reply exceeds the bound: the rest of it must not get into other replies.
    first.send(&request(9, &format!("get {}\r\nget count\r\n", "long ".repeat(50)))).expect("sent");
    for turn in 0..4 {
        for client in &clients {
            client.send(b"short").expect("sent");
            client.send(&request(turn, &format!("get {many}long\r\nincr count 1\r\n"))).expect("sent");
        }
    }
    first.send(&request(4, &format!("set huge 0 0 20000\r\n{huge}\r\n"))).expect("sent");
    server.signal(rustix::process::Signal::CONT);
    let long = format!("VALUE long 0 3000\r\n{value}\r\nEND\r\n");
    assert_eq!(receive(&first, 9).0, "SERVER_ERROR reply too large for UDP, use TCP\r\n");
    let mut counts = Vec::new();
    for turn in 0..4 {
        for client in &clients {
            let (text, datagrams) = receive(client, turn);
            let count = text.strip_prefix(&long).unwrap_or_else(|| panic!("{text}"));
            counts.push(count.trim_end().parse::<u32>().expect("a count"));
            assert_eq!(datagrams, 3);
        }
    }
    assert_eq!(receive(&first, 4).0, "STORED\r\n");
    assert!(counts.is_sorted() && counts.len() == 20 && counts[19] == 20, "{counts:?}");
}

#[test]
fn each_worker_answers_at_its_own_port_and_all_at_the_shared_one() {
    let first = free_udp_ports(4);
    let (server, shared) = start_with(&["-t", "3", "--udp-worker-ports", &first.to_string()]);
    server.wait_for_log(&format!("UDP ports {first} to {}", first + 2));
    let mut connection = server.connect();
    connection.exchange("set k 0 0 3\r\nabc\r\n", "STORED\r\n");
    let clients = (first..first + 3).map(client_of);
    for (id, client) in (1..).zip(clients.chain([shared])) {
        client.send(&request(id, "get k\r\n")).expect("sent");
        assert_eq!(receive(&client, id), ("VALUE k 0 3\r\nabc\r\nEND\r\n".to_string(), 1));
    }
    let stranger = client_of(first + 3);
    let _ = stranger.send(&request(9, "get k\r\n"));
    let refused = stranger.recv(&mut [0; 64]).expect_err("there are three workers");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    connection.send("stats settings\r\n");
    let settings: Vec<String> =
        std::iter::repeat_with(|| connection.read_line()).take_while(|line| line != "END").collect();
    let listed = format!("STAT udp_worker_ports {first}-{}", first + 2);
    assert!(settings.contains(&listed), "{settings:?}");
}
