//! Reads the fields of packets and events from a slice, never past its end.
//!
//! It parses everything that a database server sends. Where bytes are missing, reads return [`Malformed`]; nothing here
//! can panic.

/// The server sent a malformed packet. Carries what was being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

/// The rest of a packet or an event.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    rest: &'a [u8],
    reading: &'static str,
}

impl<'a> Cursor<'a> {
    /// Reads from `bytes`; `reading` names the thing in errors.
    pub fn new(bytes: &'a [u8], reading: &'static str) -> Self {
        Cursor { rest: bytes, reading }
    }

    /// The unread bytes.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next `count` bytes.
    pub fn read_slice(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Malformed(self.reading))?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(Malformed(self.reading))?;
        self.rest = rest;
        Ok(*taken)
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    /// Two bytes, little-endian.
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Four bytes, little-endian.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Eight bytes, little-endian.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// An integer of `bytes` bytes (at most 8), little-endian.
    pub fn uint(&mut self, bytes: usize) -> Result<u64, Malformed> {
        let taken = self.read_slice(bytes.min(8))?;
        Ok(taken.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    /// An integer of `bytes` bytes (at most 8), big-endian, as in the header of MariaDB's compressed events.
    pub fn uint_big_endian(&mut self, bytes: usize) -> Result<u64, Malformed> {
        let taken = self.read_slice(bytes.min(8))?;
        Ok(taken.iter().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    /// The protocol's length-encoded integer.
    pub fn length(&mut self) -> Result<usize, Malformed> {
        let value = match self.u8()? {
            small @ 0..=0xfa => u64::from(small),
            0xfc => self.uint(2)?,
            0xfd => self.uint(3)?,
            0xfe => self.uint(8)?,
            _ => return Err(Malformed(self.reading)),
        };
        usize::try_from(value).map_err(|_| Malformed(self.reading))
    }

    /// Bytes after their length-encoded length.
    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.length()?;
        self.read_slice(length)
    }

    /// Bytes up to a NUL, which is skipped.
    pub fn until_nul(&mut self) -> Result<&'a [u8], Malformed> {
        let end = memchr::memchr(0, self.rest).ok_or(Malformed(self.reading))?;
        let taken = self.read_slice(end)?;
        self.read_slice(1)?;
        Ok(taken)
    }
}
