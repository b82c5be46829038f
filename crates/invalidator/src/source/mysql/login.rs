//! Login at a MySQL or MariaDB server: handshake, TLS, and the exchange of the authentication plugin.
//!
//! ```text
//! server                                client
//! handshake: version, nonce, plugin ->
//!                                    <- request for TLS, then the TLS handshake       (with ssl-mode)
//!                                    <- login: user, plugin, reply to the nonce
//! other plugin, nonce               ->
//!                                    <- reply to the nonce
//! more data                         ->                                   (caching_sha2_password, parsec)
//!                                    <- reply
//! OK or error                       ->
//! ```
//!
//! Serves every connection. Messages of errors never contain the password.

use super::{
    auth::{self, Plugin},
    connection::{ServerError, error_of},
    cursor::{Cursor, Malformed},
    options::MysqlOptions,
    packet::PacketStream,
    rsa,
};
use crate::SourceError;

/// `LONG_PASSWORD | LONG_FLAG | PROTOCOL_41 | TRANSACTIONS | SECURE_CONNECTION | MULTI_STATEMENTS | MULTI_RESULTS |
/// PLUGIN_AUTH`. The first tells MariaDB to use none of its own extensions.
const CAPABILITIES: u32 = 0x1 | 0x4 | 0x200 | 0x2000 | 0x8000 | 0x1_0000 | 0x2_0000 | PLUGIN_AUTH;

const TLS: u32 = 0x800;
const PLUGIN_AUTH: u32 = 0x8_0000;
/// utf8mb4_general_ci, known to both kinds of server.
const CHARACTER_SET: u8 = 45;

const HEAD_OK: u8 = 0x00;
const HEAD_MORE: u8 = 0x01;
const HEAD_SWITCH: u8 = 0xfe;
const HEAD_ERROR: u8 = 0xff;

/// `caching_sha2_password`: whether the server's cache has the password, and the request for its public key.
const FAST_SUCCESS: u8 = 3;
const FULL_AUTHENTICATION: u8 = 4;
const REQUEST_PUBLIC_KEY: u8 = 2;

/// The error of every statement while the password is expired.
pub const EXPIRED: u16 = 1820;

/// What the server's handshake says about it.
pub struct ServerInfo {
    /// The version string.
    pub version: String,
    /// The id of this connection.
    pub connection_id: u32,
}

/// Logs in on a new connection.
pub async fn log_in(
    mut packets: PacketStream,
    options: &MysqlOptions,
) -> Result<(PacketStream, ServerInfo), SourceError> {
    let packet = packets.read(options.reply_wait_max).await?;
    if packet.first() == Some(&HEAD_ERROR) {
        return Err(login_error(error_of(&packet)?, &options.user));
    }
    let handshake = Handshake::read(&packet)?;
    if let Some(tls) = &options.tls {
        if handshake.capabilities & TLS == 0 {
            return Err(SourceError::Unusable {
                why:
                    "the server offers no TLS, and the URL's ssl-mode requires it: set ssl_ca, ssl_cert and ssl_key at \
                      the server"
                        .into(),
            });
        }
        packets.reply(&head(TLS)).await?;
        packets = packets.secure(&options.host, tls).await?;
    }
    let plugin = match Plugin::from_name(&handshake.plugin) {
        // Only for a server that asks for it: by its default the password is not sent.
        None | Some(Plugin::Clear) => Plugin::Native,
        Some(plugin) => plugin,
    };
    // The server switches to the plugin of the account if it is another.
    let nonce = plugin.nonce_of(&handshake.nonce).unwrap_or_default();
    let reply = login_packet(options, plugin, &nonce);
    packets.reply(&reply).await?;
    let mut exchange = LoginExchange { packets: &mut packets, options, plugin, nonce };
    exchange.run().await?;
    let version = String::from_utf8_lossy(&handshake.version).into_owned();
    Ok((packets, ServerInfo { version, connection_id: handshake.connection_id }))
}

struct Handshake {
    version: Vec<u8>,
    connection_id: u32,
    capabilities: u32,
    nonce: Vec<u8>,
    plugin: Vec<u8>,
}

impl Handshake {
    fn read(packet: &[u8]) -> Result<Handshake, SourceError> {
        let mut cursor = Cursor::new(packet, "a handshake");
        let protocol = cursor.u8()?;
        if protocol != 10 {
            return Err(SourceError::Unusable {
                why: format!("the server uses protocol version {protocol}; only 10 (MySQL 4.1 and later) is supported"),
            });
        }
        let version = cursor.until_nul()?.to_vec();
        let connection_id = cursor.u32()?;
        let mut nonce = cursor.read_slice(8)?.to_vec();
        cursor.read_slice(1)?;
        let capabilities_low = cursor.u16()?;
        cursor.read_slice(3)?;
        let capabilities = u32::from(capabilities_low) | u32::from(cursor.u16()?) << 16;
        let nonce_bytes = usize::from(cursor.u8()?);
        cursor.read_slice(10)?;
        nonce.extend_from_slice(cursor.read_slice(nonce_bytes.saturating_sub(8).max(13))?);
        let plugin = match capabilities & PLUGIN_AUTH {
            0 => Vec::new(),
            _ => cursor.until_nul().unwrap_or(cursor.rest()).to_vec(),
        };
        Ok(Handshake { version, connection_id, capabilities, nonce, plugin })
    }
}

/// `| capabilities: 4 | longest packet: 4 | character set: 1 | 0: 23 |`: the request for TLS, and the start of a login.
fn head(more_capabilities: u32) -> Vec<u8> {
    let mut payload = Vec::with_capacity(128);
    payload.extend_from_slice(&(CAPABILITIES | more_capabilities).to_le_bytes());
    payload.extend_from_slice(&(1_u32 << 30).to_le_bytes());
    payload.push(CHARACTER_SET);
    payload.extend_from_slice(&[0; 23]);
    payload
}

fn login_packet(options: &MysqlOptions, plugin: Plugin, nonce: &[u8]) -> Vec<u8> {
    let mut payload = head(if options.tls.is_some() { TLS } else { 0 });
    payload.extend_from_slice(options.user.as_bytes());
    payload.push(0);
    let scrambled = plugin.scramble(options.password.as_bytes(), nonce);
    payload.push(u8::try_from(scrambled.len()).expect("a hash or signature has 64 bytes at most"));
    payload.extend_from_slice(&scrambled);
    payload.extend_from_slice(plugin.name().as_bytes());
    payload.push(0);
    payload
}

/// The exchange from the login packet to the server's OK or error.
struct LoginExchange<'a> {
    packets: &'a mut PacketStream,
    options: &'a MysqlOptions,
    plugin: Plugin,
    nonce: Vec<u8>,
}

impl LoginExchange<'_> {
    async fn run(&mut self) -> Result<(), SourceError> {
        loop {
            let packet = self.packets.read(self.options.reply_wait_max).await?;
            match packet.first() {
                Some(&HEAD_OK) => return Ok(()),
                Some(&HEAD_ERROR) => return Err(login_error(error_of(&packet)?, &self.options.user)),
                Some(&HEAD_SWITCH) => self.switch_plugin(&packet).await?,
                Some(&HEAD_MORE) => self.continue_auth(&packet[1..]).await?,
                _ => return Err(Malformed("a reply to the login").into()),
            }
        }
    }

    async fn switch_plugin(&mut self, packet: &[u8]) -> Result<(), SourceError> {
        let mut cursor = Cursor::new(packet, "a change of the authentication plugin");
        cursor.read_slice(1)?;
        let name = cursor.until_nul()?;
        let is_secured = self.options.tls.is_some();
        let plugin = Plugin::from_name(name).filter(|plugin| *plugin != Plugin::Clear || is_secured);
        self.plugin = plugin.ok_or_else(|| SourceError::Unusable {
            why: format!(
                "user '{}' uses authentication plugin {}; supported are {}",
                self.options.user,
                String::from_utf8_lossy(name),
                auth::SUPPORTED
            ),
        })?;
        self.nonce = self.plugin.nonce_of(cursor.rest())?;
        let scrambled = self.plugin.scramble(self.options.password.as_bytes(), &self.nonce);
        self.packets.reply(&scrambled).await
    }

    async fn continue_auth(&mut self, data: &[u8]) -> Result<(), SourceError> {
        let password = self.options.password.as_bytes();
        let reply = match (self.plugin, data) {
            (Plugin::CachingSha2, [FAST_SUCCESS]) => return Ok(()),
            // The server's cache does not have the password.
            (Plugin::CachingSha2, [FULL_AUTHENTICATION]) if self.options.tls.is_some() => auth::clear(password),
            (Plugin::CachingSha2, [FULL_AUTHENTICATION]) => vec![REQUEST_PUBLIC_KEY],
            (Plugin::CachingSha2, public_key) if self.options.tls.is_none() => {
                rsa::encrypt_password(password, &self.nonce, public_key)?
            }
            (Plugin::Parsec, salt) => {
                let mut own_nonce = [0; 32];
                getrandom::fill(&mut own_nonce)
                    .map_err(|error| SourceError::Unusable { why: format!("cannot get random bytes: {error}") })?;
                auth::parsec_reply(password, &self.nonce, own_nonce, salt)?
            }
            _ => return Err(Malformed("the data of an authentication plugin").into()),
        };
        self.packets.reply(&reply).await
    }
}

/// Converts an error during the login.
fn login_error(error: ServerError, user: &str) -> SourceError {
    let ServerError { code, message } = error;
    let advice = match code {
        EXPIRED | 1862 => return expired_password(user),
        // Locked, in MySQL and in MariaDB.
        3118 | 4151 => format!("ALTER USER '{user}' ACCOUNT UNLOCK"),
        // require_secure_transport.
        3159 => "add ?ssl-mode=VERIFY_IDENTITY&ssl-ca=FILE to the URL".into(),
        1045 | 1130 | 1698 => "check user, password and host, and whether the account requires TLS (ssl-mode). An \
                               anonymous account of this host (''@'localhost') takes precedence over '...'@'%': DROP \
                               USER it, or create the account for this host"
            .into(),
        _ => return ServerError { code, message }.into_source_error(user),
    };
    SourceError::Unusable { why: format!("the server refuses user '{user}': {message} (error {code}); {advice}") }
}

/// The error for an account whose password has expired.
pub fn expired_password(user: &str) -> SourceError {
    SourceError::Unusable {
        why: format!(
            "the password of user '{user}' has expired: ALTER USER '{user}' IDENTIFIED BY a new one, or PASSWORD EXPIRE \
             NEVER"
        ),
    }
}
