//! Rewrites a command line of mcrouter's grammar to words that clap parses.
//!
//! | written | meaning |
//! |---|---|
//! | `--name value`, `--name=value`, `-n value`, `-nvalue` | a value; the last one counts |
//! | an unambiguous beginning of a long name | that name; of mcrouter's names if only one of them begins so |
//! | `--toggle`, `--toggle=1`, `--toggle=true`, `=0`, `=false` | on, on, on, off, off |
//! | `-v`, `-vv`, `-v 3`, `-v3` | a level of the log |
//! | `%CPU_CORES%` in a value | the number of cores |
//! | an empty text, as in `--stats-root=` | as if the flag were not given: mcrouter's default of texts is the empty one |
//! | a value that is no number where one is needed, or below 0 where none is | logged; the default stays |
//! | a number beyond what is possible here | logged; the nearest possible one, but for [`super::flags::STRICT`] |
//! | a word without a flag | the file of a flavor ([`super::flavor`]), whose options the other words override |
//! | an unknown flag | logged, with a value behind it that does not begin with `-` |
//! | a flag that restricts access by means that do not exist here, or that may be a typing error for one that does | refused |

use super::flags::{Effect, FLAGS, Flag, RESTRICTING, STRICT, ValueKind, range_of};
use super::flavor::Flavor;
use super::shown::{Words, shown_word};
use clap::{Arg, ArgAction, Command};
use lookaside_routing::nearest_name;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;

/// A command line for clap, and what was left out of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Translation {
    /// Without the program's name.
    pub(crate) words: Vec<OsString>,
    /// Lines for the log.
    pub(crate) notes: Vec<String>,
    /// The line as it may be shown: without secrets, and not longer than a line.
    pub(crate) shown: String,
    /// The values of mcrouter's flags that are no arguments here, as given last.
    pub(crate) without_effect: BTreeMap<&'static str, String>,
    /// The router's name by its flavor; `None` without one.
    pub(crate) flavor: Option<String>,
}

/// Rewrites `words`, which are without the program's name, to those of `command`. The error names a flag that must not
/// be ignored.
pub(crate) fn translate(
    words: impl IntoIterator<Item = OsString>,
    command: &Command,
    cores: usize,
) -> Result<Translation, String> {
    let mut translator = Translator::new(command, cores);
    let mut words = Words::new(words);
    translator.translate_all(&mut words)?;
    if let Some(path) = translator.flavor.take() {
        let Flavor { words, name } = Flavor::read(&path)?;
        let mut of_flavor = Translator::new(command, cores);
        of_flavor.translate_all(&mut Words::new(words))?;
        if let Some(path) = of_flavor.flavor {
            return Err(format!("{}: a flavor has no flavor", shown_word(&path.to_string_lossy())));
        }
        translator.add_flavor(of_flavor);
        translator.done.flavor = Some(name);
    }
    Ok(Translation { shown: words.into_shown(), ..translator.finish() })
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
    /// The arguments with a value, an empty one included.
    given: BTreeSet<&'a str>,
    /// The word without a flag.
    flavor: Option<PathBuf>,
    done: Translation,
}

impl<'a> Translator<'a> {
    fn new(command: &'a Command, cores: usize) -> Translator<'a> {
        Translator {
            own: own_flags(command),
            cores: cores.to_string(),
            toggles: BTreeMap::new(),
            level: None,
            given: BTreeSet::new(),
            flavor: None,
            done: Translation::default(),
        }
    }

    fn translate_all(&mut self, words: &mut Words) -> Result<(), String> {
        while let Some(word) = words.next() {
            self.translate_word(word, words)?;
        }
        Ok(())
    }

    /// Adds the options of a flavor that the command line does not override.
    fn add_flavor(&mut self, of_flavor: Translator<'a>) {
        let Translator { toggles, level, done, .. } = of_flavor;
        for (own, is_on) in toggles {
            self.toggles.entry(own).or_insert(is_on);
        }
        self.level = self.level.or(level);
        let is_given = |word: &OsString| {
            let word = word.to_string_lossy();
            let name = word.trim_start_matches("--").split('=').next().unwrap_or_default();
            self.given.contains(name)
        };
        let words: Vec<_> = done.words.into_iter().filter(|word| !is_given(word)).collect();
        self.done.words.extend(words);
        self.done.notes.extend(done.notes);
        for (name, value) in done.without_effect {
            self.done.without_effect.entry(name).or_insert(value);
        }
    }

    fn translate_word(&mut self, word: OsString, rest: &mut Words) -> Result<(), String> {
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
        match text.strip_prefix('-').filter(|letters| !letters.is_empty()) {
            Some(letters) => self.translate_short_flags(letters, rest),
            None if self.flavor.is_none() => {
                self.flavor = Some(text.into());
                Ok(())
            }
            None => Err(format!("{}: expected a flag; one flavor is given already", shown_word(text))),
        }
    }

    /// Short flags in one word: toggles, and at most one with a value behind it.
    fn translate_short_flags(&mut self, flags: &str, rest: &mut Words) -> Result<(), String> {
        let mut letters = flags.char_indices();
        while let Some((at, letter)) = letters.next() {
            let Some(flag) = self.find(|flag| flag.short == Some(letter)) else {
                return self.skip_unknown(&format!("-{letter}"), &flags[at..], letters.next().is_some(), rest);
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

    fn apply(&mut self, flag: Flag<'a>, attached: Option<String>, rest: &mut Words) -> Result<(), String> {
        match flag.value {
            ValueKind::Toggle => match attached.as_deref() {
                None | Some("1" | "true") => self.apply_toggle(flag, true),
                Some("0" | "false") => self.apply_toggle(flag, false),
                Some(other) if restricts_access(flag) => {
                    Err(format!("--{} {other}: expected 0, 1, true or false", flag.name))
                }
                Some(other) => {
                    self.note(format!("--{} {other}: expected 0 or 1; the default stays", flag.name));
                    Ok(())
                }
            },
            ValueKind::Level => self.apply_level(flag, attached, rest),
            ValueKind::Optional => self.apply_value(flag, attached.map(OsString::from)),
            ValueKind::Integer | ValueKind::Number | ValueKind::Text => {
                let is_attached = attached.is_some();
                let value = attached.map(OsString::from).or_else(|| rest.next_if(is_value));
                match flag.effect == SECRET && value.is_some() {
                    true if is_attached => rest.hide_attached(),
                    true => rest.hide_word(),
                    false => {}
                }
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
            _ => {
                self.record_without_effect(flag, is_on.to_string());
                if is_on { self.note_or_refuse(flag) } else { Ok(()) }
            }
        }
    }

    fn apply_value(&mut self, flag: Flag<'a>, value: Option<OsString>) -> Result<(), String> {
        let Effect::Own(own) = flag.effect else {
            if let Some(value) = value {
                self.record_without_effect(flag, value.to_string_lossy().into_owned());
            }
            return self.note_or_refuse(flag);
        };
        self.given.insert(own);
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
        if value.is_empty() && flag.value == ValueKind::Text && is_mcrouters(flag) {
            let earlier = format!("--{own}=");
            self.done.words.retain(|word| !word.as_encoded_bytes().starts_with(earlier.as_bytes()));
        } else if let Some(value) = self.possible_value(flag, own, value) {
            self.done.words.push(format!("--{own}={value}").into());
        }
        Ok(())
    }

    /// The value, or the number that is nearest to it of those that are possible here; `None` if the default stays.
    fn possible_value(&mut self, flag: Flag<'_>, own: &str, value: String) -> Option<String> {
        let name = flag.name;
        let is_convertible = match flag.value {
            ValueKind::Integer => value.parse::<i64>().is_ok(),
            ValueKind::Number => value.parse::<f64>().is_ok(),
            _ => true,
        };
        if !is_convertible {
            self.done.notes.push(format!("--{name} {value}: not a number; the default stays"));
            return None;
        }
        let (Some((first, last)), Ok(number)) = (range_of(own), value.parse::<i64>()) else { return Some(value) };
        let nearest = number.clamp(first, last);
        if nearest == number || number < first && STRICT.contains(&own) {
            return Some(value);
        }
        if number < 0 {
            self.done.notes.push(format!("--{name} {number}: expected {first} to {last}; the default stays"));
            return None;
        }
        self.done.notes.push(format!("--{name} {number}: expected {first} to {last}; {nearest} is used"));
        Some(nearest.to_string())
    }

    fn apply_level(&mut self, flag: Flag<'a>, attached: Option<String>, rest: &mut Words) -> Result<(), String> {
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
                Err(_) => {
                    self.note(format!("--{} {text}: not a number; the default stays", flag.name));
                    return Ok(());
                }
            },
        };
        self.level = Some(self.level.unwrap_or(0).saturating_add(more));
        Ok(())
    }

    /// Records the value of a flag that is no argument here.
    fn record_without_effect(&mut self, flag: Flag<'_>, value: String) {
        if let Some(known) = FLAGS.iter().find(|known| known.name == flag.name) {
            self.done.without_effect.insert(known.name, value);
        }
    }

    fn note_or_refuse(&mut self, flag: Flag<'_>) -> Result<(), String> {
        let name = flag.name;
        match flag.effect {
            Effect::Own(_) | Effect::Same(_) => {}
            Effect::Useless(why) => self.note(format!("--{name} has no effect: {why}")),
            Effect::Missing(what) => self.note(format!("--{name} is not supported: {what}")),
            Effect::Refused(why) => return Err(format!("--{name}: {why}; remove it to start without")),
        }
        Ok(())
    }

    fn skip_unknown(&mut self, shown: &str, name: &str, has_value: bool, rest: &mut Words) -> Result<(), String> {
        let restricting = FLAGS.iter().filter(|flag| restricts_access(**flag)).map(|flag| flag.name);
        if let Some(meant) = nearest_name(name, restricting.chain(RESTRICTING.iter().copied())) {
            return Err(format!(
                "{shown} is unknown. It may be meant for --{meant}, which restricts access: correct it"
            ));
        }
        if name.starts_with("acl-") || name.ends_with("-enforce") {
            return Err(format!("{shown} is unknown, and by its name restricts access: remove it to start without"));
        }
        // It may be a secret whose flag is mistyped.
        if has_value {
            rest.hide_attached();
        } else if rest.next_if(is_value).is_some() {
            rest.hide_word();
        }
        let known = FLAGS.iter().chain(&self.own).map(|flag| flag.name);
        let meant = nearest_name(name, known).map(|meant| format!(" (did you mean --{meant}?)"));
        self.note(format!("Unrecognized option: {shown}{}", meant.unwrap_or_default()));
        Ok(())
    }

    fn note(&mut self, line: String) {
        self.done.notes.push(line);
    }

    fn finish(self) -> Translation {
        let toggles = self.toggles.into_iter().filter(|(_, is_on)| *is_on).map(|(own, _)| format!("--{own}").into());
        let level = self.level.map(|level| format!("--verbosity={level}").into());
        Translation { words: toggles.chain(level).chain(self.done.words).collect(), ..self.done }
    }
}

/// The flag whose value is a secret.
const SECRET: Effect<'static> = Effect::Own("etcd-password");

fn is_mcrouters(flag: Flag<'_>) -> bool {
    FLAGS.iter().any(|known| known.name == flag.name)
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
