//! Users, passwords, and the two ways in which a client authenticates.

pub(crate) mod ascii;
pub mod credentials;
pub(crate) mod login_log;
pub(crate) mod sasl;

/// How far a client's authentication has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Authentication {
    /// It has not begun, or has failed.
    #[default]
    None,
    /// SASL: the client has named the mechanism and waits to be asked for its password.
    InProgress,
    /// The client may send any command.
    Done,
}

impl Authentication {
    pub(crate) fn is_done(self) -> bool {
        self == Authentication::Done
    }
}
