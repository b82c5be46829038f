//! Positions of many commits in little memory.
//!
//! A position of MySQL names every server that has ever written to the log, in some 45 bytes each, and from one commit
//! to the next only one of these parts changes. So a packed position is a difference from an earlier one, which many
//! share:
//!
//! ```text
//! base    3e11fa47-...:1-5,8d4b9a3e-...:1-1700,9f00c1d2-...:1-33
//! packed  |<------------- prefix --------->|  |<--- suffix --->|     and what is between: "23"
//! ```
//!
//! Parts that several servers write in turns may lie far apart. Then the difference is long, and positions are kept as
//! they are.

use crate::Position;
use std::sync::Arc;

/// A difference of this many bytes, and of an eighth of the position, begins a new base.
const DIFFERENCE_BYTES_MIN: usize = 32;

/// A position, as a difference from another one.
#[derive(Clone, Debug)]
pub(crate) struct PackedPosition {
    base: Arc<[u8]>,
    /// How many bytes of the base it begins with.
    prefix: u32,
    /// How many bytes of the base it ends with.
    suffix: u32,
    between: Box<[u8]>,
}

impl PackedPosition {
    /// The position.
    pub fn unpack(&self) -> Position {
        let (prefix, suffix) = (self.prefix as usize, self.suffix as usize);
        let parts = [&self.base[..prefix], &self.between, &self.base[self.base.len() - suffix..]];
        Position(String::from_utf8(parts.concat()).expect("these are the bytes of a text"))
    }
}

/// Packs positions that follow each other.
#[derive(Debug, Default)]
pub(crate) struct PositionPacker {
    base: Arc<[u8]>,
}

impl PositionPacker {
    /// Packs `position`, which is close to the ones before it.
    pub fn pack(&mut self, position: &Position) -> PackedPosition {
        let text = position.0.as_bytes();
        let is_same = |(one, other): &(&u8, &u8)| one == other;
        let prefix = text.iter().zip(&*self.base).take_while(is_same).count();
        let rest = (&text[prefix..], &self.base[prefix..]);
        let suffix = rest.0.iter().rev().zip(rest.1.iter().rev()).take_while(is_same).count();
        let between = &text[prefix..text.len() - suffix];
        if between.len() >= DIFFERENCE_BYTES_MIN.max(text.len() / 8) {
            self.base = text.into();
            let length = u32::try_from(text.len()).expect("a position is shorter than 4 GiB");
            return PackedPosition { base: self.base.clone(), prefix: length, suffix: 0, between: Box::default() };
        }
        // Both are shorter than the text, whose difference would be too long otherwise.
        let short = |length: usize| u32::try_from(length).expect("a position is shorter than 4 GiB");
        PackedPosition {
            base: self.base.clone(),
            prefix: short(prefix),
            suffix: short(suffix),
            between: between.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_unpacked_as_they_were() {
        let mut packer = PositionPacker::default();
        let long = |a: u64, b: u64| {
            let servers = (0..20).map(|server| format!("{server:08x}-71ca-11e1-9e33-c80aa9429562:1-{}", 7 + server));
            format!("000a:1-{a},{},zz:1-{b}", servers.collect::<Vec<_>>().join(","))
        };
        let mut texts = vec![String::new(), "none".into(), "0-1-5".into(), "0-1-5".into(), "0-1-55".into(), "ä".into()];
        texts.extend((1..2_000).map(|number| long(number, 1)));
        texts.extend((1..2_000).map(|number| long(number, number)));
        texts.extend(["ö", "öö", "öä", "aa", "aaa", "aa", "a"].map(String::from));
        let packed: Vec<_> = texts.iter().map(|text| packer.pack(&Position(text.clone()))).collect();
        for (text, packed) in texts.iter().zip(&packed) {
            assert_eq!(packed.unpack().0, *text);
        }
        let bases = packed[6..2_000].windows(2).filter(|pair| !Arc::ptr_eq(&pair[0].base, &pair[1].base)).count();
        assert!(bases <= 1, "{bases} bases");
    }
}
