//! Errors and warnings about a configuration, with their places.

use std::fmt;

/// The most errors that are reported of one configuration.
const ERRORS_MAX: usize = 20;

/// Why a configuration was refused: at least one error, in the order of the text. An error that another one causes is
/// left out, as that a route names a pool which has an error itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigurationErrors {
    errors: Vec<ConfigurationError>,
    has_more: bool,
}

impl ConfigurationErrors {
    /// Adds an error, unless it is known or there are too many.
    pub(crate) fn add(&mut self, error: ConfigurationError) {
        if self.errors.contains(&error) {
            return;
        }
        match self.errors.len() < ERRORS_MAX {
            true => self.errors.push(error),
            false => self.has_more = true,
        }
    }

    /// The errors in the order of the text; `None` if there are none.
    pub(crate) fn into_sorted(mut self) -> Option<ConfigurationErrors> {
        self.errors.sort_by_key(|error| (error.line, error.column));
        (!self.errors.is_empty()).then_some(self)
    }

    /// The errors: the first 20 that were found.
    pub fn iter(&self) -> std::slice::Iter<'_, ConfigurationError> {
        self.errors.iter()
    }

    /// Whether there are more than [`ConfigurationErrors::iter`] returns.
    pub fn has_more(&self) -> bool {
        self.has_more
    }
}

impl From<ConfigurationError> for ConfigurationErrors {
    fn from(error: ConfigurationError) -> Self {
        ConfigurationErrors { errors: vec![error], has_more: false }
    }
}

impl std::error::Error for ConfigurationErrors {}

/// One line: the error, or the number of errors and each with its number.
impl fmt::Display for ConfigurationErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [error] = &*self.errors {
            return error.fmt(f);
        }
        write!(f, "{}{} errors", if self.has_more { "more than " } else { "" }, self.errors.len())?;
        self.errors.iter().zip(1..).try_for_each(|(error, number)| write!(f, "; ({number}) {error}"))
    }
}

/// One error in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigurationError {
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// The path in the JSON, such as `pools.A.servers[2]`; empty at the top, or if the text is not valid JSON.
    pub path: String,
    /// The error and what was expected.
    pub message: String,
}

impl std::error::Error for ConfigurationError {}

impl fmt::Display for ConfigurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_place(f, self.line, self.column, &self.path)?;
        f.write_str(&self.message)
    }
}

/// A part of a configuration that was ignored, or that may mean something else than intended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigurationWarning {
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// As in [`ConfigurationError::path`].
    pub path: String,
    /// What it is, and why.
    pub message: String,
}

impl fmt::Display for ConfigurationWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_place(f, self.line, self.column, &self.path)?;
        f.write_str(&self.message)
    }
}

fn write_place(f: &mut fmt::Formatter<'_>, line: usize, column: usize, path: &str) -> fmt::Result {
    write!(f, "line {line}, column {column}")?;
    if !path.is_empty() {
        write!(f, ", at {path}")?;
    }
    f.write_str(": ")
}

pub(crate) fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before = &text[..text.floor_char_boundary(at)];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// "; did you mean ...?" if a known name is similar, and the known names.
pub(crate) fn suggestion<'a>(name: &str, kind: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let mut known: Vec<&str> = known.into_iter().collect();
    known.sort_unstable();
    let meant = match nearest_name(name, known.iter().copied()) {
        Some(other) => format!("; did you mean {other:?}?"),
        None => String::new(),
    };
    let separator = if meant.is_empty() { "; known " } else { " Known " };
    let all = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    format!("{meant}{separator}{kind}: {all}")
}

/// The known name that is most similar to `name`, which differs from it by at most two insertions, deletions or
/// replacements of characters. `None` if no name is that similar.
pub fn nearest_name<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.into_iter().map(|other| (distance(name, other), other)).min();
    near.filter(|(distance, other)| *distance <= EDITS_MAX && *distance < other.chars().count()).map(|(_, other)| other)
}

/// The maximum edit distance of a suggestion.
const EDITS_MAX: usize = 2;

/// The number of characters to insert, delete or replace, ignoring case (Levenshtein distance).
fn distance(one: &str, other: &str) -> usize {
    let (one, other) = (one.to_lowercase(), other.to_lowercase());
    let mut row: Vec<usize> = (0..=other.chars().count()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.chars().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[row.len() - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_columns_count_characters_from_one() {
        let text = "ab\n\u{e4}\u{f6}x\n";
        assert_eq!(line_and_column(text, 0), (1, 1));
        assert_eq!(line_and_column(text, 3), (2, 1));
        assert_eq!(line_and_column(text, text.find('x').unwrap()), (2, 3));
        assert_eq!(line_and_column(text, text.len()), (3, 1));
        assert_eq!(line_and_column(text, text.len() + 9), (3, 1));
    }

    #[test]
    fn only_similar_names_are_suggested() {
        let suggested = |name| suggestion(name, "pools", ["main", "gutter"]);
        assert_eq!(suggested("Mian"), "; did you mean \"main\"? Known pools: gutter, main");
        assert_eq!(suggested("guter"), "; did you mean \"gutter\"? Known pools: gutter, main");
        assert_eq!(suggested("other"), "; known pools: gutter, main");
        assert_eq!(suggestion("x", "pools", []), "; known pools: none");
        assert_eq!(suggestion("b", "pools", ["a"]), "; known pools: a", "a name of one letter is not suggested");
    }
}
