//! Any bytes sent to a server: nothing panics or stands still, half of them never reads as something else than all, and
//! what is a command stays the same when it is composed and read again.
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
            Parsed::Bad { close: true, .. } => return,
            Parsed::Bad { consumed, swallow, .. } => (*consumed, *swallow),
            Parsed::Command { command, consumed } => {
                let mut composed = Vec::new();
                compose_command(command, &mut composed);
                // A composed number may be longer than the one read, never by much.
                let limits = Limits { line_bytes_max: 1024, ..LIMITS };
                let again = Parsed::Command { command: command.clone(), consumed: composed.len() };
                assert_eq!(parse_command(&composed, &limits), again);
                (*consumed, 0)
            }
        };
        assert!(consumed > 0 && consumed <= rest.len());
        for cut in 0..consumed {
            let half = parse_command(&rest[..cut], &LIMITS);
            assert!(matches!(half, Parsed::Incomplete { needed_bytes } if needed_bytes > cut && needed_bytes <= consumed));
        }
        rest = &rest[(consumed + swallow).min(rest.len())..];
    }
});
