//! Logs in at routers that require it (`-Y`), with the text protocol's `set` of `user password`.
//!
//! A connection is returned when it has logged in, so all users of a [`Network`] need not know. The file is read for
//! each connection: a changed password holds from the next one on.

use crate::command_connection::{CommandConnection, CommandError};
use crate::network::{Listener, Network, Stream};
use lookaside_protocol::Reply;
use lookaside_protocol::text::{Limits, ReplyPart};
use lookaside_routing::{Address, BoxFuture, TlsPolicy};
use std::collections::BTreeSet;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The longest file, in bytes: a user and a password of 256 bytes each.
const FILE_BYTES_MAX: u64 = 514;
const LIMITS: Limits = Limits { value_bytes_max: 0, line_bytes_max: 2_048 };
/// Callers have shorter limits on connecting.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Connects through another network and logs in.
pub struct LoginNetwork {
    inner: Arc<dyn Network>,
    file: PathBuf,
    /// Where; `None`: at every address.
    addresses: Option<BTreeSet<Address>>,
    /// `None` if a failed login is reported as a failed connection alone.
    on_refusal: Option<RefusalHandler>,
}

/// Called with the address and the reason when a login failed.
pub type RefusalHandler = Arc<dyn Fn(&Address, &io::Error) + Send + Sync>;

impl LoginNetwork {
    /// Logs in with the line `user:password` in `file`, at these addresses; `None`: at every one. The error says why
    /// the file cannot be used.
    pub fn new(
        inner: Arc<dyn Network>,
        file: &Path,
        addresses: Option<BTreeSet<Address>>,
    ) -> Result<LoginNetwork, String> {
        read_login(file).map_err(|why| why.to_string())?;
        Ok(LoginNetwork { inner, file: file.to_owned(), addresses, on_refusal: None })
    }

    /// `inner`, or with the `file` of `--router-login` a network that logs in at every address and calls `on_refusal`
    /// when a login failed: the caller of a connect may not report why. The error names the option.
    pub fn for_routers(
        inner: &Arc<dyn Network>,
        file: Option<&Path>,
        on_refusal: Option<RefusalHandler>,
    ) -> Result<Arc<dyn Network>, String> {
        let Some(file) = file else { return Ok(inner.clone()) };
        let network = LoginNetwork::new(inner.clone(), file, None).map_err(|why| format!("--router-login: {why}"))?;
        Ok(Arc::new(LoginNetwork { on_refusal, ..network }))
    }

    async fn log_in(&self, stream: Box<dyn Stream>) -> io::Result<Box<dyn Stream>> {
        let login = read_login(&self.file)?;
        let command = [format!("set login 0 0 {}\r\n", login.len()).as_bytes(), &login, b"\r\n"].concat();
        let refused =
            |why: CommandError| io::Error::new(io::ErrorKind::PermissionDenied, format!("cannot log in: {why}"));
        let mut connection = CommandConnection::from_stream(stream, LIMITS, TIMEOUT);
        connection.send(&command).await.map_err(refused)?;
        match connection.read_part().await.map_err(refused)? {
            ReplyPart::Reply(Reply::Stored) => {}
            ReplyPart::Reply(Reply::Error(error)) => return Err(refused(CommandError::Refused(error.to_string()))),
            other => return Err(refused(CommandError::Unexpected(format!("{other:?}")))),
        }
        connection.into_stream().ok_or_else(|| refused(CommandError::Malformed("more bytes after STORED")))
    }
}

impl Network for LoginNetwork {
    fn connect<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let stream = self.inner.connect(address).await?;
            match self.addresses.as_ref().is_none_or(|addresses| addresses.contains(address)) {
                true => self.log_in(stream).await.inspect_err(|why| {
                    if let Some(on_refusal) = &self.on_refusal {
                        on_refusal(address, why);
                    }
                }),
                false => Ok(stream),
            }
        })
    }

    fn resolve<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        self.inner.resolve(address)
    }

    fn pinned(&self, policy: &TlsPolicy) -> Option<Arc<dyn Network>> {
        let inner = self.inner.pinned(policy)?;
        let (file, addresses, on_refusal) = (self.file.clone(), self.addresses.clone(), self.on_refusal.clone());
        Some(Arc::new(LoginNetwork { inner, file, addresses, on_refusal }))
    }

    fn listen<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        self.inner.listen(address)
    }
}

/// `user password`, of a file with the one line `user:password`.
fn read_login(file: &Path) -> io::Result<Vec<u8>> {
    let failed = |why: String| io::Error::other(format!("the login file {}: {why}", file.display()));
    let mut text = Vec::new();
    let opened = std::fs::File::open(file).map_err(|why| failed(why.to_string()))?;
    opened.take(FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(|why| failed(why.to_string()))?;
    let line = text.strip_suffix(b"\n").unwrap_or(&text);
    let mut login = line.strip_suffix(b"\r").unwrap_or(line).to_vec();
    let colon = login.iter().position(|&byte| byte == b':');
    let is_line = text.len() as u64 <= FILE_BYTES_MAX && !login.contains(&b'\n');
    match colon.filter(|&colon| is_line && colon > 0 && colon + 1 < login.len() && !login[..colon].contains(&b' ')) {
        Some(colon) => {
            login[colon] = b' ';
            Ok(login)
        }
        None => Err(failed("must have one line, user:password".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_one_line() {
        let path = std::env::temp_dir().join(format!("lookaside-login-{}", std::process::id()));
        let read = |text: &str| {
            std::fs::write(&path, text).expect("written");
            read_login(&path).ok()
        };
        assert_eq!(read("ada:se:cret x\n"), Some(b"ada se:cret x".to_vec()));
        assert_eq!(read("ada:secret\r\n"), Some(b"ada secret".to_vec()));
        for bad in ["", "\n", "ada", ":x", "ada:", "a b:x", "ada:x\nbob:y\n", &format!("ada:{}", "x".repeat(600))] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
        std::fs::remove_file(&path).expect("removed");
        assert!(read_login(&path).is_err());
    }
}
