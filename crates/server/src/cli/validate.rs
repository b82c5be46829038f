//! Validates a command line beyond single options, before the process does anything. The exit status is 2, because a
//! restart would not help. An error of the system (a port in use, a missing file, an unknown host) has the exit status
//! 1.

use super::listen_spec::{parse_specs, protocol_name};
use super::tls::{is_tls_option, parse_tls_options};
use super::{Arguments, Port};
use lookaside_authentication::SASL_FILE_VARIABLE;
use lookaside_net::TlsMode;

/// An invalid command line, as a message for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageError(pub String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

impl UsageError {
    pub(crate) fn new(why: impl ToString) -> UsageError {
        UsageError(why.to_string())
    }
}

impl Arguments {
    /// Returns the first error of the command line.
    pub fn check(&self) -> Result<(), UsageError> {
        if let Some(refusal) = self.compatible.refusal() {
            return Err(UsageError(refusal));
        }
        self.protocols()?;
        self.check_tls()?;
        self.check_addresses()?;
        self.check_ports()?;
        self.check_udp_worker_ports()?;
        for (is_given, option) in [(self.enable_sasl, "-S"), (self.auth_path.is_some(), "-Y")] {
            if is_given && self.serves_udp() {
                return Err(UsageError(format!("{option} does not work with UDP: remove -U")));
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
            return parse_tls_options(extended).map(drop).map_err(UsageError);
        }
        match extended.iter().find(|option| is_tls_option(option)) {
            Some(option) => Err(UsageError(format!("-o {option} secures nothing without -Z"))),
            None => Ok(()),
        }
    }

    fn check_ports(&self) -> Result<(), UsageError> {
        if self.tcp_port() == Port::Off && !self.serves_udp() && self.unix_path.is_none() {
            let why = "-p 0 turns TCP off, and there is neither UDP (-U) nor a Unix socket (-s): no client could connect; \
                       -p -1 picks a free port";
            return Err(UsageError::new(why));
        }
        match self.memory_limit_max {
            Some(megabytes @ 1..) if megabytes < self.memory_megabytes => {
                let why = format!("--memory-limit-max {megabytes} is below -m {}", self.memory_megabytes);
                Err(UsageError(why))
            }
            _ => Ok(()),
        }
    }

    fn check_udp_worker_ports(&self) -> Result<(), UsageError> {
        let Some(ports) = self.udp_worker_ports() else { return Ok(()) };
        let (first, last, threads) = (ports.start(), ports.end(), self.threads_count());
        if self.udp_port == Port::Off {
            let why =
                "--udp-worker-ports is for clients that know the threads' ports; other clients need one too: add -U";
            return Err(UsageError::new(why));
        }
        if ports.len() < threads {
            return Err(UsageError(format!(
                "--udp-worker-ports {first}: {threads} threads need a port each, up to 65535"
            )));
        }
        if matches!(self.udp_port, Port::Number(udp_port) if ports.contains(&udp_port)) {
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
        let specs = parse_specs(&self.listen)?;
        specs.iter().try_for_each(|spec| self.protocols_at(protocol_name(spec)).map(drop))?;
        let has = |tls| specs.iter().any(|spec| spec.tls == Some(tls));
        if !self.tls && (has(TlsMode::Tls) || has(TlsMode::MutualTls)) {
            return Err(UsageError::new("-l with btls: or mtls: needs TLS (-Z)"));
        }
        Ok(())
    }
}
