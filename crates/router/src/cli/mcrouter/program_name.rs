//! mcrouter's defaults, for a router that is started under mcrouter's name, by a symbolic link for example.
//!
//! `lookaside-router` has safer defaults where it differs: it serves this machine alone and bounds its connections. A
//! unit file that starts `mcrouter` relies on mcrouter's.

use clap::Command;
use std::ffi::OsStr;
use std::path::Path;

/// Options of this router by clap's names, and mcrouter's defaults where they are others.
const DEFAULTS: [(&str, &str); 5] = [
    ("addresses", "*"),
    ("max_conns", "0"),
    ("client_timeout", "1000"),
    ("probe_timeout_initial", "10000"),
    ("probe_timeout_max", "60000"),
];

/// The line for the log.
pub(crate) const NOTE: &str = "started under the name mcrouter: --listen-addresses, --max-conns, --client-timeout, \
                               --probe-timeout-initial and --probe-timeout-max have mcrouter's defaults";

/// Whether `program`, the first word of a command line, is mcrouter's name or a path that ends with it.
pub(crate) fn is_mcrouter(program: Option<&OsStr>) -> bool {
    program.map(Path::new).and_then(Path::file_name).is_some_and(|name| name == "mcrouter")
}

/// The command line with mcrouter's defaults.
pub(crate) fn with_mcrouters_defaults(command: Command) -> Command {
    DEFAULTS.iter().fold(command, |command, &(id, value)| command.mut_arg(id, |argument| argument.default_value(value)))
}
