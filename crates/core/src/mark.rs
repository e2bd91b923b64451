//! The bytes of a fence mark at rest: one line of text, so that an operator can read it.
//!
//! ```text
//!   dlock-fence-mark 1 1795179170661712 7212020084079279
//!   |                | |                what is left from the mark to 2^53 - 1: tells a damaged number
//!   |                | the mark
//!   |                version
//!   name
//! ```

use std::fmt;

use dlock_protocol::Fence;

const NAME: &str = "dlock-fence-mark";
const VERSION: &str = "1";

/// Longest mark in bytes, of any version.
pub const MAX_LEN: usize = 128;

/// The reason why a file contains no mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoMark {
    /// A version that this module does not know.
    Newer,
    Damaged,
}

impl fmt::Display for NoMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoMark::Newer => "a newer module wrote it, load that one or remove the file",
            NoMark::Damaged => "it is damaged",
        })
    }
}

pub fn write(mark: u64) -> String {
    format!("{NAME} {VERSION} {mark} {}\n", Fence::MAX.saturating_sub(mark))
}

pub fn read(bytes: &[u8]) -> Result<u64, NoMark> {
    let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= MAX_LEN).ok_or(NoMark::Damaged)?;
    let line = text.strip_suffix('\n').ok_or(NoMark::Damaged)?;
    let mut words = line.split(' ');
    if words.next() != Some(NAME) {
        return Err(NoMark::Damaged);
    }
    if words.next() != Some(VERSION) {
        return Err(NoMark::Newer);
    }
    let mut number = || words.next()?.parse::<u64>().ok();
    match (number(), number(), words.next()) {
        (Some(mark), Some(rest), None) if mark.checked_add(rest) == Some(Fence::MAX) => Ok(mark),
        _ => Err(NoMark::Damaged),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_mark_stay_what_they_are() {
        let bytes = "dlock-fence-mark 1 1795179170661712 7212020084079279\n";
        assert_eq!(write(1_795_179_170_661_712), bytes);
        assert_eq!(read(bytes.as_bytes()), Ok(1_795_179_170_661_712));
        for mark in [0, 1, Fence::MAX] {
            assert_eq!(read(write(mark).as_bytes()), Ok(mark));
        }
    }

    #[test]
    fn no_byte_of_it_can_change_unseen() {
        let bytes = write(1_795_179_170_661_712).into_bytes();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut wrong = bytes.clone();
                wrong[at] ^= 1 << bit;
                assert!(read(&wrong).is_err(), "{}", wrong.escape_ascii());
            }
            assert!(read(&bytes[..at]).is_err());
        }
    }

    #[test]
    fn bytes_that_are_no_mark_are_refused() {
        let longer =
            [b"dlock-fence-mark 1 1795179170661712 7212020084079279".to_vec(), vec![b' '; 100]].concat();
        for wrong in [
            &b""[..],
            b"\n",
            b"1795179170661712\n",
            b"dlock-fence-mark 1 1795179170661712\n",
            b"dlock-fence-mark 1 1795179170661712 7212020084079279 5\n",
            b"dlock-fence-mark 1 -5 9007199254740996\n",
            // 2^53, and one so great that the sum overflows
            b"dlock-fence-mark 1 9007199254740992 0\n",
            b"dlock-fence-mark 1 18446744073709551615 9007199254740992\n",
            b"\xff\xfe\n",
            &longer,
        ] {
            assert_eq!(read(wrong), Err(NoMark::Damaged), "{}", wrong.escape_ascii());
        }
        assert_eq!(read(b"dlock-fence-mark 2 anything\n"), Err(NoMark::Newer));
    }
}
