//! Any datagrams: a message is complete only if its datagrams came in order, and it is never over the limit.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lookaside_protocol::udp::{FrameHeader, Reassembled, Reassembly, compose_datagrams, datagrams};

const MESSAGE_BYTES_MAX: usize = 256;

fuzz_target!(|bytes: &[u8]| {
    let (mut reassembly, mut message, mut accepted) = (Reassembly::new(0, MESSAGE_BYTES_MAX), Vec::new(), 0);
    for datagram in bytes.split(|&byte| byte == b'|') {
        match reassembly.push(datagram, &mut message) {
            Ok(Reassembled::OtherRequest) => {}
            Ok(step) => {
                let (header, _) = FrameHeader::parse(datagram).expect("it has just been accepted");
                assert_eq!(header.sequence, accepted);
                accepted += 1;
                assert_eq!(step == Reassembled::Whole, header.sequence + 1 == header.count);
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        assert!(message.len() <= MESSAGE_BYTES_MAX);
    }
    let (mut reassembly, mut sent, mut received) = (Reassembly::new(7, bytes.len()), Vec::new(), Vec::new());
    assert!(compose_datagrams(7, bytes, &mut sent));
    for datagram in datagrams(&sent) {
        reassembly.push(datagram, &mut received).expect("all of them, in order");
    }
    assert_eq!(received, bytes);
});
