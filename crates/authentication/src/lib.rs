//! How clients of the server and of the router authenticate: users' files, and the two ways to log in. Sans-I/O: the
//! caller has the bytes, the time and the counters.
//!
//! | file | |
//! |---|---|
//! | [`credentials`] | users and passwords, compared in constant time |
//! | [`ascii`] | a first `set`, in the text protocol |
//! | [`sasl`] | SASL PLAIN, in the binary protocol |
//! | [`LoginLog`] | refused logins in the log |
//!
//! Absent on purpose: which commands need authentication beyond "all", and other mechanisms.
#![forbid(unsafe_code)]

pub mod ascii;
pub mod credentials;
mod login_log;
pub mod sasl;

pub use credentials::Credentials;
pub use login_log::LoginLog;

/// The variable of the environment that names the users' file of SASL; memcached's.
pub const SASL_FILE_VARIABLE: &str = "MEMCACHED_SASL_PWDB";

/// How far a client's authentication has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Authentication {
    /// It has not begun, or has failed.
    #[default]
    None,
    /// SASL: the client has named the mechanism and waits to be asked for its password.
    InProgress,
    /// The client may send any command.
    Done,
}

impl Authentication {
    /// Whether the client may send any command.
    pub fn is_done(self) -> bool {
        self == Authentication::Done
    }

    /// The number that stands for it when a connection is handed over to another process.
    pub fn to_saved(self) -> u8 {
        match self {
            Authentication::None => 0,
            Authentication::InProgress => 1,
            Authentication::Done => 2,
        }
    }

    /// The inverse of [`Authentication::to_saved`]. An unknown number has to authenticate.
    pub fn from_saved(saved: u8) -> Authentication {
        match saved {
            1 => Authentication::InProgress,
            2 => Authentication::Done,
            _ => Authentication::None,
        }
    }
}

/// A login that was tried, to be counted and, if refused, logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginAttempt<'a> {
    /// The password was valid.
    Accepted,
    /// It was not.
    Refused {
        /// The user name that was given; `None` if none could be read.
        user: Option<&'a [u8]>,
    },
}
