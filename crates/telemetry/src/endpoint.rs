//! An HTTP server for `GET /metrics`. It serves no request of the cache, and no request waits for it.
//!
//! It has one thread, at most [`SCRAPES_MAX`] connections, requests of at most [`REQUEST_BYTES_MAX`], and
//! [`SCRAPE_MAX`] for each connection. After one response the connection is closed. One connection more takes the place
//! of the oldest that has not sent its request, so connections that do nothing keep no scraper out.
//!
//! A request to a loopback address is served only if its `Host` is an address or `localhost`. A web page whose host
//! name leads to loopback (DNS rebinding) sends its own name there, and could otherwise read the metrics, keys of hot
//! items among them.
//!
//! Deliberately absent: TLS, authentication, compression, keep-alive. Bind it to an address that only the scraper can
//! reach.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Connections served at a time.
const SCRAPES_MAX: usize = 16;

/// Fewer than there are connections, so that each can be read from before it has to make space for others.
const ACCEPTS_PER_ROUND: usize = SCRAPES_MAX / 2;

/// The longest request with all its headers, in bytes.
const REQUEST_BYTES_MAX: usize = 8 << 10;

const SCRAPE_MAX: Duration = Duration::from_secs(5);

/// How often deadlines are checked.
const TICK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// How long to wait after accepting has failed: without a free file descriptor, poll would report the waiting
/// connection at once, again and again.
const ACCEPT_BACKOFF: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Checks that `text` is a port, or host:port; the error is the reason.
pub fn check_address(text: &str) -> Result<(), String> {
    let port = text.rsplit_once(':').map_or(text, |(_, port)| port);
    if port.parse::<u16>().is_ok() {
        Ok(())
    } else if port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) {
        Err("a port is missing, as in 9150 or 127.0.0.1:9150".to_string())
    } else {
        Err(format!("{port} is not a port"))
    }
}

/// `text` as host:port; a port alone gets the loopback address.
pub fn full_address(text: &str) -> String {
    if text.parse::<u16>().is_ok() { format!("127.0.0.1:{text}") } else { text.to_string() }
}

/// The port where Prometheus scrapes metrics.
#[derive(Debug)]
pub struct Endpoint {
    listener: TcpListener,
}

struct Scrape {
    socket: TcpStream,
    deadline: Instant,
    request: Vec<u8>,
    response: Vec<u8>,
    sent_bytes: usize,
}

impl Endpoint {
    /// Serves on `listener`.
    pub fn new(listener: TcpListener) -> std::io::Result<Endpoint> {
        listener.set_nonblocking(true)?;
        Ok(Endpoint { listener })
    }

    /// The listening socket.
    pub fn listener(&self) -> &TcpListener {
        &self.listener
    }

    /// Serves the text that `render` returns, until the other end of `stop` is closed. Blocks: run it in its own
    /// thread.
    pub fn run(&self, render: impl Fn() -> String, stop: &UnixStream) {
        let mut scrapes: Vec<Scrape> = Vec::new();
        let mut accept_at = None;
        loop {
            let is_backing_off = accept_at.is_some_and(|at| Instant::now() < at);
            let interest = |scrape: &Scrape| if scrape.response.is_empty() { PollFlags::IN } else { PollFlags::OUT };
            let mut watched = vec![PollFd::new(stop, PollFlags::IN)];
            watched.extend(scrapes.iter().map(|scrape| PollFd::new(&scrape.socket, interest(scrape))));
            if !is_backing_off {
                watched.push(PollFd::new(&self.listener, PollFlags::IN));
            }
            if let Err(error) = poll(&mut watched, Some(if is_backing_off { &ACCEPT_BACKOFF } else { &TICK }))
                && error != rustix::io::Errno::INTR
            {
                return tracing::error!("cannot poll the metrics port: metrics are no longer served: {error}");
            }
            if !watched[0].revents().is_empty() {
                return;
            }
            let now = Instant::now();
            scrapes.retain_mut(|scrape| now < scrape.deadline && scrape.advance(&render));
            for _ in 0..if is_backing_off { 0 } else { ACCEPTS_PER_ROUND } {
                match self.listener.accept() {
                    Ok((socket, _)) if socket.set_nonblocking(true).is_ok() => {
                        make_space(&mut scrapes);
                        scrapes.push(Scrape::new(socket, now + SCRAPE_MAX));
                    }
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(_) => {
                        accept_at = Duration::try_from(ACCEPT_BACKOFF).ok().map(|backoff| now + backoff);
                        break;
                    }
                }
            }
        }
    }
}

impl Scrape {
    fn new(socket: TcpStream, deadline: Instant) -> Scrape {
        Scrape { socket, deadline, request: Vec::new(), response: Vec::new(), sent_bytes: 0 }
    }

    /// Reads the request or writes the response as far as the socket allows; false when the connection is to be closed.
    fn advance(&mut self, render: &impl Fn() -> String) -> bool {
        while self.response.is_empty() {
            let mut buffer = [0; 2048];
            match self.socket.read(&mut buffer) {
                Ok(0) => return false,
                Ok(count) => self.request.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
            if self.request.len() > REQUEST_BYTES_MAX {
                self.response = response("431 Request Header Fields Too Large", "the request is too long\n");
            } else if self.request.windows(4).any(|end| end == b"\r\n\r\n") {
                self.response = respond(&self.request, is_loopback(&self.socket), render);
            }
        }
        while self.sent_bytes < self.response.len() {
            match self.socket.write(&self.response[self.sent_bytes..]) {
                Ok(count) if count > 0 => self.sent_bytes += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                _ => return false,
            }
        }
        false
    }
}

/// Makes space for one more: the oldest that has not sent its request is closed, or else the oldest.
fn make_space(scrapes: &mut Vec<Scrape>) {
    if scrapes.len() >= SCRAPES_MAX {
        let silent = scrapes.iter().position(|scrape| scrape.response.is_empty());
        scrapes.remove(silent.unwrap_or(0));
    }
}

/// Whether the client has connected to a loopback address.
fn is_loopback(socket: &TcpStream) -> bool {
    socket.local_addr().is_ok_and(|address| address.ip().to_canonical().is_loopback())
}

fn respond(request: &[u8], is_loopback: bool, render: &impl Fn() -> String) -> Vec<u8> {
    let line = request.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|&byte| byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split(|&byte| byte == b'?').next().unwrap_or_default();
    if is_loopback && !hosts(request).all(is_local_host) {
        return response("403 Forbidden", "on loopback the header Host must be an address or localhost\n");
    }
    match (method, path) {
        (b"GET", b"/metrics") => response("200 OK", &render()),
        (b"GET", _) => response("404 Not Found", "metrics are at /metrics\n"),
        _ => response("405 Method Not Allowed", "only GET is served\n"),
    }
}

/// The values of the header `Host`: one in a valid request.
fn hosts(request: &[u8]) -> impl Iterator<Item = &[u8]> {
    let headers = request.split(|&byte| byte == b'\n').skip(1);
    headers.filter_map(|line| {
        let (name, value) = line.split_at_checked(5)?;
        name.eq_ignore_ascii_case(b"host:").then_some(value.trim_ascii())
    })
}

/// Whether a `Host` is an IP address or `localhost`, with or without a port.
fn is_local_host(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    address.parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost")
}

fn response(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
        .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(host: &str, is_loopback: bool) -> String {
        let request = format!("GET /metrics HTTP/1.1\r\nAccept: */*\r\nhOsT: {host}\r\n\r\n");
        let response = String::from_utf8(respond(request.as_bytes(), is_loopback, &|| "metric 1\n".to_owned()));
        response.expect("text").split(' ').nth(1).expect("a status").to_owned()
    }

    /// A web page whose name leads to loopback is of the same origin as this port, and could read all of it.
    #[test]
    fn foreign_host_is_refused_on_loopback() {
        for host in ["127.0.0.1:9150", "127.0.0.1", "localhost:9150", "LocalHost", "[::1]:9150", "10.0.0.7:80"] {
            assert_eq!(status(host, true), "200", "{host}");
        }
        for host in ["example.org:9150", "localhost.example.org", "127.0.0.1.example.org", "", "a\r\nHost: 127.0.0.1"] {
            assert_eq!(status(host, true), "403", "{host}");
            assert_eq!(status(host, false), "200", "{host}");
        }
        let without = respond(b"GET /metrics HTTP/1.0\r\n\r\n", true, &|| "metric 1\n".to_owned());
        assert!(without.ends_with(b"metric 1\n"), "a client without the header is no browser");
    }
}
