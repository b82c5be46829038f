//! `-p` and `-U`: the ports that are opened.
//!
//! | given | TCP | UDP |
//! |---|---|---|
//! | nothing | 11211 | off |
//! | `-p N` | N | off |
//! | `-U N` | N as well | N |
//! | `-p -1` | a free one | off |
//! | `-U -1` | a free one of its own | a free one |
//! | `-p 0` | off | as `-U` says |

use super::Arguments;

const TCP_PORT_DEFAULT: u16 = 11211;

/// A port of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// 0: none is opened.
    Off,
    /// -1: the system picks one that is free.
    Free,
    /// This one.
    Number(u16),
}

impl Port {
    /// Parses a number from -1 to 65535.
    pub(super) fn parse(text: &str) -> Result<Port, String> {
        let number = text.parse::<i32>().ok();
        match number.map(|number| (number, u16::try_from(number))) {
            Some((-1, _)) => Ok(Port::Free),
            Some((0, _)) => Ok(Port::Off),
            Some((_, Ok(number))) => Ok(Port::Number(number)),
            _ => Err("a port is a number up to 65535, 0 for none or -1 for a free one".to_string()),
        }
    }

    /// The number to bind; 0 for a free one. `None` if no port is opened.
    pub(crate) fn to_bind(self) -> Option<u16> {
        match self {
            Port::Off => None,
            Port::Free => Some(0),
            Port::Number(number) => Some(number),
        }
    }
}

impl Arguments {
    /// The TCP port.
    pub fn tcp_port(&self) -> Port {
        self.port.unwrap_or(match self.udp_port {
            Port::Off => Port::Number(TCP_PORT_DEFAULT),
            udp_port => udp_port,
        })
    }

    /// The UDP port; off beside a Unix socket, and beside TLS unless `-o plain_udp` allows it.
    pub fn served_udp_port(&self) -> Port {
        let is_refused_by_tls = self.tls && !self.compatible.allows_plain_udp();
        if self.unix_path.is_some() || is_refused_by_tls { Port::Off } else { self.udp_port }
    }

    pub(crate) fn serves_udp(&self) -> bool {
        self.served_udp_port() != Port::Off
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(words: &[&str]) -> (Port, Port) {
        let arguments = Arguments::read([&["lookaside-server"], words].concat()).expect("options of memcached");
        (arguments.tcp_port(), arguments.served_udp_port())
    }

    #[test]
    fn ports_are_those_of_memcached() {
        let (free, off, seven, nine) = (Port::Free, Port::Off, Port::Number(7), Port::Number(9));
        for (words, expected) in [
            (&[][..], (Port::Number(11211), off)),
            (&["-p", "7"], (seven, off)),
            (&["-U", "7"], (seven, seven)),
            (&["-p", "9", "-U", "7"], (nine, seven)),
            (&["-p", "-1"], (free, off)),
            (&["-p-1"], (free, off)),
            (&["-U", "-1"], (free, free)),
            (&["--port=7", "--udp-port=-1"], (seven, free)),
            (&["-p", "0", "-U", "7"], (off, seven)),
            (&["-p", "0", "-U", "0"], (off, off)),
            (&["-p", "7", "-U", "7", "-s", "/socket"], (seven, off)),
            (&["-U", "7", "-Z"], (seven, off)),
            (&["-U", "7", "-Z", "-o", "plain_udp"], (seven, seven)),
        ] {
            assert_eq!(ports(words), expected, "{words:?}");
        }
        for bad in ["-2", "65536", "x", ""] {
            assert!(Port::parse(bad).is_err(), "{bad}");
        }
    }
}
