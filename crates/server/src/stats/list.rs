//! Statistics in memcached's order.

use crate::session::reply;
use std::fmt::Display;

#[derive(Default)]
pub(super) struct StatList(Vec<(&'static str, String)>);

impl StatList {
    pub(super) fn add(&mut self, name: &'static str, value: impl Display) {
        self.0.push((name, value.to_string()));
    }

    /// Appends the statistics of `names`, each with its value or else with its default, or not at all if the default is
    /// empty; then those that memcached does not have.
    pub(super) fn render(mut self, names: &[(&'static str, &str)], out: &mut Vec<u8>) {
        for (name, default) in names {
            match self.0.iter().position(|(known, _)| known == name) {
                Some(index) => stat(name, self.0.remove(index).1, out),
                None if default.is_empty() => {}
                None => stat(name, default, out),
            }
        }
        self.0.iter().for_each(|(name, value)| stat(name, value, out));
    }
}

pub(super) fn stat(name: &str, value: impl Display, out: &mut Vec<u8>) {
    reply::write_line(format!("STAT {name} {value}").as_bytes(), out);
}
