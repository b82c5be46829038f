//! Mistakes in a command line that one option alone does not show. Found before the process does anything; the exit
//! status is 2, since no restart mends them. What the system refuses (a port, a file, a name that nobody resolves) is no
//! mistake: the exit status is 1.

use crate::cli::tls::TlsOptions;
use crate::cli::{Arguments, TlsMode, listen_spec};
use crate::startup::listeners::serves_udp;
use crate::startup::secrets::SASL_FILE_VARIABLE;

/// What is wrong with a command line, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageError(pub String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

impl UsageError {
    /// For an error whose cause says enough.
    pub(crate) fn new(why: impl ToString) -> UsageError {
        UsageError(why.to_string())
    }
}

impl Arguments {
    /// The first mistake, if there is one.
    pub fn check(&self) -> Result<(), UsageError> {
        if let Some(refusal) = self.compatible.refusal() {
            return Err(UsageError(refusal));
        }
        self.protocols()?;
        self.check_tls()?;
        self.check_addresses()?;
        self.check_udp_worker_ports()?;
        for (is_given, option) in [(self.tls, "-Z"), (self.enable_sasl, "-S"), (self.auth_path.is_some(), "-Y")] {
            if is_given && serves_udp(self) {
                return Err(UsageError(format!("{option} cannot be kept by UDP: leave -U away")));
            }
        }
        if self.enable_sasl && std::env::var_os(SASL_FILE_VARIABLE).is_none() {
            let why = format!("-S needs a file of users: name it in {SASL_FILE_VARIABLE}; a line is user:password");
            return Err(UsageError(why));
        }
        Ok(())
    }

    fn check_tls(&self) -> Result<(), UsageError> {
        let extended = self.compatible.extended();
        if self.tls {
            return TlsOptions::parse(extended).map(drop).map_err(UsageError);
        }
        match extended.iter().find(|option| TlsOptions::is_tls_option(option)) {
            Some(option) => Err(UsageError(format!("-o {option} secures nothing without -Z"))),
            None => Ok(()),
        }
    }

    fn check_udp_worker_ports(&self) -> Result<(), UsageError> {
        let Some(ports) = self.udp_worker_ports() else { return Ok(()) };
        let (first, last, threads) = (ports.start(), ports.end(), self.threads_count());
        if self.udp_port == 0 {
            let why =
                "--udp-worker-ports is for clients that know the threads' ports; the others' port is missing: add -U";
            return Err(UsageError::new(why));
        }
        if ports.len() < threads {
            return Err(UsageError(format!(
                "--udp-worker-ports {first}: {threads} threads need a port each, up to 65535"
            )));
        }
        if ports.contains(&self.udp_port) {
            let why = format!("--udp-worker-ports {first}: the threads' ports go up to {last}, -U is among them");
            return Err(UsageError(why));
        }
        Ok(())
    }

    fn check_addresses(&self) -> Result<(), UsageError> {
        if let Some(address) = &self.metrics_address {
            lookaside_telemetry::check_address(address)
                .map_err(|why| UsageError(format!("--metrics-address {address}: {why}")))?;
        }
        let labels = listen_spec::check(&self.listen)?;
        labels.iter().try_for_each(|(_, protocol)| self.protocols_at(*protocol).map(drop))?;
        let is_there = |tls_mode| labels.iter().any(|label| label.0 == tls_mode);
        if !self.tls && (is_there(TlsMode::Basic) || is_there(TlsMode::Mutual)) {
            return Err(UsageError::new("-l with btls: or mtls: needs TLS (-Z)"));
        }
        let has_authorities =
            || TlsOptions::parse(self.compatible.extended()).is_ok_and(|(tls, _)| tls.authorities_path.is_some());
        if is_there(TlsMode::Mutual) && !has_authorities() {
            return Err(UsageError::new("-l with mtls: verifies clients' certificates against -o ssl_ca_cert=FILE"));
        }
        Ok(())
    }
}
