//! Any bytes sent to a server: the parser does not panic, makes progress, and never parses a part of a command as
//! another command; a command stays the same when it is composed and parsed again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lookaside_protocol::text::{Limits, Parsed, compose_command, parse_command};

const LIMITS: Limits = Limits { value_bytes_max: 64, line_bytes_max: 512 };

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    loop {
        let parsed = parse_command(rest, &LIMITS);
        let (consumed, swallow) = match &parsed {
            Parsed::Incomplete { needed_bytes } => {
                assert!(*needed_bytes > rest.len());
                return;
            }
            Parsed::Bad { close: Some(_), .. } => return,
            Parsed::Bad { consumed, swallow, .. } => (*consumed, *swallow),
            Parsed::Command { command, consumed } => {
                let mut composed = Vec::new();
                compose_command(command, &mut composed);
                // A composed number may be a little longer than the parsed one.
                let limits = Limits { line_bytes_max: 1024, ..LIMITS };
                let again = Parsed::Command { command: command.clone(), consumed: composed.len() };
                assert_eq!(parse_command(&composed, &limits), again);
                (*consumed, 0)
            }
        };
        assert!(consumed > 0 && consumed <= rest.len());
        for cut in 0..consumed {
            let half = parse_command(&rest[..cut], &LIMITS);
            assert!(
                matches!(half, Parsed::Incomplete { needed_bytes } if needed_bytes > cut && needed_bytes <= consumed)
            );
        }
        rest = &rest[(consumed + swallow).min(rest.len())..];
    }
});
