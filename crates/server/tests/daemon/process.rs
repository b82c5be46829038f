//! How the process starts, which errors it reports, and how it ends.

use crate::running_server::{RunningServer, command, run_to_end};
use rustix::process::Signal;
use std::process::Stdio;

#[test]
fn both_signals_end_it_cleanly() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut server = RunningServer::start(&[]);
        let mut client = server.connect();
        client.exchange("get k\r\n", "END\r\n");
        server.signal(signal);
        assert_eq!(server.wait().code(), Some(0), "{signal:?}");
        assert_eq!(client.read_to_end(), b"");
    }
}

#[test]
fn a_taken_port_is_named_with_the_flag_that_chooses_another() {
    let server = RunningServer::start(&[]);
    let port = server.port.to_string();
    let output = run_to_end(&mut command(&["-p", &port]));
    let message = String::from_utf8_lossy(&output.stderr).to_string();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains(&format!("127.0.0.1:{port}")) && message.contains("-p"), "{message}");
}

#[test]
fn a_taken_udp_port_is_named_too() {
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("it is bound").port().to_string();
    let output = run_to_end(&mut command(&["-U", &port]));
    let message = String::from_utf8_lossy(&output.stderr).to_string();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains(&format!("127.0.0.1:{port}")) && message.contains("-U"), "{message}");
}

#[test]
fn bad_usage_is_status_two() {
    for arguments in [&["--no-such-flag"][..], &["-m", "lots"], &["-I", "3x"]] {
        let output = run_to_end(&mut command(arguments));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn help_has_examples() {
    let output = run_to_end(&mut command(&["--help"]));
    let help = String::from_utf8_lossy(&output.stdout).to_string();
    assert!(help.contains("Examples:") && help.contains("--lease-interval"), "{help}");
}

#[test]
fn the_ports_are_written_where_memcached_writes_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("ports");
    let mut child = command(&[]).env("MEMCACHED_PORT_FILENAME", &path).stderr(Stdio::null()).spawn().expect("it runs");
    let started = std::time::Instant::now();
    let text = loop {
        match std::fs::read_to_string(&path) {
            Ok(text) => break text,
            Err(_) if started.elapsed() < crate::running_server::DEADLINE => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    let port = text.trim().strip_prefix("TCP INET: ").and_then(|port| port.parse().ok());
    let port: u16 = port.unwrap_or_else(|| panic!("no port in {text:?}"));
    crate::running_server::Client::connect(port).exchange("get k\r\n", "END\r\n");
    child.kill().expect("our own child");
    child.wait().expect("our own child");
}
