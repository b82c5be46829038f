//! Users and passwords from a file, for SASL PLAIN and for ASCII authentication.
//!
//! ```text
//! user:password                       plain
//! user:$2y$10$N9qo8uLOickgx2ZM...     bcrypt, as `htpasswd -nB user` prints it
//! ```
//!
//! One user per line, as in memcached's files. Everything after the first colon is the password. Empty lines are
//! ignored. Plain passwords are not kept in memory: each is stored as a digest under a key that only this process has,
//! and digests are compared in constant time.
//!
//! Verifying a bcrypt hash is slow on purpose, and the thread that does it serves other clients too. So:
//!
//! * a hash with a cost above [`COST_MAX`] (about 90 ms) is refused when the file is read;
//! * the digest of a password that was valid once is cached, and verifying it again costs nothing: a client that comes
//!   back never waits behind a client that guesses;
//! * a token bucket limits slow verifications for the whole process: [`SLOW_BURST`] at once, then one in
//!   [`SLOW_INTERVAL_MS`]. Beyond that the result is [`AuthResult::TryLater`]. A brute-force client costs at most 20 %
//!   of one thread, and gets two attempts a second;
//! * one password of a user is verified at a time, so that an application that opens many connections at once is
//!   verified once. Only a client that has taken a token waits for that.
//!
//! Deliberately absent: hiding which users exist. The reply to an unknown user is the same as that to a wrong password,
//! but it comes sooner. User names are not secret here.

use anyhow::Context;
use lookaside_sync::{Mutex, RwLock};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};
use subtle::ConstantTimeEq;

/// The maximum number of users in a file (memcached: 8).
pub const USERS_MAX: usize = 64;

/// The largest file, in bytes.
pub const FILE_BYTES_MAX: u64 = 64 << 10;

/// The longest user name, and the longest password, in bytes.
pub const WORD_BYTES_MAX: usize = 256;

/// The highest accepted cost of a bcrypt hash, as the binary logarithm of its rounds.
pub const COST_MAX: u32 = 10;

/// The number of slow verifications allowed at once.
pub const SLOW_BURST: u64 = 8;

/// The time after which another slow verification is allowed, in milliseconds.
pub const SLOW_INTERVAL_MS: u64 = 500;

/// bcrypt uses at most this many bytes of a password; it would silently truncate a longer one.
const BCRYPT_BYTES_MAX: usize = 72;

/// The users of a file.
pub struct Credentials {
    path: PathBuf,
    /// The key of the digests, which are useless outside of this process.
    key: [u8; 32],
    users: RwLock<Arc<Vec<User>>>,
    token_bucket: Mutex<TokenBucket>,
}

struct User {
    name: Vec<u8>,
    secret: Secret,
}

enum Secret {
    Plain(PasswordDigest),
    Bcrypt(BcryptSecret),
}

struct BcryptSecret {
    hash: String,
    /// The digest of the password, once a client has sent it. Never locked for long.
    verified_digest: Mutex<Option<PasswordDigest>>,
    /// Held while a password is verified.
    verify_lock: Mutex<()>,
}

/// The digest of a password under the key of the process.
type PasswordDigest = [u8; 32];

/// Limits slow verifications; refilled with time.
struct TokenBucket {
    tokens: u64,
    refilled_ms: u64,
}

/// The result of verifying a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthResult {
    /// The password is valid.
    Valid,
    /// The user is unknown, or the password is wrong.
    Invalid,
    /// Too many attempts: nothing was verified.
    TryLater,
}

/// Why a file of users cannot be used. The users that were read before stay.
#[derive(Debug)]
pub enum CredentialsError {
    /// The file cannot be read.
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The file is larger than [`FILE_BYTES_MAX`], or has more than [`USERS_MAX`] users.
    TooLarge {
        /// Which.
        path: PathBuf,
    },
    /// The file has no user: no client could ever authenticate.
    Empty {
        /// Which.
        path: PathBuf,
    },
    /// A line is invalid.
    Line {
        /// Of which file.
        path: PathBuf,
        /// Its number, from 1.
        line: usize,
        /// The reason why it is refused.
        why: &'static str,
    },
}

impl std::error::Error for CredentialsError {}

impl std::fmt::Display for CredentialsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CredentialsError::Unreadable { path, error } => {
                write!(f, "cannot read the users' file {}: {error}", path.display())
            }
            CredentialsError::TooLarge { path } => write!(
                f,
                "the users' file {} is over the limit of {USERS_MAX} users or {FILE_BYTES_MAX} bytes",
                path.display()
            ),
            CredentialsError::Empty { path } => {
                write!(f, "the users' file {} has no user; a line is user:password", path.display())
            }
            CredentialsError::Line { path, line, why } => {
                write!(f, "the users' file {}, line {line}: {why}", path.display())
            }
        }
    }
}

impl Credentials {
    /// Reads the users of the file at `path`, with a random key.
    pub fn open(path: &Path) -> anyhow::Result<Credentials> {
        let mut key = [0; 32];
        getrandom(&mut key, GetRandomFlags::empty()).context("cannot get random bytes from the kernel")?;
        Ok(Credentials::read(path, key)?)
    }

    /// Reads the users of the file at `path`. `key` is random and differs in each process.
    pub fn read(path: &Path, key: [u8; 32]) -> Result<Credentials, CredentialsError> {
        let users = RwLock::new(Arc::new(read_users(path, &key)?));
        let token_bucket = Mutex::new(TokenBucket { tokens: SLOW_BURST, refilled_ms: 0 });
        Ok(Credentials { path: path.to_owned(), key, users, token_bucket })
    }

    /// Reads the file again. If that fails, nothing changes. Authenticated clients stay authenticated.
    pub fn reload(&self) -> Result<(), CredentialsError> {
        let users = read_users(&self.path, &self.key)?;
        *self.users.write() = Arc::new(users);
        Ok(())
    }

    /// Reloads, and logs whether the file could be used.
    pub fn reload_and_log(&self) {
        match self.reload() {
            Ok(()) => tracing::info!("{} reloaded", self.describe_count()),
            Err(error) => tracing::error!("cannot reload users; keeping the old ones: {error}"),
        }
    }

    /// The number of users.
    pub fn users_count(&self) -> usize {
        self.users().len()
    }

    /// The number of users, in words.
    pub fn describe_count(&self) -> String {
        let count = self.users_count();
        if count == 1 { "1 user".to_string() } else { format!("{count} users") }
    }

    fn users(&self) -> Arc<Vec<User>> {
        self.users.read().clone()
    }

    fn token_bucket(&self) -> MutexGuard<'_, TokenBucket> {
        self.token_bucket.lock()
    }

    /// Verifies a user and a password at `now_ms`, in milliseconds since 1970. Takes up to about 90 ms, as rarely as
    /// the head of this file says.
    pub fn verify(&self, name: &[u8], password: &[u8], now_ms: u64) -> AuthResult {
        if password.len() > WORD_BYTES_MAX {
            return AuthResult::Invalid;
        }
        let users = self.users();
        let Some(user) = users.iter().find(|user| user.name == name) else { return AuthResult::Invalid };
        let digest = digest(&self.key, name, password);
        match &user.secret {
            Secret::Plain(expected) if is_same(expected, &digest) => AuthResult::Valid,
            Secret::Plain(_) => AuthResult::Invalid,
            Secret::Bcrypt(secret) => self.verify_slowly(secret, password, digest, now_ms),
        }
    }

    fn verify_slowly(&self, secret: &BcryptSecret, password: &[u8], digest: PasswordDigest, now_ms: u64) -> AuthResult {
        if secret.has_verified(&digest) {
            return AuthResult::Valid;
        }
        if !self.token_bucket().take_token(now_ms) {
            return AuthResult::TryLater;
        }
        let _verifying = secret.verify_lock.lock();
        if secret.has_verified(&digest) {
            self.token_bucket().return_token();
            return AuthResult::Valid;
        }
        match password.len() < BCRYPT_BYTES_MAX && bcrypt::verify(password, &secret.hash).unwrap_or(false) {
            true => {
                *secret.verified_digest.lock() = Some(digest);
                AuthResult::Valid
            }
            false => AuthResult::Invalid,
        }
    }
}

impl BcryptSecret {
    fn has_verified(&self, digest: &PasswordDigest) -> bool {
        let verified_digest = self.verified_digest.lock();
        verified_digest.as_ref().is_some_and(|expected| is_same(expected, digest))
    }
}

impl TokenBucket {
    fn take_token(&mut self, now_ms: u64) -> bool {
        let new_tokens = now_ms.saturating_sub(self.refilled_ms) / SLOW_INTERVAL_MS;
        if new_tokens > 0 {
            self.tokens = self.tokens.saturating_add(new_tokens).min(SLOW_BURST);
            self.refilled_ms += new_tokens * SLOW_INTERVAL_MS;
        }
        let is_available = self.tokens > 0;
        self.tokens -= u64::from(is_available);
        is_available
    }

    /// Returns a token that was not needed.
    fn return_token(&mut self) {
        self.tokens = (self.tokens + 1).min(SLOW_BURST);
    }
}

fn read_users(path: &Path, key: &[u8; 32]) -> Result<Vec<User>, CredentialsError> {
    use std::io::Read;
    let unreadable = |error| CredentialsError::Unreadable { path: path.to_owned(), error };
    let mut text = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(unreadable)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(CredentialsError::TooLarge { path: path.to_owned() });
    }
    let mut users: Vec<User> = Vec::new();
    for (line, text) in (1..).zip(text.split(|&byte| byte == b'\n')) {
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        if text.is_empty() {
            continue;
        }
        let refuse = |why| CredentialsError::Line { path: path.to_owned(), line, why };
        let user = read_user(text, key).map_err(refuse)?;
        if users.iter().any(|other| other.name == user.name) {
            return Err(refuse("this user is listed twice"));
        }
        if users.len() == USERS_MAX {
            return Err(CredentialsError::TooLarge { path: path.to_owned() });
        }
        users.push(user);
    }
    if users.is_empty() {
        return Err(CredentialsError::Empty { path: path.to_owned() });
    }
    Ok(users)
}

fn read_user(line: &[u8], key: &[u8; 32]) -> Result<User, &'static str> {
    let colon = memchr::memchr(b':', line).ok_or("a line is user:password")?;
    let (name, password) = (&line[..colon], &line[colon + 1..]);
    if name.is_empty() || password.is_empty() {
        return Err("neither the user nor the password may be empty");
    }
    if name.len() > WORD_BYTES_MAX || password.len() > WORD_BYTES_MAX {
        return Err("the user or the password is longer than 256 bytes");
    }
    let secret = match std::str::from_utf8(password).ok().filter(|text| is_hash(text)) {
        Some(hash) => {
            let (hash, verified_digest, verify_lock) = (check_hash(hash)?, Mutex::new(None), Mutex::new(()));
            Secret::Bcrypt(BcryptSecret { hash, verified_digest, verify_lock })
        }
        None => Secret::Plain(digest(key, name, password)),
    };
    Ok(User { name: name.to_vec(), secret })
}

/// Whether this is a hash of any kind, judged by its prefix. A hash is never used as a plain password: a reader of the
/// file could authenticate with it.
fn is_hash(password: &str) -> bool {
    const KINDS: [&str; 9] = ["$1$", "$2", "$5$", "$6$", "$y$", "$7$", "$argon2", "$apr1$", "$scrypt$"];
    KINDS.iter().any(|kind| password.starts_with(kind)) || password.starts_with("{SHA}")
}

fn check_hash(hash: &str) -> Result<String, &'static str> {
    let parts: bcrypt::HashParts =
        hash.parse().map_err(|_| "only bcrypt hashes are supported; make one with `htpasswd -nB USER`")?;
    match parts.get_cost() {
        0..=COST_MAX => Ok(hash.to_owned()),
        _ => {
            Err("a bcrypt hash dearer than cost 10 would keep other clients waiting; make it with `htpasswd -nB -C 10`")
        }
    }
}

fn digest(key: &[u8; 32], name: &[u8], password: &[u8]) -> PasswordDigest {
    let mut hasher = Sha256::new();
    hasher.update(key);
    hasher.update((name.len() as u64).to_le_bytes());
    hasher.update(name);
    hasher.update(password);
    hasher.finalize().into()
}

fn is_same(expected: &PasswordDigest, given: &PasswordDigest) -> bool {
    expected.ct_eq(given).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 32] = [7; 32];
    const NOW: u64 = 1_700_000_000_000;

    fn read(text: &str) -> Result<(Credentials, tempfile::NamedTempFile), CredentialsError> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        Ok((Credentials::read(file.path(), KEY)?, file))
    }

    fn fast_hash(password: &str) -> String {
        bcrypt::hash(password, 4).expect("a hash")
    }

    #[test]
    fn plain_passwords_are_compared_whole() {
        let (credentials, _file) = read("ada:se:cret\r\n\nbob:x\n").expect("two users");
        assert_eq!(credentials.users_count(), 2);
        assert_eq!(credentials.verify(b"ada", b"se:cret", NOW), AuthResult::Valid);
        for (name, password) in [("ada", "se:cre"), ("ada", "se:cret "), ("bob", "se:cret"), ("eve", "x"), ("", "")] {
            assert_eq!(credentials.verify(name.as_bytes(), password.as_bytes(), NOW), AuthResult::Invalid, "{name}");
        }
    }

    #[test]
    fn a_bcrypt_hash_verifies_its_password_and_is_no_password_itself() {
        let hash = fast_hash("secret");
        let (credentials, _file) = read(&format!("ada:{hash}\n")).expect("a user");
        assert_eq!(credentials.verify(b"ada", hash.as_bytes(), NOW), AuthResult::Invalid);
        assert_eq!(credentials.verify(b"ada", b"secret", NOW), AuthResult::Valid);
        // htpasswd writes $2y$, which is the same function.
        let (credentials, _file) = read(&format!("ada:{}\n", hash.replace("$2b$", "$2y$"))).expect("a user");
        assert_eq!(credentials.verify(b"ada", b"secret", NOW), AuthResult::Valid);
    }

    #[test]
    fn guesses_are_limited_and_do_not_lock_out_a_valid_client() {
        let hash = fast_hash("secret");
        let (credentials, _file) = read(&format!("ada:{hash}\nbob:{hash}\n")).expect("users");
        assert_eq!(credentials.verify(b"ada", b"secret", NOW), AuthResult::Valid);
        for _ in 1..SLOW_BURST {
            assert_eq!(credentials.verify(b"ada", b"guess", NOW), AuthResult::Invalid);
        }
        assert_eq!(credentials.verify(b"ada", b"guess", NOW), AuthResult::TryLater);
        assert_eq!(credentials.verify(b"bob", b"secret", NOW), AuthResult::TryLater);
        assert_eq!(credentials.verify(b"ada", b"secret", NOW), AuthResult::Valid);
        let later = NOW + SLOW_INTERVAL_MS;
        assert_eq!(credentials.verify(b"bob", b"secret", later), AuthResult::Valid);
        assert_eq!(credentials.verify(b"bob", b"guess", later), AuthResult::TryLater);
    }

    /// The lock is held here, as by a thread that verifies a guess. A client that waited for it would never return.
    #[test]
    fn a_client_with_a_valid_password_does_not_wait_for_one_that_guesses() {
        let (credentials, _file) = read(&format!("ada:{}\n", fast_hash("secret"))).expect("a user");
        assert_eq!(credentials.verify(b"ada", b"secret", NOW), AuthResult::Valid);
        let users = credentials.users();
        let Secret::Bcrypt(secret) = &users[0].secret else { panic!("a hash") };
        let verify_lock = secret.verify_lock.lock();
        std::thread::scope(|scope| {
            let (sender, results) = std::sync::mpsc::channel();
            let (credentials, guess_sender) = (&credentials, sender.clone());
            scope.spawn(move || sender.send(credentials.verify(b"ada", b"secret", NOW)));
            let first = results.recv_timeout(std::time::Duration::from_secs(10));
            scope.spawn(move || guess_sender.send(credentials.verify(b"ada", b"guess", NOW)));
            drop(verify_lock);
            assert_eq!((first, results.recv()), (Ok(AuthResult::Valid), Ok(AuthResult::Invalid)));
        });
    }

    /// An application that opens many connections at once is verified once.
    #[test]
    fn a_client_that_waited_for_the_lock_returns_its_token() {
        let (credentials, _file) = read(&format!("ada:{}\n", fast_hash("secret"))).expect("a user");
        std::thread::scope(|scope| {
            let verify = || scope.spawn(|| credentials.verify(b"ada", b"secret", NOW));
            let threads: Vec<_> = (0..SLOW_BURST).map(|_| verify()).collect();
            for thread in threads {
                assert_eq!(thread.join().expect("no panic"), AuthResult::Valid);
            }
        });
        assert_eq!(credentials.token_bucket().tokens, SLOW_BURST - 1);
    }

    #[test]
    fn an_invalid_file_is_an_error_and_changes_nothing() {
        let long = "x".repeat(WORD_BYTES_MAX + 1);
        let costly = fast_hash("x").replace("$04$", "$12$");
        let many: String = (0..=USERS_MAX).map(|n| format!("u{n}:x\n")).collect();
        let texts = [
            "",
            "\n\n",
            "ada\n",
            ":x\n",
            "ada:\n",
            "ada:x\nada:y\n",
            "ada:$6$salt$hash\n",
            "ada:$argon2id$v=19$x\n",
            "ada:$2b$04$short\n",
            &format!("ada:{long}\n"),
            &format!("ada:{costly}\n"),
            &many,
        ]; // fmt: skip
        let (credentials, file) = read("ada:x\n").expect("a user");
        for text in texts {
            assert!(read(text).is_err(), "{text:?}");
            std::fs::write(file.path(), text).expect("written");
            assert!(credentials.reload().is_err(), "{text:?}");
            assert_eq!(credentials.verify(b"ada", b"x", NOW), AuthResult::Valid);
        }
        std::fs::write(file.path(), "ada:y").expect("written");
        credentials.reload().expect("a user");
        assert_eq!(credentials.verify(b"ada", b"x", NOW), AuthResult::Invalid);
        assert_eq!(credentials.verify(b"ada", b"y", NOW), AuthResult::Valid);
    }

    #[test]
    fn an_error_names_file_and_line() {
        let error = read("ada:x\nbob\n").err().expect("no password").to_string();
        assert!(error.ends_with("line 2: a line is user:password"), "{error}");
    }
}
