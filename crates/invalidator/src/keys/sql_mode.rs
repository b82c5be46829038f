//! The `sql_mode` of a session, as far as it decides where a literal in a statement ends.

/// How quotes are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SqlMode {
    /// `ANSI_QUOTES`: `"..."` is an identifier, and no string.
    pub has_ansi_quotes: bool,
    /// Whether `\` escapes the next byte of a string. Off under `NO_BACKSLASH_ESCAPES`.
    pub has_backslash_escapes: bool,
}

/// The bits of the two in a server's number for the mode, the same for MariaDB and MySQL.
const ANSI_QUOTES: u64 = 1 << 2;
const NO_BACKSLASH_ESCAPES: u64 = 1 << 20;

impl SqlMode {
    /// The default of MariaDB and MySQL.
    pub const DEFAULT: SqlMode = SqlMode { has_ansi_quotes: false, has_backslash_escapes: true };

    /// All modes, the default first.
    pub const ALL: [SqlMode; 4] = [
        SqlMode::DEFAULT,
        SqlMode { has_ansi_quotes: true, has_backslash_escapes: true },
        SqlMode { has_ansi_quotes: false, has_backslash_escapes: false },
        SqlMode { has_ansi_quotes: true, has_backslash_escapes: false },
    ];

    /// The mode with a server's number, as its log has it.
    pub fn from_bits(bits: u64) -> SqlMode {
        SqlMode { has_ansi_quotes: bits & ANSI_QUOTES != 0, has_backslash_escapes: bits & NO_BACKSLASH_ESCAPES == 0 }
    }

    /// Whether `\` escapes the next byte of what begins with this quote.
    pub fn has_escapes_in(self, quote: u8) -> bool {
        self.has_backslash_escapes && (quote == b'\'' || quote == b'"' && !self.has_ansi_quotes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backslash_escapes_in_strings_alone() {
        let escapes = |bits| [b'\'', b'"', b'`'].map(|quote| SqlMode::from_bits(bits).has_escapes_in(quote));
        assert_eq!(SqlMode::from_bits(0), SqlMode::DEFAULT);
        assert_eq!(escapes(0), [true, true, false]);
        assert_eq!(escapes(ANSI_QUOTES), [true, false, false]);
        assert_eq!(escapes(NO_BACKSLASH_ESCAPES), [false, false, false]);
        assert_eq!(escapes(!0), [false, false, false]);
    }
}
