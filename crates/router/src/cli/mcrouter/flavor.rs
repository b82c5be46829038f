//! mcrouter's flavor: options in a JSON file that stands on the command line without a flag, which overrides them.
//!
//! ```text
//!   web.json              { "options": { "route_prefix": "/r/web/", "server_timeout": 300 } }
//!   web-standalone.json   { "standalone_options": { "port": "5000" }, "libmcrouter_options": {} }   if there is one
//! ```
//!
//! Names have underscores in place of dashes. The router's name in files and for macros becomes `web`.

use super::flags::FLAGS;
use super::shown::shown_word;
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The most bytes of a flavor.
const BYTES_MAX: u64 = 1 << 20;

/// The options of a flavor.
#[derive(Debug)]
pub(super) struct Flavor {
    /// As words of a command line.
    pub(super) words: Vec<OsString>,
    /// The name that it gives to the router.
    pub(super) name: String,
}

impl Flavor {
    /// Reads the file at `path`, and that for the standalone router beside it. The error names the file.
    pub(super) fn read(path: &Path) -> Result<Flavor, String> {
        let file = read_object(path)?.ok_or_else(|| format!("{}: there is no such file", show(path)))?;
        let mut words = match file.get("options") {
            Some(Value::Object(options)) => words_of(path, options)?,
            _ => {
                return Err(format!(
                    "{}: expected mcrouter's flavor, which has an object \"options\"; a configuration is given with -f",
                    show(path)
                ));
            }
        };
        let beside = standalone_of(path);
        let standalone = read_object(&beside)?.unwrap_or_default();
        for name in ["libmcrouter_options", "standalone_options"] {
            if let Some(Value::Object(options)) = standalone.get(name) {
                words.extend(words_of(&beside, options)?);
            }
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Flavor { words, name })
    }
}

/// A path for a message: it may be an address with a password whose flag is missing.
fn show(path: &Path) -> String {
    shown_word(&path.to_string_lossy())
}

/// `web-standalone.json` for `web.json`.
fn standalone_of(path: &Path) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push("-standalone");
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// The object in a file; `None` if there is no file.
fn read_object(path: &Path) -> Result<Option<Map<String, Value>>, String> {
    let bytes = match fs::metadata(path) {
        Ok(file) => file.len(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{}: {error}", show(path))),
    };
    if bytes > BYTES_MAX {
        return Err(format!("{} has {bytes} bytes; the limit for a flavor is {BYTES_MAX}", show(path)));
    }
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", show(path)))?;
    let object = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", show(path)))?;
    Ok(Some(object))
}

fn words_of(path: &Path, options: &Map<String, Value>) -> Result<Vec<OsString>, String> {
    let word = |(name, value): (&String, &Value)| {
        let dashed = name.replace('_', "-");
        let name = if FLAGS.iter().any(|flag| flag.name == *name) { name } else { &dashed };
        match value {
            Value::String(text) => Ok(format!("--{name}={text}").into()),
            Value::Bool(_) | Value::Number(_) => Ok(format!("--{name}={value}").into()),
            _ => Err(format!("{}: {name}: expected text, a number, true or false", show(path))),
        }
    };
    options.iter().map(word).collect()
}
