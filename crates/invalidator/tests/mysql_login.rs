//! Logins at real servers: TLS that is verified, authentication plugins, and errors that say what to do.

use crate::certificate_authority::Authority;
use crate::mysql_server::{Client, DEADLINE, Server, fetched, keys_of, read_until};
use lookaside_client::TcpNetwork;
use lookaside_invalidator::source::mysql::{MysqlConnection, MysqlOptions};
use lookaside_invalidator::source::tls::{ClientFiles, DatabaseTls};
use lookaside_invalidator::{Source as _, SourceError, Start};
use std::path::{Path, PathBuf};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const PASSWORD: &str = "s3cr3t'\u{fc}";

/// The arguments of a server with a certificate of `authority`.
fn server_arguments(authority: &Authority) -> Vec<String> {
    authority.sign("server");
    [("ca", "ca.pem"), ("cert", "server.pem"), ("key", "server.key")]
        .map(|(option, file)| format!("--ssl-{option}={}", authority.path(file)))
        .to_vec()
}

async fn open(options: &MysqlOptions) -> Result<MysqlConnection, SourceError> {
    MysqlConnection::open(&TcpNetwork, options).await
}

/// The reason why an operator must act.
async fn refusal(options: &MysqlOptions) -> String {
    match open(options).await.err() {
        Some(SourceError::Unusable { why }) => {
            assert!(!why.contains(PASSWORD), "{why}");
            why
        }
        other => panic!("{other:?}"),
    }
}

async fn is_encrypted(connection: &mut MysqlConnection) -> bool {
    let rows = connection.query("SHOW SESSION STATUS LIKE 'Ssl_cipher'").await.expect("a status");
    rows[0][1].as_ref().is_some_and(|cipher| !cipher.is_empty())
}

/// Each look-up of the end of the log left a warning in the server's log, each five seconds: `Aborted connection`.
#[tokio::test]
async fn a_connection_that_is_dropped_is_not_counted_as_aborted() {
    let authority = Authority::new();
    let server = Server::start(&server_arguments(&authority).iter().map(String::as_str).collect::<Vec<_>>()).await;
    let mut client = server.client().await;
    let secured = MysqlOptions { host: "localhost".into(), tls: Some(authority.tls()), ..server.options() };
    let status = async |client: &mut Client, name: &str| {
        let rows = client.run(&format!("SHOW GLOBAL STATUS LIKE '{name}'")).await;
        rows[0][1].as_ref().map(|value| String::from_utf8_lossy(value).into_owned())
    };
    let wait_until_alone = async |client: &mut Client| {
        while status(client, "Threads_connected").await.as_deref() != Some("1") {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, wait_until_alone(&mut client)).await.expect("others are gone");
    let before = status(&mut client, "Aborted_clients").await;
    for options in [&server.options(), &secured] {
        let mut connection = open(options).await.expect("a connection");
        connection.query("SELECT 1").await.expect("a row");
        connection.try_query("SELECT nonsense", DEADLINE).await.expect("an answer").expect_err("no such column");
    }
    tokio::time::timeout(DEADLINE, wait_until_alone(&mut client)).await.expect("both are gone");
    assert_eq!(status(&mut client, "Aborted_clients").await, before);
}

fn account(server: &Server, user: &str) -> MysqlOptions {
    MysqlOptions { user: user.into(), password: PASSWORD.into(), ..server.options() }
}

fn quoted() -> String {
    format!("'{}'", PASSWORD.replace('\'', "''"))
}

async fn check_tls(server: &Server, authority: &Authority) {
    let secured = |host: &str, tls: DatabaseTls| MysqlOptions { host: host.into(), tls: Some(tls), ..server.options() };
    let mut connection = open(&secured("localhost", authority.tls())).await.expect("a connection");
    assert!(is_encrypted(&mut connection).await);
    let why = refusal(&secured("127.0.0.1", authority.tls())).await;
    assert!(why.contains("TLS"), "the certificate names localhost alone: {why}");
    let any_name = DatabaseTls { verifies_name: false, ..authority.tls() };
    assert!(is_encrypted(&mut open(&secured("127.0.0.1", any_name)).await.expect("the name does not count")).await);
    let other = Authority::new();
    for tls in [other.tls(), DatabaseTls { verifies_name: false, ..other.tls() }] {
        let why = refusal(&secured("localhost", tls)).await;
        assert!(why.contains("TLS"), "another authority: {why}");
    }
    let why = refusal(&secured("localhost", DatabaseTls::verify_full("/missing.pem"))).await;
    assert!(why.contains("ssl-ca") && why.contains("/missing.pem"), "{why}");

    authority.sign("reader");
    let mut client = server.client().await;
    client.run(&format!("CREATE USER x509@'%' IDENTIFIED BY {} REQUIRE X509", quoted())).await;
    client.run("GRANT REPLICATION SLAVE ON *.* TO x509@'%'").await;
    let without = MysqlOptions { host: "localhost".into(), tls: Some(authority.tls()), ..account(server, "x509") };
    assert!(refusal(&without).await.contains("requires TLS"));
    let files =
        ClientFiles { certificate: authority.path("reader.pem").into(), key: authority.path("reader.key").into() };
    let with = MysqlOptions { tls: Some(DatabaseTls { client: Some(files), ..authority.tls() }), ..without };
    let mut source = server.try_source(with, Start::Now).await.expect("a source");
    client.run("CREATE DATABASE d /* lookaside: d */; DROP DATABASE d /* lookaside: end */").await;
    assert_eq!(keys_of(&read_until(&mut source, "end").await), ["d", "end"], "the log and the gate use TLS");
}

#[tokio::test]
async fn tls_to_mariadb_is_verified() {
    let authority = Authority::new();
    let arguments = server_arguments(&authority);
    let server = Server::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await;
    check_tls(&server, &authority).await;
}

#[tokio::test]
async fn tls_to_mysql_is_verified() {
    let Some(mysqld) = fetched::mysqld() else { return };
    let authority = Authority::new();
    let mut arguments = server_arguments(&authority);
    arguments.push("--binlog-rows-query-log-events=ON".into());
    let server = Server::start_mysql(&mysqld, &arguments.iter().map(String::as_str).collect::<Vec<_>>()).await;
    check_tls(&server, &authority).await;
}

/// Someone in between removes the offer of TLS: the same as a server without it.
#[tokio::test]
async fn server_without_tls_is_refused() {
    let authority = Authority::new();
    let server = Server::start(&["--skip-ssl"]).await;
    let options = MysqlOptions { host: "localhost".into(), tls: Some(authority.tls()), ..server.options() };
    let why = refusal(&options).await;
    assert!(why.contains("offers no TLS"), "{why}");
}

/// What someone in between sends in the clear, behind the server's handshake, must not be read as part of the encrypted
/// stream.
#[tokio::test]
async fn bytes_before_the_tls_handshake_are_refused() {
    let authority = Authority::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let fake = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a client");
        let handshake = b"\x0a8.0\0\x01\0\0\0noncenon\0\xff\xff\x2d\0\0\xff\xff\x15\0\0\0\0\0\0\0\0\0\0cenoncenonce\0mysql_native_password\0";
        let mut bytes = vec![handshake.len() as u8, 0, 0, 0];
        bytes.extend_from_slice(handshake);
        bytes.extend_from_slice(b"\x07\0\0\x03\0\0\0\x02\0\0\0");
        stream.write_all(&bytes).await.expect("sent");
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await.map(|_| received).unwrap_or_default()
    });
    let options =
        MysqlOptions { host: "localhost".into(), port, tls: Some(authority.tls()), ..MysqlOptions::default() };
    let why = refusal(&options).await;
    assert!(why.contains("before the TLS handshake"), "{why}");
    assert_eq!(fake.await.expect("it ran").len(), 36, "the request for TLS alone");
}

/// Creates `user` by `definition`, logs in, and is refused with another password.
async fn check_account(server: &Server, client: &mut Client, user: &str, definition: &str) {
    client.run(&format!("CREATE USER {user}@'%' {definition}")).await;
    let mut connection = open(&account(server, user)).await.unwrap_or_else(|error| panic!("{user}: {error}"));
    assert_eq!(connection.query_one("SELECT CURRENT_USER()").await, Ok(Some(format!("{user}@%"))));
    let wrong = MysqlOptions { password: "wrong".into(), ..account(server, user) };
    let why = refusal(&wrong).await;
    assert!(why.contains(user) && why.contains("check user, password"), "{why}");
    let empty = MysqlOptions { password: Default::default(), ..account(server, user) };
    refusal(&empty).await;
}

#[tokio::test]
async fn plugins_of_mariadb_log_in() {
    let server = Server::start(&["--plugin-load-add=auth_ed25519"]).await;
    let mut client = server.client().await;
    let password = quoted();
    check_account(&server, &mut client, "native", &format!("IDENTIFIED BY {password}")).await;
    check_account(&server, &mut client, "ed", &format!("IDENTIFIED VIA ed25519 USING PASSWORD({password})")).await;
    client.run("ALTER USER native@'%' PASSWORD EXPIRE").await;
    let why = expired(&server, "native").await;
    assert!(why.contains("expired") && why.contains("ALTER USER 'native'"), "{why}");
    client.run("ALTER USER ed@'%' ACCOUNT LOCK").await;
    let why = refusal(&account(&server, "ed")).await;
    assert!(why.contains("ACCOUNT UNLOCK"), "{why}");
    // With this setting the login succeeds, and each statement fails.
    client.run("SET GLOBAL disconnect_on_expired_password = OFF").await;
    assert!(expired(&server, "native").await.contains("has expired"));
}

async fn expired(server: &Server, user: &str) -> String {
    match server.try_source(account(server, user), Start::Now).await.err() {
        Some(SourceError::Unusable { why }) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn plugins_of_newer_mariadb_log_in() {
    let Some(mariadbd) = fetched::newer_mariadbd() else { return };
    let server = Server::start_newer_mariadb(&mariadbd, &["--plugin-load-add=auth_parsec"]).await;
    let mut client = server.client().await;
    let definition = format!("IDENTIFIED VIA parsec USING PASSWORD({})", quoted());
    check_account(&server, &mut client, "parsec", &definition).await;
    client.run("GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO parsec@'%'").await;
    let mut source = server.try_source(account(&server, "parsec"), Start::Now).await.expect("a source");
    client.run("CREATE DATABASE d /* lookaside: d */; DROP DATABASE d /* lookaside: end */").await;
    assert_eq!(keys_of(&read_until(&mut source, "end").await), ["d", "end"]);
}

#[tokio::test]
async fn plugins_of_mysql_log_in() {
    let Some(mysqld) = fetched::mysqld() else { return };
    let server = Server::start_mysql(&mysqld, &["--binlog-rows-query-log-events=ON"]).await;
    let mut client = server.client().await;
    let password = quoted();
    check_account(&server, &mut client, "sha2", &format!("IDENTIFIED BY {password}")).await;
    // MySQL makes certificates for itself, which name no host.
    let authorities: PathBuf = Path::new(&server.path("data")).join("ca.pem");
    let tls = DatabaseTls { verifies_name: false, ..DatabaseTls::verify_full(authorities) };
    for tls in [None, Some(tls.clone())] {
        // Full authentication, by the public key or over TLS, and then by the server's cache.
        client.run("FLUSH PRIVILEGES").await;
        for _ in 0..2 {
            let options = MysqlOptions { tls: tls.clone(), ..account(&server, "sha2") };
            let mut connection = open(&options).await.expect("a connection");
            assert_eq!(is_encrypted(&mut connection).await, tls.is_some());
        }
        client.run("FLUSH PRIVILEGES").await;
        let wrong = MysqlOptions { password: "wrong".into(), tls: tls.clone(), ..account(&server, "sha2") };
        assert!(refusal(&wrong).await.contains("check user, password"));
    }
    client.run(&format!("CREATE USER old@'%' IDENTIFIED WITH sha256_password BY {password}")).await;
    let why = refusal(&account(&server, "old")).await;
    assert!(why.contains("sha256_password") && why.contains("supported are"), "{why}");
    client.run("SET GLOBAL require_secure_transport = ON").await;
    let why = refusal(&account(&server, "sha2")).await;
    assert!(why.contains("ssl-mode=VERIFY_IDENTITY"), "{why}");
    client.run("SET GLOBAL require_secure_transport = OFF").await;
    client.run("ALTER USER sha2@'%' PASSWORD EXPIRE").await;
    assert!(expired(&server, "sha2").await.contains("ALTER USER 'sha2'"));
    client.run("ALTER USER sha2@'%' PASSWORD EXPIRE NEVER ACCOUNT LOCK").await;
    let why = refusal(&account(&server, "sha2")).await;
    assert!(why.contains("ACCOUNT UNLOCK"), "{why}");
}

/// The URL names the mode and the file, behind a schema.
#[tokio::test]
async fn url_with_tls_is_used() {
    let authority = Authority::new();
    let arguments = server_arguments(&authority);
    let server = Server::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let url = format!(
        "mariadb://root@localhost:{}/app?ssl-mode=VERIFY_IDENTITY&ssl-ca={}",
        server.port,
        authority.path("ca.pem")
    );
    let options = MysqlOptions::from_url(&url).expect("a URL");
    assert!(is_encrypted(&mut open(&options).await.expect("a connection")).await);
    let mut source = server.try_source(options, Start::Now).await.expect("a source");
    server.client().await.run("CREATE DATABASE d /* lookaside: end */").await;
    assert_eq!(source.next(10).await.expect("commits").commits[0].keys, [b"end".to_vec()]);
}
