//! Users, passwords, and the two ways in which a client authenticates.

pub(crate) mod ascii;
pub mod credentials;
pub(crate) mod login_log;
pub(crate) mod sasl;
