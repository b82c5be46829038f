//! The router's certificate, private key and trusted CAs. No request passes here.
//!
//! The files are read at the start, on SIGHUP, and when they change. If they cannot be used then, new connections use
//! what was read before. Open connections are not touched.

use lookaside_client::tls::server_name;
use lookaside_net::tls_client::{CertificatePaths, Chain, ClientConfigs, Key, provider, unusable};
use lookaside_routing::{Address, Security, TlsPolicy};
use lookaside_sync::{Mutex, RwLock};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::signal::unix::Signal;
use tokio::time::Instant;

/// How often the files are checked for changes.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The files of both sides.
#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    pub(crate) clients: CertificatePaths,
    pub(crate) servers: CertificatePaths,
    /// How long a client's handshake may take.
    pub(crate) handshake_max: Duration,
}

impl TlsFiles {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &PathBuf> {
        self.clients.iter().chain(self.servers.iter())
    }
}

/// The certificates in force, shared by all threads.
pub(crate) struct Certificates {
    files: TlsFiles,
    current: RwLock<Current>,
    refreshed: Mutex<Instant>,
    /// The files' versions before they were last read.
    seen: Mutex<Vec<Option<Version>>>,
    /// Clients' handshakes that succeeded.
    pub(crate) new_sessions: AtomicU64,
    /// Clients' handshakes that failed or timed out.
    pub(crate) handshake_errors: AtomicU64,
}

/// A version of a file: device, inode, size, and modification time.
type Version = (u64, u64, u64, i64, i64);

/// The contents of the files.
struct Current {
    /// For clients; `None` without a certificate.
    basic: Option<Arc<ServerConfig>>,
    /// For clients that must have a certificate; `None` without a certificate or without CAs.
    mutual: Option<Arc<ServerConfig>>,
    servers: ClientConfigs,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificates").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Certificates {
    pub(crate) fn read(files: TlsFiles) -> Result<Certificates, String> {
        let seen = Mutex::new(versions_of(&files));
        let current = RwLock::new(Current::read(&files)?);
        Ok(Certificates {
            files,
            current,
            refreshed: Mutex::new(Instant::now()),
            seen,
            new_sessions: AtomicU64::new(0),
            handshake_errors: AtomicU64::new(0),
        })
    }

    /// Reads the files again. If that fails, the certificates in force stay.
    pub(crate) fn reload(&self) -> Result<(), String> {
        // Before the read, so that a file that changes meanwhile is read again.
        *self.seen.lock() = versions_of(&self.files);
        let current = Current::read(&self.files)?;
        *self.current.write() = current;
        *self.refreshed.lock() = Instant::now();
        Ok(())
    }

    /// Seconds since the certificates in force were read.
    pub(crate) fn age_s(&self) -> u64 {
        self.refreshed.lock().elapsed().as_secs()
    }

    pub(crate) fn handshake_max(&self) -> Duration {
        self.files.handshake_max
    }

    /// The rustls configuration for clients; `None` if there is no certificate, or no CA to verify the client's.
    pub(crate) fn for_clients(&self, is_mutual: bool) -> Option<Arc<ServerConfig>> {
        let current = self.current.read();
        if is_mutual { current.mutual.clone() } else { current.basic.clone() }
    }

    /// Fails if clients cannot be served for want of a certificate, or of CAs to verify theirs.
    pub(crate) fn check_for_clients(&self, is_mutual: bool) -> Result<(), String> {
        match (self.for_clients(is_mutual).is_some(), self.for_clients(false).is_some()) {
            (true, _) => Ok(()),
            (false, true) => Err("clients' certificates are verified against --pem-ca-path FILE".to_owned()),
            (false, false) => {
                Err("TLS for clients needs a certificate: --pem-cert-path FILE, and --pem-key-path FILE \
                                   if the key is not in it"
                    .to_owned())
            }
        }
    }

    /// The rustls configuration for servers.
    pub(crate) fn for_servers(&self, is_verified: bool) -> Result<Arc<ClientConfig>, &'static str> {
        let current = self.current.read();
        match is_verified {
            true => {
                current.servers.verified.clone().ok_or("servers' certificates are verified against --pem-ca-path FILE")
            }
            false => Ok(current.servers.unverified.clone()),
        }
    }

    /// Fails if a server of `policies` cannot be reached.
    pub(crate) fn check_for_servers(&self, policies: &BTreeMap<Address, TlsPolicy>) -> Result<(), String> {
        for (server, policy) in policies {
            if policy.security != Security::Plain {
                server_name(server, policy)?;
                let is_verified = policy.security == Security::Tls;
                self.for_servers(is_verified).map_err(|why| format!("{server} is reached by TLS: {why}"))?;
            }
        }
        Ok(())
    }

    pub(crate) fn count_handshake(&self, is_ok: bool) {
        let counter = if is_ok { &self.new_sessions } else { &self.handshake_errors };
        counter.fetch_add(1, Relaxed);
    }

    /// Whether the files have changed since the last read.
    fn files_changed(&self) -> bool {
        *self.seen.lock() != versions_of(&self.files)
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.files.iter().next().is_some()
    }

    fn reload_and_log(&self) {
        if !self.is_enabled() {
            return;
        }
        match self.reload() {
            Ok(()) => tracing::info!("certificates reloaded"),
            Err(why) => tracing::error!("cannot reload certificates; keeping the old ones: {why}"),
        }
    }
}

/// Reloads the certificates at each `hangup`, and when their files change. Never returns.
pub(crate) async fn reload_loop(certificates: &Certificates, hangup: &mut Signal) {
    loop {
        tokio::select! {
            biased;
            _ = hangup.recv() => {}
            () = tokio::time::sleep(POLL_INTERVAL) => {
                if !certificates.files_changed() {
                    continue;
                }
            }
        }
        certificates.reload_and_log();
    }
}

/// The files' versions; `None` for a file that does not exist.
fn versions_of(files: &TlsFiles) -> Vec<Option<Version>> {
    let version = |path| {
        let file = fs::metadata(path).ok()?;
        Some((file.dev(), file.ino(), file.size(), file.mtime(), file.mtime_nsec()))
    };
    files.iter().map(version).collect()
}

impl Current {
    fn read(files: &TlsFiles) -> Result<Current, String> {
        let servers = ClientConfigs::read(&files.servers)?;
        let (mut basic, mut mutual) = (None, None);
        if let Some((chain, key)) = files.clients.read_own()? {
            let authorities = files.clients.read_trusted()?;
            basic = Some(server_config(None, chain.clone(), key.clone_key())?);
            mutual = authorities.map(|authorities| server_config(Some(authorities), chain, key)).transpose()?;
        }
        Ok(Current { basic, mutual, servers })
    }
}

fn server_config(authorities: Option<Arc<RootCertStore>>, chain: Chain, key: Key) -> Result<Arc<ServerConfig>, String> {
    let builder = ServerConfig::builder_with_provider(provider());
    let builder = builder.with_protocol_versions(rustls::ALL_VERSIONS).map_err(unusable)?;
    let builder = match authorities {
        None => builder.with_no_client_auth(),
        Some(authorities) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(authorities, provider());
            builder.with_client_cert_verifier(verifier.build().map_err(unusable)?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(unusable)?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no_files() -> TlsFiles {
        let (clients, servers) = (CertificatePaths::default(), CertificatePaths::default());
        TlsFiles { clients, servers, handshake_max: Duration::from_secs(1) }
    }

    #[test]
    fn missing_certificate_is_named() {
        let certificates = Certificates::read(no_files()).expect("no file to read");
        assert!(certificates.for_clients(false).is_none() && certificates.for_clients(true).is_none());
        for is_mutual in [false, true] {
            assert!(certificates.check_for_clients(is_mutual).is_err_and(|why| why.contains("--pem-cert-path")));
        }
    }

    #[test]
    fn changes_after_the_last_read_are_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("authorities.pem");
        let mut files = no_files();
        let certificates = Certificates::read(files.clone()).expect("no file to read");
        assert!(!certificates.files_changed());
        files.servers.authorities = Some(path.clone());
        let certificates = Certificates { files, ..certificates };
        assert!(certificates.files_changed());
        assert!(certificates.reload().is_err() && !certificates.files_changed(), "refused, and that is known");
        fs::write(&path, "").expect("written");
        assert!(certificates.files_changed(), "not read since");
    }

    #[test]
    fn unusable_file_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let (missing, empty) = (folder.path().join("missing"), folder.path().join("empty"));
        fs::write(&empty, "").expect("written");
        for path in [missing, empty] {
            let mut files = no_files();
            files.clients.chain = Some(path.clone());
            let why = Certificates::read(files).expect_err("nothing to read");
            assert!(why.contains(&path.display().to_string()), "{why}");
        }
    }
}
