//! Character sets of text columns: a key has the text in UTF-8.

use std::borrow::Cow;

/// A character set whose text can be converted to UTF-8 without a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charset {
    /// utf8mb4, utf8mb3 and ascii.
    Utf8,
    /// What MySQL calls latin1: Windows-1252, in which the five unassigned bytes are control characters.
    Latin1,
    /// utf16 and ucs2.
    Utf16,
    /// utf16le.
    Utf16Le,
    /// utf32.
    Utf32,
}

/// The characters 0x80 to 0x9f of Windows-1252.
const WINDOWS_1252: [char; 32] = [
    '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž', '\u{8f}', '\u{90}', '‘', '’',
    '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9d}', 'ž', 'Ÿ',
];

impl Charset {
    /// All of them.
    pub const ALL: [Charset; 5] = [Charset::Utf8, Charset::Latin1, Charset::Utf16, Charset::Utf16Le, Charset::Utf32];

    /// The character set that information_schema names; `None` if it is not supported.
    pub fn from_name(name: &str) -> Option<Charset> {
        Some(match name {
            "utf8mb4" | "utf8mb3" | "utf8" | "ascii" => Charset::Utf8,
            "latin1" => Charset::Latin1,
            "utf16" | "ucs2" => Charset::Utf16,
            "utf16le" => Charset::Utf16Le,
            "utf32" => Charset::Utf32,
            _ => return None,
        })
    }

    /// `bytes` as text; `None` if they are no text of this character set.
    pub fn decode<'a>(self, bytes: &'a [u8]) -> Option<Cow<'a, str>> {
        let utf16 = |unit: fn([u8; 2]) -> u16| {
            let (units, rest) = bytes.as_chunks::<2>();
            let units: Vec<u16> = units.iter().map(|bytes| unit(*bytes)).collect();
            String::from_utf16(&units).ok().filter(|_| rest.is_empty()).map(Cow::Owned)
        };
        match self {
            Charset::Utf8 => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
            Charset::Latin1 => Some(match bytes.is_ascii() {
                true => String::from_utf8_lossy(bytes),
                false => bytes.iter().map(|&byte| latin1_char(byte)).collect::<String>().into(),
            }),
            Charset::Utf16 => utf16(u16::from_be_bytes),
            Charset::Utf16Le => utf16(u16::from_le_bytes),
            Charset::Utf32 => {
                let (units, rest) = bytes.as_chunks::<4>();
                let text: Option<String> = units.iter().map(|unit| char::from_u32(u32::from_be_bytes(*unit))).collect();
                text.filter(|_| rest.is_empty()).map(Cow::Owned)
            }
        }
    }
}

fn latin1_char(byte: u8) -> char {
    match byte {
        0x80..=0x9f => WINDOWS_1252[usize::from(byte - 0x80)],
        _ => char::from(byte),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_becomes_utf8() {
        for (name, bytes, expected) in [
            ("utf8mb4", "Zoë 🦀".as_bytes(), Some("Zoë 🦀")),
            ("ascii", b"Zoe", Some("Zoe")),
            ("utf8mb3", b"\xff", None),
            ("latin1", b"Zo\xeb \x80", Some("Zoë €")),
            ("latin1", b"Zoe", Some("Zoe")),
            ("utf16", b"\xd8\x3e\xdd\x80", Some("🦀")),
            ("ucs2", b"\x00Z", Some("Z")),
            ("utf16", b"\xd8\x3e", None),
            ("utf16le", b"Z\x00", Some("Z")),
            ("utf16le", b"Z", None),
            ("utf32", b"\x00\x01\xf9\x80", Some("🦀")),
            ("utf32", b"\x00\x11\x00\x00", None),
        ] {
            let charset = Charset::from_name(name).expect(name);
            assert_eq!(charset.decode(bytes).as_deref(), expected, "{name}");
        }
        assert_eq!(Charset::from_name("gbk"), None);
    }
}
