//! Any bytes sent to a server or a client in the binary protocol: the parsers do not panic, make progress, and never
//! parse a part of a request as another request; a request stays the same when it is composed and parsed again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lookaside_protocol::binary::{
    BinaryParsed, ParsedResponse, compose_request, compose_response, parse_request, parse_response,
};
use lookaside_protocol::text::Limits;

const LIMITS: Limits = Limits { value_bytes_max: 64, line_bytes_max: 0 };

fuzz_target!(|bytes: &[u8]| {
    check_requests(bytes);
    if let ParsedResponse::Response { response, consumed } = parse_response(bytes, &LIMITS) {
        let mut composed = Vec::new();
        compose_response(&response, &mut composed);
        assert_eq!(composed.len(), consumed);
        assert_eq!(parse_response(&composed, &LIMITS), ParsedResponse::Response { response, consumed });
    }
});

fn check_requests(mut rest: &[u8]) {
    loop {
        let (consumed, swallow) = match parse_request(rest, &LIMITS) {
            BinaryParsed::Incomplete { needed_bytes } => return assert!(needed_bytes > rest.len()),
            BinaryParsed::NotBinary | BinaryParsed::Bad { close: true, .. } => return,
            BinaryParsed::Bad { consumed, swallow, .. } => (consumed, swallow),
            BinaryParsed::Request { request, consumed } => {
                let mut composed = Vec::new();
                compose_request(&request, &mut composed);
                let again = BinaryParsed::Request { request, consumed: composed.len() };
                assert_eq!(parse_request(&composed, &LIMITS), again);
                (consumed, 0)
            }
        };
        assert!(consumed > 0 && consumed <= rest.len());
        for cut in 0..consumed {
            let half = parse_request(&rest[..cut], &LIMITS);
            let is_waiting = matches!(half, BinaryParsed::Incomplete { needed_bytes } if needed_bytes > cut);
            assert!(is_waiting && cut < consumed);
        }
        rest = &rest[(consumed + swallow).min(rest.len())..];
    }
}
