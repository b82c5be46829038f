//! The flags that say where clients come in: mcrouter's names, and what `lookaside-server`'s `-l` takes.

use crate::frontend::listen::listen_spec::{Entry, entries};
use crate::frontend::listen::{Door, Place, Security};
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
    /// The same for clients that speak TLS; needs --pem-cert-path
    #[arg(long = "ssl-port", value_name = "PORT[,PORT...]", value_delimiter = ',')]
    pub ssl_ports: Vec<u16>,
    /// Addresses for clients: HOST or HOST:PORT ([V6]:PORT), names too, * for all. The default, 127.0.0.1, is reached
    /// from this machine alone; who can reach an address is let in, and nobody is asked for a password. notls:, btls: or
    /// mtls: in front makes one plain, TLS without or TLS with client certificates
    #[arg(
        short = 'l',
        long = "listen",
        visible_alias = "listen-addresses",
        value_name = "ADDRESSES",
        value_delimiter = ','
    )]
    pub addresses: Vec<String>,
    /// A unix socket for clients; in place of TCP, unless -p, --ssl-port or -l asks for that too
    #[arg(short = 's', long = "unix-domain-sock", visible_alias = "unix-socket", value_name = "FILE")]
    pub unix_path: Option<PathBuf>,
    /// Who may connect to the unix socket: its access mode, in octal
    #[arg(long = "unix-mask", value_name = "MODE", default_value = "700", value_parser = mode)]
    pub unix_mode: u32,
    /// Connections that may wait to be accepted, for each thread
    #[arg(long, visible_alias = "listen-backlog", value_name = "CONNECTIONS", default_value_t = BACKLOG, value_parser = clap::value_parser!(i32).range(1..))]
    pub tcp_listen_backlog: i32,
}

/// A port for addresses that name none.
#[derive(Clone, Copy)]
struct Port {
    number: u16,
    choice: usize,
    security: Security,
}

impl ListenOptions {
    /// All that is to be opened; `tls` is how clients of --ssl-port are protected. Looks names up; an error names what is
    /// wrong with which address.
    pub(crate) fn doors(&self, tls: Security) -> Result<Vec<Door>, String> {
        let mut doors = Vec::new();
        let ports = self.ports(tls);
        let entries = entries(&self.addresses)?;
        if entries.is_empty() {
            if !self.addresses.is_empty() {
                return Err("-l names no address".to_owned());
            }
            for Port { number, choice, security } in ports.iter().copied() {
                add(&mut doors, Place::Tcp { address: (LOOPBACK, number).into(), choice }, security)?;
            }
        }
        let mut opened = Vec::new();
        for (at, entry) in entries.iter().enumerate() {
            for Port { number, choice, security } in ports_at(entry, &ports, ports.len() + at)? {
                opened.push((number, security));
                for address in entry.look_up(number)? {
                    add(&mut doors, Place::Tcp { address, choice }, security)?;
                }
            }
        }
        if !entries.is_empty() {
            self.check_tls_is_opened(&opened)?;
        }
        if let Some(path) = self.unix_path.clone() {
            // Its mode says who may connect; nobody can listen in.
            add(&mut doors, Place::Unix { path, mode: self.unix_mode }, Security::Plain)?;
        }
        Ok(doors)
    }

    /// Who asks for a port with TLS gets one: nobody is to take a plain one for it.
    fn check_tls_is_opened(&self, opened: &[(u16, Security)]) -> Result<(), String> {
        let is_opened =
            |wanted: &u16| opened.iter().any(|(number, security)| number == wanted && is_secured(*security));
        match self.ssl_ports.iter().find(|port| !is_opened(port)) {
            Some(port) => Err(format!(
                "--ssl-port {port} is opened nowhere: every -l names a port of its own, or is plain; write btls:HOST:{port}"
            )),
            None => Ok(()),
        }
    }

    /// The ports for addresses that name none.
    fn ports(&self, tls: Security) -> Vec<Port> {
        let is_default = self.ports.is_empty() && self.ssl_ports.is_empty() && self.unix_path.is_none();
        let plain = if is_default { &[DEFAULT_PORT][..] } else { &self.ports };
        let plain = plain.iter().map(|number| (*number, Security::Plain));
        let ports = plain.chain(self.ssl_ports.iter().map(|number| (*number, tls)));
        ports.enumerate().map(|(choice, (number, security))| Port { number, choice, security }).collect()
    }
}

/// The ports at an address of -l: its own, or those of its kind. What protects it is the stricter of what it says itself
/// and what holds for its port.
fn ports_at(entry: &Entry<'_>, ports: &[Port], choice: usize) -> Result<Vec<Port>, String> {
    if let Some(number) = entry.port {
        let is_named = |port: &&Port| number != 0 && port.number == number && is_secured(port.security);
        let of_port = ports.iter().find(is_named).map(|port| port.security).unwrap_or_default();
        let security = match entry.security {
            Some(Security::Plain) => Security::Plain,
            said => said.unwrap_or_default().max(of_port),
        };
        return Ok(vec![Port { number, choice, security }]);
    }
    let is_fit = |port: &&Port| entry.security.is_none_or(|wanted| is_secured(wanted) == is_secured(port.security));
    let fit = ports.iter().filter(is_fit);
    let fit: Vec<_> = fit
        .map(|port| Port { security: entry.security.map_or(port.security, |said| said.max(port.security)), ..*port })
        .collect();
    match fit.is_empty() {
        true => {
            Err("-l has an address for which no port is given: write it behind the address, or give one for all with \
                     --port or, for TLS, --ssl-port"
                .to_owned())
        }
        false => Ok(fit),
    }
}

fn is_secured(security: Security) -> bool {
    security != Security::Plain
}

/// Adds a door unless it is there: `localhost,127.0.0.1` is one.
fn add(doors: &mut Vec<Door>, place: Place, security: Security) -> Result<(), String> {
    let is_same = |door: &&Door| match (&door.place, &place) {
        (Place::Tcp { address, choice }, Place::Tcp { address: other, choice: other_choice }) => {
            address == other && (address.port() != 0 || choice == other_choice)
        }
        (Place::Unix { path, .. }, Place::Unix { path: other, .. }) => path == other,
        _ => false,
    };
    match (doors.iter().find(is_same), &place) {
        (None, _) => doors.push(Door { place, security }),
        (Some(door), Place::Tcp { address, .. }) if door.security != security => {
            return Err(format!("{address} is named twice, and protected in two ways"));
        }
        (Some(_), _) => {}
    }
    Ok(())
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
        opened_with(arguments, Security::Tls)
    }

    fn opened_with(arguments: &[&str], tls: Security) -> Result<Vec<String>, String> {
        let line = Line::try_parse_from([&["router"], arguments].concat()).map_err(|error| error.to_string())?;
        let doors = line.listen.doors(tls)?;
        let place = |place: Place| match place {
            Place::Tcp { address, choice } if address.port() == 0 => format!("{address} {choice}"),
            Place::Tcp { address, .. } => address.to_string(),
            Place::Unix { path, mode } => format!("{} {mode:o}", path.display()),
        };
        let name = |door: Door| match door.security {
            Security::Plain => place(door.place),
            Security::Tls => place(door.place) + " tls",
            Security::MutualTls => place(door.place) + " mutual",
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
    fn tls_is_at_ports_of_its_own() {
        for (arguments, expected) in [
            (&["--ssl-port", "7"][..], &["127.0.0.1:7 tls"][..]),
            (&["--ssl-port", "7", "-p", "8"], &["127.0.0.1:8", "127.0.0.1:7 tls"]),
            (
                &["--ssl-port", "7", "-p", "8", "-l", "notls:10.0.0.1,mtls:10.0.0.2,10.0.0.3,btls:10.0.0.4:9"],
                &["10.0.0.1:8", "10.0.0.2:7 mutual", "10.0.0.3:8", "10.0.0.3:7 tls", "10.0.0.4:9 tls"],
            ),
        ] {
            let expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
            assert_eq!(opened(arguments), Ok(expected), "{arguments:?}");
        }
        assert!(opened(&["-l", "btls:10.0.0.1"]).is_err_and(|why| why.contains("--ssl-port")));
        assert!(opened(&["-l", "10.0.0.1:7,btls:10.0.0.1:7"]).is_err_and(|why| why.contains("10.0.0.1:7 is named")));
    }

    #[test]
    fn an_address_with_a_port_for_tls_is_reached_by_tls() {
        for (arguments, expected) in [
            (&["--ssl-port", "7", "-l", "10.0.0.1:7"][..], &["10.0.0.1:7 tls"][..]),
            (&["--ssl-port", "7", "-p", "8", "-l", "10.0.0.1:7,10.0.0.1:8"], &["10.0.0.1:7 tls", "10.0.0.1:8"]),
            (&["--ssl-port", "7", "-l", "10.0.0.1:7,notls:10.0.0.2:7"], &["10.0.0.1:7 tls", "10.0.0.2:7"]),
        ] {
            let expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
            assert_eq!(opened(arguments), Ok(expected), "{arguments:?}");
        }
        for plain in ["10.0.0.1:8", "notls:10.0.0.1:7"] {
            let refused = opened(&["--ssl-port", "7", "-l", plain]);
            assert!(refused.is_err_and(|why| why.contains("--ssl-port 7 is opened nowhere")), "{plain}");
        }
    }

    #[test]
    fn an_address_does_not_loosen_what_holds_for_its_port() {
        for address in ["10.0.0.1", "btls:10.0.0.1", "mtls:10.0.0.1", "10.0.0.1:7", "btls:10.0.0.1:7"] {
            let opened = opened_with(&["--ssl-port", "7", "-l", address], Security::MutualTls);
            assert_eq!(opened, Ok(vec!["10.0.0.1:7 mutual".to_owned()]), "{address}");
        }
    }

    #[test]
    fn what_names_no_place_is_refused() {
        for bad in [&["-p", "70000"][..], &["-l", ","], &["-l", "127.0.0.1:x"], &["--unix-mask", "8"], &["-p", "7,"]] {
            assert!(opened(bad).is_err(), "{bad:?}");
        }
    }
}
