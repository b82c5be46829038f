//! Each mode of TLS to a real PostgreSQL, by the URL, as an operator writes it.

use crate::certificate_authority::Authority;
use crate::postgres_server::{END, Server, eventually, keys_of, own_by_server, read_until};
use lookaside_client::TcpNetwork;
use lookaside_invalidator::{
    SourceError, Start,
    source::postgres::{PostgresConnection, PostgresOptions, Purpose},
};
use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
};

/// The options of `postgres://...@HOST/postgres?PARAMETERS`.
fn options(server: &Server, host: &str, parameters: &str) -> Result<PostgresOptions, SourceError> {
    PostgresOptions::from_url(&format!(
        "postgres://postgres:p%40ss%20word@{host}:{}/postgres?{parameters}",
        server.port
    ))
}

/// Whether a connection is encrypted; an error if there is none.
async fn connect(server: &Server, host: &str, parameters: &str) -> Result<bool, String> {
    let options = options(server, host, parameters).map_err(|error| error.to_string())?;
    let connection = PostgresConnection::open(&TcpNetwork, &options, Purpose::Queries).await;
    let mut connection = connection.map_err(|error| match error {
        SourceError::Unusable { why } => why,
        other => panic!("an operator must act: {other:?}"),
    })?;
    let is_encrypted = connection.query_one("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").await;
    Ok(is_encrypted.expect("an answer").as_deref() == Some("t"))
}

/// Switches TLS on, with a certificate for localhost.
async fn enable_tls(server: &Server, authority: &Authority) {
    authority.sign("server");
    for (made, name) in [("server.key", "data/server.key"), ("server.pem", "data/server.crt")] {
        let path = server.path(name);
        fs::copy(authority.path(made), &path).expect("copied");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("ours");
        own_by_server(&path);
    }
    let mut client = server.set_up().await;
    client.run("ALTER SYSTEM SET ssl = on").await;
    client.run("SELECT pg_reload_conf()").await;
    let verified = format!("sslmode=verify-full&sslrootcert={}", authority.path("ca.pem"));
    let offered = async || connect(server, "localhost", &verified).await.ok();
    eventually("the server uses TLS", offered).await;
}

#[tokio::test]
async fn each_mode_verifies_what_it_is_for() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = Server::start(&[]).await;
    enable_tls(&server, &authority).await;
    let [trusted, untrusted] =
        [&authority, &other].map(|authority| format!("sslrootcert={}", authority.path("ca.pem")));
    // The certificate names localhost alone.
    for (mode, of_localhost, of_address, of_other_authority) in [
        ("disable", Ok(false), Ok(false), Ok(false)),
        ("verify-ca", Ok(true), Ok(true), Err("TLS")),
        ("verify-full", Ok(true), Err("TLS"), Err("TLS")),
        ("allow", Err("verify-full"), Err("verify-full"), Err("verify-full")),
        ("prefer", Err("verify-full"), Err("verify-full"), Err("verify-full")),
        ("require", Err("verify-full"), Err("verify-full"), Err("verify-full")),
    ] {
        for (host, authorities, expected) in [
            ("localhost", &trusted, of_localhost),
            ("127.0.0.1", &trusted, of_address),
            ("localhost", &untrusted, of_other_authority),
        ] {
            // Without TLS certificates are refused as needless.
            let parameters = match mode {
                "disable" => "sslmode=disable".to_owned(),
                _ => format!("sslmode={mode}&{authorities}"),
            };
            match (connect(&server, host, &parameters).await, expected) {
                (Ok(is_encrypted), Ok(expected)) => assert_eq!(is_encrypted, expected, "{mode} {host}"),
                (Err(why), Err(expected)) => assert!(why.contains(expected), "{mode} {host}: {why}"),
                (found, _) => panic!("{mode} {host} {authorities}: {found:?}"),
            }
        }
    }
    assert_eq!(connect(&server, "localhost", "").await, Ok(false), "the default is disable");
    let without_authority =
        connect(&server, "localhost", "sslmode=verify-full").await.expect_err("nothing to verify by");
    assert!(without_authority.contains("sslrootcert"), "{without_authority}");
}

/// Someone in between removes the offer of TLS: the same as a server without it.
#[tokio::test]
async fn a_server_without_tls_is_refused_by_modes_that_verify() {
    let authority = Authority::new();
    let server = Server::start(&[]).await;
    for mode in ["verify-ca", "verify-full"] {
        let parameters = format!("sslmode={mode}&sslrootcert={}", authority.path("ca.pem"));
        let why = connect(&server, "localhost", &parameters).await.expect_err("no TLS");
        assert!(why.contains("does not offer TLS"), "{mode}: {why}");
    }
    assert_eq!(connect(&server, "localhost", "sslmode=disable").await, Ok(false));
}

#[tokio::test]
async fn a_server_that_demands_tls_refuses_to_do_without() {
    let authority = Authority::new();
    let server = Server::start(&[]).await;
    enable_tls(&server, &authority).await;
    fs::write(server.path("data/pg_hba.conf"), "hostssl all all all scram-sha-256\n").expect("written");
    let verified = format!("sslmode=verify-full&sslrootcert={}", authority.path("ca.pem"));
    let secured = options(&server, "localhost", &verified).expect("a valid URL");
    let mut client = crate::postgres_server::Client::open(&secured).await;
    client.run("SELECT pg_reload_conf()").await;
    let refused = async || connect(&server, "localhost", "sslmode=disable").await.err();
    let why = eventually("plain connections are refused", refused).await;
    assert!(why.contains("no encryption"), "{why}");
    assert_eq!(connect(&server, "localhost", &verified).await, Ok(true));
}

#[tokio::test]
async fn the_log_and_the_gate_use_tls() {
    let authority = Authority::new();
    let server = Server::start(&[]).await;
    enable_tls(&server, &authority).await;
    let verified = format!("sslmode=verify-full&sslrootcert={}", authority.path("ca.pem"));
    let secured = options(&server, "localhost", &verified).expect("a valid URL");
    let mut source = server.try_source(secured, Start::Now).await.expect("a source");
    let mut client = server.client().await;
    client.run(END).await;
    assert_eq!(keys_of(&read_until(&mut source, "end").await), ["end"]);
    let plain = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                 WHERE NOT ssl AND client_addr IS NOT NULL AND pid <> pg_backend_pid()";
    // The connections of the set-up may end a moment later.
    eventually("no connection is plain", async || (client.one(plain).await == "0").then_some(())).await;
    let secured = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE ssl";
    assert!(client.one(secured).await.parse::<u32>().expect("a number") >= 2, "the log, and the gate");
}
