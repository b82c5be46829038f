//! Certificates and private keys from files.
//!
//! An error is the reason alone: the caller adds the option and the path.

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::Path;
use std::sync::Arc;

/// Reads the certificates of a PEM file, in order; at least one.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(certificates) if certificates.is_empty() => Err("no certificate in it (PEM)".to_owned()),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(error.to_string()),
    }
}

/// Reads the certificates of a PEM file as trusted authorities.
pub fn read_authorities(path: &Path) -> Result<Arc<RootCertStore>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    Ok(Arc::new(roots))
}

/// Reads a private key from a PEM file.
pub fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| error.to_string())
}

/// Reads a private key from a file that holds nothing but its DER encoding.
pub fn read_der_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    PrivateKeyDer::try_from(bytes).map_err(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_empty_files_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let (missing, empty) = (folder.path().join("missing"), folder.path().join("empty"));
        std::fs::write(&empty, "").expect("written");
        for path in [&missing, &empty] {
            assert!(read_certificates(path).is_err());
            assert!(read_authorities(path).is_err());
            assert!(read_key(path).is_err());
            assert!(read_der_key(path).is_err());
        }
        assert!(read_certificates(&empty).is_err_and(|why| why.contains("no certificate")));
    }
}
