//! The end of a `VALUE` line: the numbers behind the key. Serves the replies of servers and routers to gets.

/// The numbers at the end of a line, each with a space in front, and the line end. Written backwards, in the order in
/// which digits are computed, so that one copy moves them all to the reply.
#[derive(Debug)]
pub struct LineTail {
    bytes: [u8; TAIL_BYTES],
    from: usize,
}

/// Three numbers of up to 20 digits with their spaces, and the line end.
const TAIL_BYTES: usize = 3 * 21 + 2;

/// `00` to `99`.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    pairs
};

impl LineTail {
    /// The end of a line without numbers.
    #[inline]
    pub fn new() -> LineTail {
        let mut bytes = [0; TAIL_BYTES];
        bytes[TAIL_BYTES - 2..].copy_from_slice(b"\r\n");
        LineTail { bytes, from: TAIL_BYTES - 2 }
    }

    /// Puts a number in front of the present ones, two digits at a time.
    ///
    /// # Panics
    /// If the numbers, each with its space, take more than three of 20 digits would.
    #[inline(always)]
    pub fn put(&mut self, mut number: u64) {
        while number >= 100 {
            self.push(&PAIRS[(number % 100) as usize]);
            number /= 100;
        }
        match number {
            0..10 => self.push(&[b' ', b'0' + number as u8]),
            _ => {
                self.push(&PAIRS[number as usize]);
                self.push(b" ");
            }
        }
    }

    #[inline]
    fn push<const COUNT: usize>(&mut self, bytes: &[u8; COUNT]) {
        self.from -= COUNT;
        self.bytes[self.from..][..COUNT].copy_from_slice(bytes);
    }

    /// The numbers in the order of the line, and its end.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.from..]
    }
}

impl Default for LineTail {
    fn default() -> LineTail {
        LineTail::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_length_are_written_in_full() {
        let powers = (0..20).map(|exponent| 10u64.pow(exponent));
        for number in powers.flat_map(|power| [power - 1, power, power + 1]).chain([42, 105, u64::MAX]) {
            let mut tail = LineTail::new();
            [number, 7, number].into_iter().for_each(|number| tail.put(number));
            assert_eq!(String::from_utf8_lossy(tail.bytes()), format!(" {number} 7 {number}\r\n"));
        }
    }
}
