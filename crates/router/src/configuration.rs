//! Where the configuration comes from.

use std::fmt;
use std::path::PathBuf;

/// Where the configuration comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file, watched while the router runs.
    File(PathBuf),
    /// The command line.
    Text(String),
}

impl Source {
    /// The text of the configuration as it is now.
    pub fn read(&self) -> Result<String, String> {
        match self {
            Source::File(path) => crate::watch::read_configuration(path),
            Source::Text(text) => Ok(text.clone()),
        }
    }

    /// Puts the source in front of what is wrong with it, unless that names it already.
    pub fn blame(&self, why: &str) -> String {
        let source = self.to_string();
        match why.contains(&source) {
            true => why.to_owned(),
            false => format!("{source}: {why}"),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::File(path) => write!(f, "{}", path.display()),
            Source::Text(_) => write!(f, "configuration on the command line"),
        }
    }
}
