//! Entry point: runs [`lookaside_server`], and turns errors into exit statuses.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = lookaside_server::Arguments::read(std::env::args_os()).unwrap_or_else(|error| error.exit());
    match lookaside_server::run(arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("lookaside-server: {error:#}");
            if error.is::<lookaside_server::UsageError>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}
