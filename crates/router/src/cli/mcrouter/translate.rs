//! Rewrites a command line of mcrouter's grammar to words that clap parses.
//!
//! | written | meaning |
//! |---|---|
//! | `--name value`, `--name=value`, `-n value`, `-nvalue` | a value; the last one counts |
//! | an unambiguous beginning of a long name | that name; of mcrouter's names if only one of them begins so |
//! | `--toggle`, `--toggle=1`, `--toggle=true`, `=0`, `=false` | on, on, on, off, off |
//! | `-v`, `-vv`, `-v 3`, `-v3` | a level of the log |
//! | `%CPU_CORES%` in a value | the number of cores |
//! | a value that is no number where one is needed | logged; the default stays |
//! | an unknown flag | logged, with a value behind it that does not begin with `-` |
//! | a flag that restricts access by means that do not exist here, or that may be a typing error for one that does | refused |

use super::flags::{Effect, FLAGS, Flag, RESTRICTING, ValueKind};
use clap::{Arg, ArgAction, Command};
use lookaside_routing::nearest_name;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::iter::Peekable;

/// A command line for clap, and what was left out of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Translation {
    /// Without the program's name.
    pub(crate) words: Vec<OsString>,
    /// Lines for the log.
    pub(crate) notes: Vec<String>,
}

/// Rewrites `words`, which are without the program's name, to those of `command`. The error names a flag that must not
/// be ignored.
pub(crate) fn translate(
    words: impl IntoIterator<Item = OsString>,
    command: &Command,
    cores: usize,
) -> Result<Translation, String> {
    let mut translator = Translator {
        own: own_flags(command),
        cores: cores.to_string(),
        toggles: BTreeMap::new(),
        level: None,
        done: Translation::default(),
    };
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next() {
        translator.translate_word(word, &mut words)?;
    }
    Ok(translator.finish())
}

/// The long names of `command`, aliases included, each as a flag.
fn own_flags(command: &Command) -> Vec<Flag<'_>> {
    command.get_arguments().flat_map(flags_of).collect()
}

fn flags_of(argument: &Arg) -> Vec<Flag<'_>> {
    let Some(long) = argument.get_long() else { return Vec::new() };
    // Under whatever name, the value is of the same kind.
    let value = FLAGS.iter().find(|flag| flag.name == long).map_or_else(|| value_of(argument), |flag| flag.value);
    let aliases = argument.get_all_aliases().unwrap_or_default();
    let names = std::iter::once(long).chain(aliases);
    names.map(|name| Flag { name, short: argument.get_short(), value, effect: Effect::Own(long) }).collect()
}

fn value_of(argument: &Arg) -> ValueKind {
    match argument.get_action() {
        ArgAction::Set | ArgAction::Append => ValueKind::Text,
        _ => ValueKind::Toggle,
    }
}

struct Translator<'a> {
    /// The flags of this router, behind mcrouter's.
    own: Vec<Flag<'a>>,
    cores: String,
    /// This router's toggles by name, as given last.
    toggles: BTreeMap<&'a str, bool>,
    /// The level of the log; `None` if it is not given.
    level: Option<u32>,
    done: Translation,
}

impl<'a> Translator<'a> {
    fn translate_word(
        &mut self,
        word: OsString,
        rest: &mut Peekable<impl Iterator<Item = OsString>>,
    ) -> Result<(), String> {
        // A name is ASCII. Only a path can be anything else, and clap takes it as it is.
        let Some(text) = word.to_str() else {
            self.done.words.push(word);
            return Ok(());
        };
        if let Some(long) = text.strip_prefix("--").filter(|long| !long.is_empty()) {
            let (name, attached) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            return match &*self.candidates(name) {
                [flag] => self.apply(*flag, attached.map(str::to_owned), rest),
                several if several.iter().any(|flag| restricts_access(*flag)) => {
                    let names: Vec<_> = several.iter().map(|flag| format!("--{}", flag.name)).collect();
                    Err(format!("--{name} may be {}: expected one of them", names.join(" or ")))
                }
                _ => self.skip_unknown(&format!("--{name}"), name, attached.is_some(), rest),
            };
        }
        match text.strip_prefix('-').filter(|cluster| !cluster.is_empty()) {
            Some(cluster) => self.translate_cluster(cluster, rest),
            None => Err(format!("{text}: expected a flag; options in a file of mcrouter's flavor are not read here")),
        }
    }

    /// Short flags in one word: toggles, and at most one with a value behind it.
    fn translate_cluster(
        &mut self,
        cluster: &str,
        rest: &mut Peekable<impl Iterator<Item = OsString>>,
    ) -> Result<(), String> {
        let mut letters = cluster.char_indices();
        while let Some((at, letter)) = letters.next() {
            let Some(flag) = self.find(|flag| flag.short == Some(letter)) else {
                return self.skip_unknown(&format!("-{letter}"), &cluster[at..], letters.next().is_some(), rest);
            };
            if flag.value != ValueKind::Toggle {
                let attached = letters.as_str();
                return self.apply(flag, (!attached.is_empty()).then(|| attached.to_owned()), rest);
            }
            self.apply(flag, None, rest)?;
        }
        Ok(())
    }

    /// mcrouter's flag, or else this router's.
    fn find(&self, is_meant: impl Fn(&Flag<'_>) -> bool) -> Option<Flag<'a>> {
        FLAGS.iter().find(|flag| is_meant(flag)).or_else(|| self.own.iter().find(|flag| is_meant(flag))).copied()
    }

    /// The flag of that name, or else those whose names begin so: mcrouter's, or else this router's.
    fn candidates(&self, name: &str) -> Vec<Flag<'a>> {
        if let Some(flag) = self.find(|flag| flag.name == name) {
            return vec![flag];
        }
        let begins_so = |flag: &&Flag<'_>| flag.name.starts_with(name);
        let mut candidates: Vec<Flag<'a>> = FLAGS.iter().filter(begins_so).copied().collect();
        if candidates.is_empty() {
            candidates = self.own.iter().filter(begins_so).copied().collect();
        }
        candidates
    }

    fn apply(
        &mut self,
        flag: Flag<'a>,
        attached: Option<String>,
        rest: &mut Peekable<impl Iterator<Item = OsString>>,
    ) -> Result<(), String> {
        match flag.value {
            ValueKind::Toggle => match attached.as_deref() {
                None | Some("1" | "true") => self.apply_toggle(flag, true),
                Some("0" | "false") => self.apply_toggle(flag, false),
                Some(other) if restricts_access(flag) => {
                    Err(format!("--{} {other}: expected 0, 1, true or false", flag.name))
                }
                Some(other) => self.note(format!("--{} {other}: expected 0 or 1; the default stays", flag.name)),
            },
            ValueKind::Level => self.apply_level(flag, attached, rest),
            ValueKind::Optional => self.apply_value(flag, attached.map(OsString::from)),
            ValueKind::Integer | ValueKind::Number | ValueKind::Text => {
                let value = attached.map(OsString::from).or_else(|| rest.next_if(is_value));
                self.apply_value(flag, value)
            }
        }
    }

    fn apply_toggle(&mut self, flag: Flag<'a>, is_on: bool) -> Result<(), String> {
        match flag.effect {
            Effect::Own(own) => {
                self.toggles.insert(own, is_on);
                Ok(())
            }
            _ if is_on => self.note_or_refuse(flag),
            _ => Ok(()),
        }
    }

    fn apply_value(&mut self, flag: Flag<'a>, value: Option<OsString>) -> Result<(), String> {
        let Effect::Own(own) = flag.effect else { return self.note_or_refuse(flag) };
        let Some(value) = value else {
            self.done.words.push(format!("--{own}").into());
            return Ok(());
        };
        let value = match value.into_string() {
            Ok(text) => text.replace("%CPU_CORES%", &self.cores),
            Err(path) => {
                let mut word = OsString::from(format!("--{own}="));
                word.push(path);
                self.done.words.push(word);
                return Ok(());
            }
        };
        let is_convertible = match flag.value {
            ValueKind::Integer => value.parse::<i64>().is_ok(),
            ValueKind::Number => value.parse::<f64>().is_ok(),
            _ => true,
        };
        match is_convertible {
            true => self.done.words.push(format!("--{own}={value}").into()),
            false => self.done.notes.push(format!("--{} {value}: not a number; the default stays", flag.name)),
        }
        Ok(())
    }

    fn apply_level(
        &mut self,
        flag: Flag<'a>,
        attached: Option<String>,
        rest: &mut Peekable<impl Iterator<Item = OsString>>,
    ) -> Result<(), String> {
        let is_number = |word: &OsString| word.to_str().is_some_and(|text| text.parse::<u32>().is_ok());
        let attached = attached.or_else(|| rest.next_if(is_number).and_then(|word| word.into_string().ok()));
        let more = match attached.as_deref() {
            None => 1,
            Some(letters) if letters.bytes().all(|letter| letter == b'v') => 1 + letters.len() as u32,
            Some(text) => match text.parse() {
                Ok(level) => {
                    self.level = Some(level);
                    0
                }
                Err(_) => return self.note(format!("--{} {text}: not a number; the default stays", flag.name)),
            },
        };
        self.level = Some(self.level.unwrap_or(0).saturating_add(more));
        Ok(())
    }

    fn note_or_refuse(&mut self, flag: Flag<'_>) -> Result<(), String> {
        let name = flag.name;
        match flag.effect {
            Effect::Own(_) | Effect::Same(_) => Ok(()),
            Effect::Useless(why) => self.note(format!("--{name} has no effect: {why}")),
            Effect::Missing(what) => self.note(format!("--{name} is not supported: {what}")),
            Effect::Refused(why) => Err(format!("--{name}: {why}; remove it to start without")),
        }
    }

    fn skip_unknown(
        &mut self,
        shown: &str,
        name: &str,
        has_value: bool,
        rest: &mut Peekable<impl Iterator<Item = OsString>>,
    ) -> Result<(), String> {
        let restricting = FLAGS.iter().filter(|flag| restricts_access(**flag)).map(|flag| flag.name);
        if let Some(meant) = nearest_name(name, restricting.chain(RESTRICTING.iter().copied())) {
            return Err(format!(
                "{shown} is unknown. It may be meant for --{meant}, which restricts access: correct it"
            ));
        }
        if name.starts_with("acl-") || name.ends_with("-enforce") {
            return Err(format!("{shown} is unknown, and by its name restricts access: remove it to start without"));
        }
        if !has_value {
            rest.next_if(is_value);
        }
        let known = FLAGS.iter().chain(&self.own).map(|flag| flag.name);
        let meant = nearest_name(name, known).map(|meant| format!(" (did you mean --{meant}?)"));
        self.note(format!("Unrecognized option: {shown}{}", meant.unwrap_or_default()))
    }

    fn note(&mut self, line: String) -> Result<(), String> {
        self.done.notes.push(line);
        Ok(())
    }

    fn finish(self) -> Translation {
        let toggles = self.toggles.into_iter().filter(|(_, is_on)| *is_on).map(|(own, _)| format!("--{own}").into());
        let level = self.level.map(|level| format!("--verbosity={level}").into());
        Translation { words: toggles.chain(level).chain(self.done.words).collect(), notes: self.done.notes }
    }
}

fn restricts_access(flag: Flag<'_>) -> bool {
    match flag.effect {
        Effect::Own(own) => RESTRICTING.contains(&own),
        effect => matches!(effect, Effect::Refused(_)),
    }
}

/// Whether a word can be the value of the flag before it: a negative number can, another flag cannot.
fn is_value(word: &OsString) -> bool {
    let bytes = word.as_encoded_bytes();
    match bytes {
        [b'-', next, ..] => next.is_ascii_digit(),
        _ => true,
    }
}
