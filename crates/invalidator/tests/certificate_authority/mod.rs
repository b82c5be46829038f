//! A certificate authority for tests of TLS to databases, by the program openssl.

use lookaside_invalidator::source::tls::DatabaseTls;
use std::process::Command;
use tempfile::TempDir;

/// A certificate authority in a folder of its own.
pub struct Authority {
    folder: TempDir,
}

impl Authority {
    pub fn new() -> Authority {
        let authority = Authority { folder: TempDir::new().expect("a folder") };
        let (key, certificate) = (authority.path("ca.key"), authority.path("ca.pem"));
        openssl(
            &[
                &["req", "-x509"][..],
                &NEW_KEY,
                &["-days", "2", "-subj", "/CN=authority", "-keyout", &key, "-out", &certificate],
            ]
            .concat(),
        );
        authority
    }

    /// A file in its folder.
    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Makes `name.pem` and `name.key`, for the host localhost.
    pub fn sign(&self, name: &str) {
        let [key, request, certificate, extensions] =
            ["key", "csr", "pem", "extensions"].map(|kind| self.path(&format!("{name}.{kind}")));
        std::fs::write(&extensions, "subjectAltName=DNS:localhost\n").expect("written");
        let subject = format!("/CN={name}");
        openssl(&[&["req"][..], &NEW_KEY, &["-subj", &subject, "-keyout", &key, "-out", &request]].concat());
        openssl(&[
            "x509",
            "-req",
            "-in",
            &request,
            "-CA",
            &self.path("ca.pem"),
            "-CAkey",
            &self.path("ca.key"),
            "-days",
            "2",
            "-CAcreateserial",
            "-extfile",
            &extensions,
            "-out",
            &certificate,
        ]);
    }

    /// Connections that verify certificates of this authority, and the host's name.
    pub fn tls(&self) -> DatabaseTls {
        DatabaseTls::verify_full(self.path("ca.pem"))
    }
}

const NEW_KEY: [&str; 5] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];

fn openssl(arguments: &[&str]) {
    let made = Command::new("openssl").args(arguments).output().expect("openssl is installed");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}
