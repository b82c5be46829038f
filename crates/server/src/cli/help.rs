//! What `--help` shows behind the options: examples, and the names for `-o`.

use super::extended;

const EXAMPLES: &str = "\
Examples:
  lookaside-server                              64 MB on 127.0.0.1:11211
  lookaside-server -l 10.0.0.7 -m 4096 -t 8     4 GB for a cluster, eight threads
  lookaside-server -U 11311                     TCP and UDP, so that clients may send gets by UDP
  lookaside-server -p 11211 -U 11211 --udp-worker-ports 11300 -t 4
                                                and UDP at 11300 to 11303, one port for each thread
  lookaside-server -p -1                        any free port; the log says which
  lookaside-server -Z -o ssl_chain_cert=server.pem,ssl_key=server.key -l 10.0.0.7,notls:127.0.0.1
  lookaside-server --lease-interval 0.5 --stale-seconds 2
  lookaside-server -m 1024 --memory-limit-max 8192
                                                the command cache_memlimit may raise the limit to 8 GB
  lookaside-server -m 4096 --warm-restart main  items outlive a restart, say for an upgrade
  lookaside-server --remove-region main         frees that memory
  lookaside-server -M -m 1024                   a pool for remote markers, which evicts nothing
  lookaside-server -m 4096 --warm-restart main --upgrade-socket /run/lookaside/upgrade --take-over
                                                replaces a server started with these options; clients stay connected

Unlike memcached, a server without -l listens on 127.0.0.1 only.
With MEMCACHED_PORT_FILENAME set, the ports are written to that file once they are open.
Exit status: 0 after SIGINT, SIGTERM or SIGUSR1, 1 if the server cannot start, 2 for a bad command line.";

const LINE_BYTES_MAX: usize = 100;

/// The text.
pub(super) fn after_help() -> String {
    let names = extended::by_support().map(|(heading, names)| format!("{heading}:{}", wrap(names)));
    format!("{EXAMPLES}\n\nNames for -o:\n{}", names.join("\n"))
}

/// The names on indented lines.
fn wrap(names: Vec<&str>) -> String {
    let (mut text, mut line) = (String::new(), String::new());
    for name in names {
        if line.len() + name.len() + 1 > LINE_BYTES_MAX || line.is_empty() {
            text += &line;
            line = "\n   ".to_string();
        }
        line += " ";
        line += name;
    }
    text + &line
}
