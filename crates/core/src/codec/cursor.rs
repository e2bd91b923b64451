//! Reads the parts of an encoded lock one after another.

use super::layout::Malformed;

/// The bytes that are not read yet.
pub(super) struct Cursor<'a>(pub &'a [u8]);

impl<'a> Cursor<'a> {
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(*taken)
    }

    /// Bytes after their length, which takes one byte.
    pub fn text(&mut self) -> Result<&'a [u8], Malformed> {
        let [len] = self.array()?;
        self.take(len.into())
    }

    /// A number of six bytes.
    pub fn six(&mut self) -> Result<u64, Malformed> {
        let [a, b, c, d, e, f] = self.array()?;
        Ok(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]))
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.number()?).map_err(|_| Malformed::Value("number"))
    }

    /// A number that is stored as its signed difference from `from`.
    pub fn signed(&mut self, from: u64) -> Result<u64, Malformed> {
        let number = self.number()?;
        Ok(from.wrapping_add_signed((number >> 1) as i64 ^ -((number & 1) as i64)))
    }

    #[inline]
    pub fn number(&mut self) -> Result<u64, Malformed> {
        if let [byte @ ..=0x7f, rest @ ..] = self.0 {
            self.0 = rest;
            return Ok((*byte).into());
        }
        self.long_number()
    }

    /// Reads eight bytes at a time, if there are as many: most of an encoded lock is numbers.
    fn long_number(&mut self) -> Result<u64, Malformed> {
        let Some(word) = self.0.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)) else {
            return self.any_number();
        };
        let lasts = !word & 0x8080_8080_8080_8080;
        if lasts == 0 {
            return self.any_number();
        }
        // The first byte without a top bit is the last one of the number. The bytes after it are masked out.
        let len = lasts.trailing_zeros() / 8 + 1;
        let bits = word & (u64::MAX >> (u64::BITS - len * 8)) & 0x7f7f_7f7f_7f7f_7f7f;
        if bits >> ((len - 1) * 8) == 0 && len > 1 {
            return Err(Malformed::Value("number"));
        }
        // Joins groups of 7 bits into 14, these into 28, and these into one number.
        let bits = bits & 0x007f_007f_007f_007f | (bits & 0x7f00_7f00_7f00_7f00) >> 1;
        let bits = bits & 0x0000_3fff_0000_3fff | (bits & 0x3fff_0000_3fff_0000) >> 2;
        let bits = bits & 0x0000_0000_0fff_ffff | (bits & 0x0fff_ffff_0000_0000) >> 4;
        self.0 = &self.0[len as usize..];
        Ok(bits)
    }

    fn any_number(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let [byte] = self.array()?;
            let bits = u64::from(byte & 0x7f);
            let (is_last, is_lost) = (byte <= 0x7f, bits << shift >> shift != bits);
            if is_lost || (is_last && byte == 0 && shift > 0) {
                break;
            }
            number |= bits << shift;
            if is_last {
                return Ok(number);
            }
        }
        Err(Malformed::Value("number"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_read_the_same_eight_bytes_at_a_time(
            first in prop::collection::vec(any::<u8>().prop_map(|byte| byte | 0x80), 0..11),
            rest in prop::collection::vec(prop_oneof![Just(0), any::<u8>()], 0..10),
        ) {
            let bytes = [first, rest].concat();
            let read = |at_once: bool| {
                let mut cursor = Cursor(&bytes);
                let number = if at_once { cursor.number() } else { cursor.any_number() };
                number.map(|number| (number, cursor.0.len()))
            };
            prop_assert_eq!(read(true), read(false));
        }
    }
}
