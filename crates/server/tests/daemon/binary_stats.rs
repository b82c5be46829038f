//! `stat` of the binary protocol, for statistics that only the text protocol has.

use crate::running_server::RunningServer;
use lookaside_protocol::binary::{BinaryCommand, BinaryRequest, ResponseTag, compose_request, opcode};

/// One statistic as the binary protocol sends it; an empty one is the last.
fn stat(name: &str, value: &str) -> Vec<u8> {
    let body_bytes = u8::try_from(name.len() + value.len()).expect("a short statistic");
    let key_bytes = u8::try_from(name.len()).expect("a short name");
    let mut response = vec![0; 24];
    (response[0], response[1], response[3], response[11]) = (0x81, opcode::STAT, key_bytes, body_bytes);
    response.extend_from_slice(name.as_bytes());
    response.extend_from_slice(value.as_bytes());
    response
}

#[test]
fn sizes_name_the_protocol_that_has_them() {
    let server = RunningServer::start(&["-o", "track_sizes"]);
    let mut client = server.connect();
    let mut request = Vec::new();
    let tag = ResponseTag { opcode: opcode::STAT, opaque: 0 };
    compose_request(&BinaryRequest { tag, command: BinaryCommand::Stats { arguments: b"sizes" } }, &mut request);
    let expected =
        [stat("sizes_status", "error"), stat("sizes_error", "available in the text protocol only"), stat("", "")];
    client.exchange(request, expected.concat());
}
