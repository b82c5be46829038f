//! The flags for listeners: mcrouter's names, and the `-l` of `lookaside-server`.

use crate::frontend::listen::{Endpoint, ListenAddress};
use clap::Args;
use lookaside_net::{ListenSpec, TlsMode, parse_mode};
use lookaside_upgrade::Inherited;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

/// The default port: mcrouter's.
pub(super) const DEFAULT_PORT: u16 = 5000;

/// The default address.
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The default queue of connections to accept, per socket.
const BACKLOG: i32 = 1024;

/// The listeners for clients.
#[derive(Clone, Debug, Args)]
pub struct ListenOptions {
    /// TCP ports for clients, at every address of -l without a port; 0 chooses a free one and logs it [default: 5000]
    #[arg(short = 'p', long = "port", value_name = "PORT[,PORT...]", value_delimiter = ',')]
    pub ports: Vec<u16>,
    /// The same for clients that use TLS; requires --pem-cert-path
    #[arg(long = "ssl-port", value_name = "PORT[,PORT...]", value_delimiter = ',')]
    pub ssl_ports: Vec<u16>,
    /// Addresses for clients: HOST or HOST:PORT ([V6]:PORT), names too, * for all. The default, 127.0.0.1, accepts only
    /// clients on this machine. Without -Y every client that reaches an address is served. The prefixes
    /// notls:, btls: and mtls: make an address plain, TLS without or TLS with client certificates
    #[allow(rustdoc::broken_intra_doc_links, reason = "the text of --help")]
    #[arg(
        short = 'l',
        long = "listen",
        visible_alias = "listen-addresses",
        value_name = "ADDRESSES",
        value_delimiter = ','
    )]
    pub addresses: Vec<String>,
    /// A unix socket for clients; replaces TCP, except for addresses of -l with a port of their own
    #[arg(short = 's', long = "unix-domain-sock", visible_alias = "unix-socket", value_name = "FILE")]
    pub unix_path: Option<PathBuf>,
    /// The unix socket's access mode, in octal: the users that may connect
    #[arg(long = "unix-mask", value_name = "MODE", default_value = "700", value_parser = parse_mode)]
    pub unix_mode: u32,
    /// Take over the listening socket that the parent of this process has opened as this descriptor, and open no other.
    /// Its clients use no TLS
    #[arg(long, value_name = "FD", default_value_t = -1, allow_negative_numbers = true)]
    pub listen_sock_fd: i32,
    /// Queue of connections to accept, per thread
    #[arg(long, visible_alias = "listen-backlog", value_name = "CONNECTIONS", default_value_t = BACKLOG, value_parser = clap::value_parser!(i32).range(1..))]
    pub tcp_listen_backlog: i32,
}

/// A port for addresses without one.
#[derive(Clone, Copy)]
struct Port {
    number: u16,
    choice: usize,
    tls_mode: TlsMode,
}

impl ListenOptions {
    /// All addresses to listen at; `tls` is the mode of --ssl-port. Resolves names. The error names the address.
    pub(crate) fn listeners(&self, tls: TlsMode) -> Result<Vec<ListenAddress>, String> {
        let mut listeners = Vec::new();
        let ports = self.ports(tls);
        let mut specs = ListenSpec::parse_all(&self.addresses)?;
        specs.iter().try_for_each(check_no_protocol)?;
        if self.unix_path.is_some() {
            specs.retain(|spec| spec.port.is_some());
            if !self.ports.is_empty() || !self.ssl_ports.is_empty() {
                tracing::warn!("--port and --ssl-port are not opened: --unix-domain-sock replaces them");
            }
        }
        if specs.is_empty() {
            self.warn_of_loopback();
            for Port { number, choice, tls_mode } in ports.iter().copied() {
                add_address(&mut listeners, Endpoint::Tcp { address: (LOOPBACK, number).into(), choice }, tls_mode)?;
            }
        }
        let mut opened = Vec::new();
        for (at, spec) in specs.iter().enumerate() {
            for Port { number, choice, tls_mode } in ports_of(spec, &ports, ports.len() + at)? {
                opened.push((number, tls_mode));
                for address in spec.resolve(number)? {
                    add_address(&mut listeners, Endpoint::Tcp { address, choice }, tls_mode)?;
                }
            }
        }
        if !specs.is_empty() && self.unix_path.is_none() {
            self.check_tls_is_opened(&opened)?;
        }
        if let Some(path) = self.unix_path.clone() {
            // The file's mode restricts access, and its bytes stay on this machine.
            add_address(&mut listeners, Endpoint::Unix { path, mode: self.unix_mode }, TlsMode::Plain)?;
        }
        Ok(listeners)
    }

    /// Fails if no option names a port, a socket or a descriptor: mcrouter does not start then.
    pub(super) fn check_has_listener(&self) -> Result<(), String> {
        let has_port = !self.ports.is_empty() || !self.ssl_ports.is_empty();
        let has_other = self.unix_path.is_some() || self.listen_sock_fd >= 0;
        match has_port || has_other || ListenSpec::parse_all(&self.addresses)?.iter().any(|spec| spec.port.is_some()) {
            true => Ok(()),
            false => {
                Err("expected a port: give --port, --ssl-port, --unix-domain-sock or --listen-sock-fd (under its own \
                          name, lookaside-router has a default one)"
                    .to_owned())
            }
        }
    }

    /// Logs that ports are opened at fewer addresses than mcrouter opens them at.
    fn warn_of_loopback(&self) {
        if self.unix_path.is_none() && !(self.ports.is_empty() && self.ssl_ports.is_empty()) {
            tracing::warn!(
                "--port and --ssl-port are opened at {LOOPBACK} alone, where mcrouter opens them at all addresses: add \
                 --listen-addresses='*' to serve other hosts, or --listen-addresses={LOOPBACK} to keep it so"
            );
        }
    }

    /// Adds the socket of --listen-sock-fd to `inherited`, and returns where it listens; `None` without that option.
    pub(crate) fn adopt_socket(&self, inherited: &mut Inherited) -> Result<Option<Endpoint>, String> {
        if self.listen_sock_fd < 0 {
            return Ok(None);
        }
        let address = inherited.adopt(self.listen_sock_fd).map_err(|why| format!("--listen-sock-fd: {why}"))?;
        match (address.as_socket(), address.as_pathname()) {
            (Some(address), _) => Ok(Some(Endpoint::Tcp { address, choice: 0 })),
            (_, Some(path)) => Ok(Some(Endpoint::Unix { path: path.to_owned(), mode: self.unix_mode })),
            _ => Err(format!("--listen-sock-fd {}: expected a TCP or Unix socket", self.listen_sock_fd)),
        }
    }

    /// Fails if a port of --ssl-port is not opened with TLS.
    fn check_tls_is_opened(&self, opened: &[(u16, TlsMode)]) -> Result<(), String> {
        let is_opened =
            |wanted: &u16| opened.iter().any(|(number, tls_mode)| number == wanted && is_secured(*tls_mode));
        match self.ssl_ports.iter().find(|port| !is_opened(port)) {
            Some(port) => Err(format!(
                "--ssl-port {port} is not used: every -l has its own port, or is plain; write btls:HOST:{port}"
            )),
            None => Ok(()),
        }
    }

    fn ports(&self, tls: TlsMode) -> Vec<Port> {
        if self.unix_path.is_some() {
            return Vec::new();
        }
        let is_default = self.ports.is_empty() && self.ssl_ports.is_empty();
        let plain = if is_default { &[DEFAULT_PORT][..] } else { &self.ports };
        let plain = plain.iter().map(|number| (*number, TlsMode::Plain));
        let ports = plain.chain(self.ssl_ports.iter().map(|number| (*number, tls)));
        ports.enumerate().map(|(choice, (number, tls_mode))| Port { number, choice, tls_mode }).collect()
    }
}

/// The ports of an address of -l: its own, or those of its kind. Its TLS mode is the stricter of its own and its
/// port's.
fn ports_of(spec: &ListenSpec<'_>, ports: &[Port], choice: usize) -> Result<Vec<Port>, String> {
    if let Some(number) = spec.port {
        let is_named = |port: &&Port| number != 0 && port.number == number && is_secured(port.tls_mode);
        let of_port = ports.iter().find(is_named).map(|port| port.tls_mode).unwrap_or_default();
        let tls_mode = match spec.tls {
            Some(TlsMode::Plain) => TlsMode::Plain,
            own => own.unwrap_or_default().max(of_port),
        };
        return Ok(vec![Port { number, choice, tls_mode }]);
    }
    let is_fit = |port: &&Port| spec.tls.is_none_or(|wanted| is_secured(wanted) == is_secured(port.tls_mode));
    let fit = ports.iter().filter(is_fit);
    let fit: Vec<_> = fit
        .map(|port| Port { tls_mode: spec.tls.map_or(port.tls_mode, |own| own.max(port.tls_mode)), ..*port })
        .collect();
    match fit.is_empty() {
        true => {
            Err("-l has an address without a port: append one to the address, or give one for all with --port or, for \
                     TLS, --ssl-port"
                .to_owned())
        }
        false => Ok(fit),
    }
}

/// Fails for a `proto` label: there is no protocol to choose.
fn check_no_protocol(spec: &ListenSpec<'_>) -> Result<(), String> {
    match spec.protocol {
        None => Ok(()),
        Some(_) => Err(format!(
            "-l {}: the first byte of a connection decides on the protocol: leave proto[...] out",
            spec.text
        )),
    }
}

fn is_secured(tls_mode: TlsMode) -> bool {
    tls_mode != TlsMode::Plain
}

/// Adds an address unless it is listed already: `localhost,127.0.0.1` is one.
fn add_address(listeners: &mut Vec<ListenAddress>, endpoint: Endpoint, tls_mode: TlsMode) -> Result<(), String> {
    let is_same = |listener: &&ListenAddress| match (&listener.endpoint, &endpoint) {
        (Endpoint::Tcp { address, choice }, Endpoint::Tcp { address: other, choice: other_choice }) => {
            address == other && (address.port() != 0 || choice == other_choice)
        }
        (Endpoint::Unix { path, .. }, Endpoint::Unix { path: other, .. }) => path == other,
        _ => false,
    };
    match (listeners.iter().find(is_same), &endpoint) {
        (None, _) => listeners.push(ListenAddress { endpoint, tls_mode }),
        (Some(listener), Endpoint::Tcp { address, .. }) if listener.tls_mode != tls_mode => {
            return Err(format!("{address} is given twice, with two TLS modes"));
        }
        (Some(_), _) => {}
    }
    Ok(())
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
        opened_with(arguments, TlsMode::Tls)
    }

    fn opened_with(arguments: &[&str], tls: TlsMode) -> Result<Vec<String>, String> {
        let line = Line::try_parse_from([&["router"], arguments].concat()).map_err(|error| error.to_string())?;
        let listeners = line.listen.listeners(tls)?;
        let endpoint = |endpoint: Endpoint| match endpoint {
            Endpoint::Tcp { address, choice } if address.port() == 0 => format!("{address} {choice}"),
            Endpoint::Tcp { address, .. } => address.to_string(),
            Endpoint::Unix { path, mode } => format!("{} {mode:o}", path.display()),
        };
        let name = |listener: ListenAddress| match listener.tls_mode {
            TlsMode::Plain => endpoint(listener.endpoint),
            TlsMode::Tls => endpoint(listener.endpoint) + " tls",
            TlsMode::MutualTls => endpoint(listener.endpoint) + " mutual",
        };
        Ok(listeners.into_iter().map(name).collect())
    }

    #[test]
    fn addresses_without_a_port_have_every_port() {
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
    fn unix_socket_replaces_all_ports_but_those_of_addresses() {
        for (arguments, expected) in [
            (&["-s", "/run/router"][..], &["/run/router 700"][..]),
            (&["-s", "/r", "-p", "7", "--ssl-port", "8", "--unix-mask", "0770"], &["/r 770"]),
            (&["-s", "/r", "-l", "10.0.0.1:7,10.0.0.2", "-p", "8"], &["10.0.0.1:7", "/r 700"]),
        ] {
            let expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
            assert_eq!(opened(arguments), Ok(expected), "{arguments:?}");
        }
    }

    #[test]
    fn tls_has_its_own_ports() {
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
        assert!(opened(&["-l", "10.0.0.1:7,btls:10.0.0.1:7"]).is_err_and(|why| why.contains("10.0.0.1:7 is given")));
    }

    #[test]
    fn address_with_a_tls_port_uses_tls() {
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
            assert!(refused.is_err_and(|why| why.contains("--ssl-port 7 is not used")), "{plain}");
        }
    }

    #[test]
    fn address_cannot_weaken_the_tls_mode_of_its_port() {
        for address in ["10.0.0.1", "btls:10.0.0.1", "mtls:10.0.0.1", "10.0.0.1:7", "btls:10.0.0.1:7"] {
            let opened = opened_with(&["--ssl-port", "7", "-l", address], TlsMode::MutualTls);
            assert_eq!(opened, Ok(vec!["10.0.0.1:7 mutual".to_owned()]), "{address}");
        }
    }

    #[test]
    fn invalid_addresses_are_refused() {
        for bad in [&["-p", "70000"][..], &["-l", ","], &["-l", "127.0.0.1:x"], &["--unix-mask", "8"], &["-p", "7,"]] {
            assert!(opened(bad).is_err(), "{bad:?}");
        }
        let why = opened(&["-l", "proto[ascii]:127.0.0.1"]).expect_err("there is no protocol to choose");
        assert!(why.starts_with("-l proto[ascii]:127.0.0.1: ") && why.contains("first byte"), "{why}");
    }
}
