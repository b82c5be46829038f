//! `-vv` and `verbosity 2`: logs commands and replies, line by line, in memcached's format:
//!
//! ```text
//! <33 get k                  a command, without its value
//! >33 sending key k          an item
//! >33 END                    any other line of a reply
//! <34    0x80 0x00 0x00 ..   the header of a binary request, six lines, and with `<34 key` its key; >34 of a response
//! ```
//!
//! Never logged: values; the replies of `stats` and listings; and refused commands where clients authenticate, because
//! one may be a password. A command that pauses because its client reads slowly is logged again when it resumes. While
//! the trace is off, a connection costs one check of the log's level per round. Deliberately absent: UDP.

use lookaside_protocol::binary::{REQUEST_MAGIC, RESPONSE_MAGIC};
use tracing::Level;

/// At most this many bytes of a line are logged.
const LINE_BYTES_MAX: usize = 512;

/// The prefixes of lines of statistics and listings.
const LISTINGS: [&[u8]; 5] = [b"STAT ", b"ITEM ", b"PREFIX ", b"key=", b"mg "];

const BINARY_HEADER_BYTES: usize = 24;

pub(crate) struct CommandTrace(i32);

impl CommandTrace {
    /// The trace of this connection; `None` if the log is not verbose enough.
    pub(crate) fn if_enabled(descriptor: i32) -> Option<CommandTrace> {
        tracing::enabled!(Level::TRACE).then_some(CommandTrace(descriptor))
    }

    /// Logs the commands that are about to be executed. `offsets` has each command's start in `input`, and whether it
    /// is refused.
    pub(crate) fn log_commands(&self, offsets: impl Iterator<Item = (usize, bool)>, input: &[u8], hides_refused: bool) {
        for (input_at, is_refused) in offsets {
            match input.get(input_at..) {
                _ if is_refused && hides_refused => self.log_lines('<', &["(refused, not logged)".to_string()]),
                Some(command) if command.first() == Some(&REQUEST_MAGIC) => self.log_lines('<', &binary_lines(command)),
                Some(command) => self.log_lines('<', &[escape(first_line(command))]),
                None => {}
            }
        }
    }

    /// Logs a part of a reply that consists of whole lines.
    pub(crate) fn log_reply(&self, reply: &[u8]) {
        self.log_lines('>', &reply_lines(reply));
    }

    fn log_lines(&self, direction: char, lines: &[String]) {
        let descriptor = self.0;
        lines.iter().for_each(|line| tracing::trace!("{direction}{descriptor} {line}"));
    }
}

fn reply_lines(mut reply: &[u8]) -> Vec<String> {
    let mut lines = Vec::new();
    while !reply.is_empty() {
        if reply[0] == RESPONSE_MAGIC {
            lines.extend(binary_lines(reply));
            reply = reply.get(BINARY_HEADER_BYTES.saturating_add(body_bytes(reply))..).unwrap_or_default();
            continue;
        }
        let line = first_line(reply);
        let rest = reply.iter().position(|&byte| byte == b'\n').map_or(reply.len(), |end| end + 1);
        reply = &reply[rest..];
        let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        // These lines are followed by a value.
        let value_bytes = match words[..] {
            [b"VALUE", key, _, bytes] | [b"VALUE", key, _, bytes, _] => {
                lines.push(format!("sending key {}", escape(key)));
                parse_number(bytes)
            }
            [b"LVALUE", _, _, _, bytes] | [b"VA", bytes, ..] => {
                lines.push(escape(line));
                parse_number(bytes)
            }
            _ => {
                if !LISTINGS.iter().any(|beginning| line.starts_with(beginning)) {
                    lines.push(escape(line));
                }
                None
            }
        };
        if let Some(bytes) = value_bytes {
            reply = reply.get(bytes.saturating_add(2)..).unwrap_or_default();
        }
    }
    lines
}

/// The header, four bytes a line, and the key. The rest is never logged.
fn binary_lines(packet: &[u8]) -> Vec<String> {
    let header = &packet[..packet.len().min(BINARY_HEADER_BYTES)];
    let mut lines: Vec<String> = header
        .chunks(4)
        .map(|bytes| bytes.iter().fold("  ".to_string(), |line, byte| line + &format!(" 0x{byte:02x}")))
        .collect();
    let [_, _, key_high, key_low, extras, ..] = header[..] else { return lines };
    let key_at = BINARY_HEADER_BYTES + usize::from(extras);
    let key_bytes = usize::from(u16::from_be_bytes([key_high, key_low]));
    if let Some(key) = packet.get(key_at..key_at + key_bytes).filter(|key| !key.is_empty()) {
        lines.push(format!("key {}", escape(key)));
    }
    lines
}

fn body_bytes(packet: &[u8]) -> usize {
    packet.get(8..12).and_then(|bytes| bytes.try_into().ok()).map_or(0, |bytes| u32::from_be_bytes(bytes) as usize)
}

fn first_line(bytes: &[u8]) -> &[u8] {
    let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn parse_number(digits: &[u8]) -> Option<usize> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Escapes bytes so that they stay on one line of the log.
fn escape(bytes: &[u8]) -> String {
    let (logged, dots) = if bytes.len() > LINE_BYTES_MAX { (&bytes[..LINE_BYTES_MAX], "...") } else { (bytes, "") };
    format!("{}{dots}", logged.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_skipped_and_lines_stay_lines() {
        let reply =
            b"VALUE k 0 10\r\nEND\r\n>33 x\r\nVALUE l 0 0 77\r\n\r\nEND\r\nVA 2 k\x1b\r\nEN\r\nHD\r\nSTAT pid 1\r\n\
                      LVALUE k 1 0 3\r\nold\r\nEND\r\n";
        let logged = ["sending key k", "sending key l", "END", "VA 2 k\\x1b", "HD", "LVALUE k 1 0 3", "END"];
        assert_eq!(reply_lines(reply), logged);
        assert_eq!(reply_lines(b"VALUE k 0 100\r\ncut"), ["sending key k"]);
        assert_eq!(reply_lines(format!("VALUE k 0 {}\r\nx", usize::MAX).as_bytes()), ["sending key k"]);
        assert_eq!(reply_lines(&[b'x'; 2_000]), ["x".repeat(LINE_BYTES_MAX) + "..."]);
    }

    #[test]
    fn of_a_binary_packet_header_and_key_are_logged() {
        let mut packet = vec![REQUEST_MAGIC, 1, 0, 3, 8, 0, 0, 0, 0, 0, 0, 17];
        packet.resize(BINARY_HEADER_BYTES, 0);
        packet.extend_from_slice(&[9; 8]);
        packet.extend_from_slice(b"keysecret");
        let lines = binary_lines(&packet);
        assert_eq!((lines[0].as_str(), lines.len(), lines[6].as_str()), ("   0x80 0x01 0x00 0x03", 7, "key key"));
        assert_eq!(binary_lines(&packet[..3]), ["   0x80 0x01 0x00"]);
        packet[0] = RESPONSE_MAGIC;
        let (both, rest) = (reply_lines(&[&packet[..], b"behind it"].concat()), "behind it");
        assert_eq!((both.len(), both[7].as_str()), (8, rest), "the length of the body is in its header");
    }
}
