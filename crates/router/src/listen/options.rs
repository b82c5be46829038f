//! The flags that say where clients come in: mcrouter's names, and what `lookaside-server`'s `-l` takes.

use super::address::{Entry, entries};
use super::{Door, Place};
use clap::Args;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

/// The port of a router that is told none: mcrouter's.
const DEFAULT_PORT: u16 = 5000;

/// Where a router listens that is told no address.
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Connections that may wait to be accepted, at each socket.
const BACKLOG: i32 = 1024;

/// Where clients come in.
#[derive(Clone, Debug, Args)]
pub struct ListenOptions {
    /// TCP ports for clients, at every address of -l that names none; 0 takes a free one and prints it [default: 5000]
    #[arg(short = 'p', long = "port", value_name = "PORT[,PORT...]", value_delimiter = ',')]
    pub ports: Vec<u16>,
    /// Addresses for clients: HOST or HOST:PORT ([V6]:PORT), names too, * for all. The default, 127.0.0.1, is reached
    /// from this machine alone; who can reach an address is let in, and nobody is asked for a password
    #[arg(
        short = 'l',
        long = "listen",
        visible_alias = "listen-addresses",
        value_name = "ADDRESSES",
        value_delimiter = ','
    )]
    pub addresses: Vec<String>,
    /// A unix socket for clients; in place of TCP, unless -p or -l asks for that too
    #[arg(short = 's', long = "unix-domain-sock", visible_alias = "unix-socket", value_name = "FILE")]
    pub unix_path: Option<PathBuf>,
    /// Who may connect to the unix socket: its access mode, in octal
    #[arg(long = "unix-mask", value_name = "MODE", default_value = "700", value_parser = mode)]
    pub unix_mode: u32,
    /// Connections that may wait to be accepted, for each thread
    #[arg(long, visible_alias = "listen-backlog", value_name = "CONNECTIONS", default_value_t = BACKLOG, value_parser = clap::value_parser!(i32).range(1..))]
    pub tcp_listen_backlog: i32,
}

impl ListenOptions {
    /// All that is to be opened. Looks names up; an error names what is wrong with which address.
    pub(crate) fn doors(&self) -> Result<Vec<Door>, String> {
        let mut doors = Vec::new();
        let entries = entries(&self.addresses)?;
        if entries.is_empty() && !self.addresses.is_empty() {
            return Err("-l names no address".to_owned());
        }
        let ports = self.ports_of(&entries)?;
        for (at, entry) in entries.iter().enumerate() {
            let ports = match entry.port {
                Some(port) => vec![(ports.len() + at, port)],
                None => ports.iter().copied().enumerate().collect(),
            };
            for (choice, port) in ports {
                for address in entry.look_up(port)? {
                    add(&mut doors, Place::Tcp { address, choice });
                }
            }
        }
        if entries.is_empty() {
            for (choice, port) in ports.into_iter().enumerate() {
                add(&mut doors, Place::Tcp { address: (LOOPBACK, port).into(), choice });
            }
        }
        if let Some(path) = self.unix_path.clone() {
            add(&mut doors, Place::Unix { path, mode: self.unix_mode });
        }
        Ok(doors)
    }

    /// The ports for addresses that name none.
    fn ports_of(&self, entries: &[Entry<'_>]) -> Result<Vec<u16>, String> {
        let takes_default = self.ports.is_empty() && self.unix_path.is_none();
        if takes_default {
            return Ok(vec![DEFAULT_PORT]);
        }
        if self.ports.is_empty() && entries.iter().any(|entry| entry.port.is_none()) {
            return Err("-l has an address without a port, and with --unix-domain-sock none is assumed: give it one, \
                        or all of them one with --port"
                .to_owned());
        }
        Ok(self.ports.clone())
    }
}

/// Adds a door unless it is there: `localhost,127.0.0.1` is one.
fn add(doors: &mut Vec<Door>, place: Place) {
    let is_same = |door: &Door| match (&door.place, &place) {
        (Place::Tcp { address, choice }, Place::Tcp { address: other, choice: other_choice }) => {
            address == other && (address.port() != 0 || choice == other_choice)
        }
        (Place::Unix { path, .. }, Place::Unix { path: other, .. }) => path == other,
        _ => false,
    };
    if !doors.iter().any(is_same) {
        doors.push(Door { place });
    }
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "an access mode is an octal number up to 777".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        listen: ListenOptions,
    }

    fn opened(arguments: &[&str]) -> Result<Vec<String>, String> {
        let line = Line::try_parse_from([&["router"], arguments].concat()).map_err(|error| error.to_string())?;
        let doors = line.listen.doors()?;
        let name = |door: Door| match door.place {
            Place::Tcp { address, choice } if address.port() == 0 => format!("{address} {choice}"),
            Place::Tcp { address, .. } => address.to_string(),
            Place::Unix { path, mode } => format!("{} {mode:o}", path.display()),
        };
        Ok(doors.into_iter().map(name).collect())
    }

    #[test]
    fn every_address_has_every_port_unless_it_names_its_own() {
        for (arguments, expected) in [
            (&[][..], &["127.0.0.1:5000"][..]),
            (&["-p", "7,8"], &["127.0.0.1:7", "127.0.0.1:8"]),
            (&["-p", "7", "-l", "10.0.0.1,10.0.0.2:9"], &["10.0.0.1:7", "10.0.0.2:9"]),
            (&["--listen-addresses", "::1;*"], &["[::1]:5000", "0.0.0.0:5000"]),
            (&["-p", "7", "-l", "127.0.0.1,127.0.0.1:7,tag[a]:127.0.0.1"], &["127.0.0.1:7"]),
            (&["-p", "0,0", "-l", "::1,127.0.0.1"], &["[::1]:0 0", "[::1]:0 1", "127.0.0.1:0 0", "127.0.0.1:0 1"]),
        ] {
            let expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
            assert_eq!(opened(arguments), Ok(expected), "{arguments:?}");
        }
    }

    #[test]
    fn a_unix_socket_stands_alone_unless_more_is_asked_for() {
        for (arguments, expected) in [
            (&["-s", "/run/router"][..], &["/run/router 700"][..]),
            (&["-s", "/r", "-p", "7", "--unix-mask", "0770"], &["127.0.0.1:7", "/r 770"]),
            (&["-s", "/r", "-l", "10.0.0.1:7"], &["10.0.0.1:7", "/r 700"]),
        ] {
            let expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
            assert_eq!(opened(arguments), Ok(expected), "{arguments:?}");
        }
        assert!(opened(&["-s", "/r", "-l", "10.0.0.1"]).is_err_and(|why| why.contains("--port")));
    }

    #[test]
    fn what_names_no_place_is_refused() {
        for bad in [&["-p", "70000"][..], &["-l", ","], &["-l", "127.0.0.1:x"], &["--unix-mask", "8"], &["-p", "7,"]] {
            assert!(opened(bad).is_err(), "{bad:?}");
        }
    }
}
