//! The daemon's door: arguments in, exit status out.
#![forbid(unsafe_code)]

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match lookaside_server::run(lookaside_server::Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("lookaside-server: {error:#}");
            if error.is::<lookaside_server::Mistake>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}
