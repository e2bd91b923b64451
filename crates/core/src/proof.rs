//! The proof that a server has forgotten no hold: when it may stand, and its bytes at rest, one line of text.
//!
//! A start without a grace period needs more than today's options: they can have been others when the server
//! last ran. So a server that keeps every grant in its append only file says so on the disk, and takes it
//! back there before the first grant of which it would not be true. What it says is: every hold that I have
//! granted, and that may still last, is in this append only file, and nobody else can have granted any in my
//! place.
//!
//! ```text
//!   dlock-proof 1 5242881 1795179170661712000 5242890 1795179160000000000 appendonly.aof d34bb57e204032ca
//!   |           | |       |                   |       |                   |              |
//!   |           | |       |                   |       |                   |   FNV-1a of all before it
//!   |           | |       |                   |       |                   its `appendfilename`, escaped
//!   |           | |       |                   the folder of the append only file: inode, made at (ns)
//!   |           | this file itself: inode, made at (ns since 1970)
//!   |           version
//!   name
//! ```
//!
//! A copy has another inode or was made at another time, and so proves nothing, and a proof says nothing of
//! an append only file in another folder. What cannot be told is a whole disk that is put back as it was.

use std::fmt;

const NAME: &str = "dlock-proof";
const VERSION: &str = "1";

/// No proof is longer, of this version or another.
pub const MAX_LEN: usize = 1024;

/// Which file this is: a number that may be given again, and when it was made, which is then another time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    pub inode: u64,
    /// ns since 1970
    pub made: u64,
}

/// From when a proof is made to when it stands, at most, ns. It is not touched any more then: one that was
/// has been written over in its place, by a backup that was put back.
const MADE_WITHIN: u64 = 10_000_000_000;

/// A server that runs writes its fence mark each 5 s; a slow disk may take as long again. In ns.
const ALIVE_WITHIN: u64 = 10_000_000_000;

impl FileId {
    /// Whether this file, when it was `changed` last (ns since 1970, which no program can set), was still
    /// being made.
    pub fn is_untouched(self, changed: u64) -> bool {
        changed.abs_diff(self.made) <= MADE_WITHIN
    }
}

/// Whether an append only file that was `changed` last then can have been written by a server whose last sign
/// of life is of then, and not by who repaired or replaced it afterwards. ns since 1970.
pub fn is_of_that_life(changed: u64, sign_of_life: u64) -> bool {
    changed <= sign_of_life.saturating_add(ALIVE_WITHIN)
}

/// What a proof names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The file it stands in.
    pub own: FileId,
    /// The folder of the append only file.
    pub folder: FileId,
    /// The name of the append only file there.
    pub name: String,
}

/// Why a file holds no proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoProof {
    /// It is of a version that this module does not know.
    Newer,
    Damaged,
}

impl fmt::Display for NoProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoProof::Newer => "a newer module wrote it",
            NoProof::Damaged => "it is damaged",
        })
    }
}

impl Proof {
    pub fn write(&self) -> String {
        let Proof { own, folder, name } = self;
        let numbers = format!("{} {} {} {}", own.inode, own.made, folder.inode, folder.made);
        let text = format!("{NAME} {VERSION} {numbers} {}", escaped(name));
        format!("{text} {:016x}\n", fnv(text.as_bytes()))
    }

    pub fn read(bytes: &[u8]) -> Result<Proof, NoProof> {
        let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= MAX_LEN);
        let line = text.and_then(|text| text.strip_suffix('\n')).ok_or(NoProof::Damaged)?;
        let mut words = line.split(' ');
        if words.next() != Some(NAME) {
            return Err(NoProof::Damaged);
        }
        if words.next() != Some(VERSION) {
            return Err(NoProof::Newer);
        }
        let mut number = || words.next()?.parse::<u64>().ok();
        let mut id = || Some(FileId { inode: number()?, made: number()? });
        let proof = id().zip(id()).and_then(|(own, folder)| {
            let name = unescaped(words.next()?)?;
            Some(Proof { own, folder, name })
        });
        // One proof has one form: whatever else the words say is no proof.
        proof.filter(|proof| proof.write() == text.unwrap_or_default()).ok_or(NoProof::Damaged)
    }
}

/// Without blanks or line ends: other bytes than letters, digits and `.-_` as % and two digits.
fn escaped(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    name.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02x}") }).collect()
}

fn unescaped(word: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = word.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%' {
            let (digits, after) = rest.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// What is known of a server at a moment, as far as a proof depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// `dlock.restart-grace` is not 0: without it nothing was ever waited for.
    pub has_grace: bool,
    pub is_master: bool,
    /// `dlock.fence-mark`: the time it was written last tells a later change of the append only file.
    pub has_mark: bool,
    /// A replica has followed it in this run: that one may have been promoted and grant in its place.
    pub had_replicas: bool,
    /// Whatever may have been forgotten is over: a grace period has ended, or a proof stood at the start and
    /// all was loaded; and nothing has been forgotten since.
    pub knows_all: bool,
    /// `appendonly yes`, and it is on.
    pub has_file: bool,
    /// `appendfsync always` and `no-appendfsync-on-rewrite no`.
    pub syncs_each_grant: bool,
    /// It works in the folder it was started in, where the next start will look.
    pub at_home: bool,
    /// The file holds what was granted before it was switched on, and all that was written is on its way to
    /// the disk.
    pub is_written: bool,
}

/// Why no proof may stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    NoGrace,
    Replica,
    NoMark,
    Replicas,
    NoFile,
    NotSynced,
    Moved,
    Unknown,
    /// Only for a moment: it voids no proof that stands.
    NotWritten,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Lack::NoGrace => "dlock.restart-grace is off",
            Lack::Replica => "this server is a replica",
            Lack::NoMark => "dlock.fence-mark is off",
            Lack::Replicas => "a replica has followed this server and could be promoted",
            Lack::NoFile => "there is no append only file",
            Lack::NotSynced => "appendfsync is not always, or no-appendfsync-on-rewrite is not no",
            Lack::Moved => "dir has changed since the start",
            Lack::Unknown => "no grace period has ended since holds may have been forgotten",
            Lack::NotWritten => "the append only file is being rewritten",
        })
    }
}

/// What is to be done about the proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Keep,
    Establish,
    /// At once, and before anything else is granted.
    Withdraw,
}

impl Facts {
    pub fn lack(self) -> Option<Lack> {
        [
            (self.has_grace, Lack::NoGrace),
            (self.is_master, Lack::Replica),
            (self.has_mark, Lack::NoMark),
            (!self.had_replicas, Lack::Replicas),
            (self.has_file, Lack::NoFile),
            (self.syncs_each_grant, Lack::NotSynced),
            (self.at_home, Lack::Moved),
            (self.knows_all, Lack::Unknown),
            (self.is_written, Lack::NotWritten),
        ]
        .into_iter()
        .find_map(|(holds, lack)| (!holds).then_some(lack))
    }

    /// `stands`: a proof is on the disk, or may be.
    pub fn judge(self, stands: bool) -> Verdict {
        match (stands, self.lack()) {
            (false, None) => Verdict::Establish,
            (true, Some(lack)) if lack != Lack::NotWritten => Verdict::Withdraw,
            _ => Verdict::Keep,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: &str = "dlock-proof 1 5242881 1795179170661712000 5242890 1795179160000000000 appendonly.aof \
                         d34bb57e204032ca\n";

    fn proof() -> Proof {
        let own = FileId { inode: 5_242_881, made: 1_795_179_170_661_712_000 };
        let folder = FileId { inode: 5_242_890, made: 1_795_179_160_000_000_000 };
        Proof { own, folder, name: "appendonly.aof".into() }
    }

    #[test]
    fn the_bytes_of_a_proof_stay_what_they_are() {
        assert_eq!(proof().write(), BYTES);
        assert_eq!(Proof::read(BYTES.as_bytes()), Ok(proof()));
        for name in ["", "a b", "%", "50%41", "Säge\n", &"x".repeat(250)] {
            let proof = Proof { name: name.into(), ..proof() };
            assert_eq!(Proof::read(proof.write().as_bytes()), Ok(proof.clone()), "{proof:?}");
            assert!(proof.write().len() <= MAX_LEN);
        }
    }

    #[test]
    fn no_byte_of_it_can_change_unseen() {
        for at in 0..BYTES.len() {
            for bit in 0..8 {
                let mut wrong = BYTES.as_bytes().to_vec();
                wrong[at] ^= 1 << bit;
                assert!(Proof::read(&wrong).is_err(), "{}", wrong.escape_ascii());
            }
            assert!(Proof::read(&BYTES.as_bytes()[..at]).is_err());
        }
        let longer = [BYTES.as_bytes(), b"\n"].concat();
        for wrong in [&b""[..], b"\n", b"\xff\n", b"dlock-proof 1\n", &longer, &[b'x'; 2000]] {
            assert_eq!(Proof::read(wrong), Err(NoProof::Damaged), "{}", wrong.escape_ascii());
        }
        assert_eq!(Proof::read(b"dlock-proof 2 anything\n"), Err(NoProof::Newer));
    }

    #[test]
    fn what_was_written_over_in_its_place_or_repaired_later_is_told_by_its_times() {
        let s = 1_000_000_000;
        let own = FileId { inode: 1, made: 100 * s };
        for (changed, untouched) in [(100, true), (99, true), (110, true), (111, false), (4_000, false)] {
            assert_eq!(own.is_untouched(changed * s), untouched, "{changed}");
        }
        for (changed, lived) in [(50, true), (100, true), (110, true), (111, false)] {
            assert_eq!(is_of_that_life(changed * s, 100 * s), lived, "{changed}");
        }
    }

    const ALL: Facts = Facts {
        has_grace: true,
        is_master: true,
        has_mark: true,
        had_replicas: false,
        knows_all: true,
        has_file: true,
        syncs_each_grant: true,
        at_home: true,
        is_written: true,
    };

    #[test]
    fn it_is_established_only_where_all_holds_and_withdrawn_where_anything_else_fails() {
        assert_eq!((ALL.judge(false), ALL.judge(true)), (Verdict::Establish, Verdict::Keep));
        for (facts, lack) in [
            (Facts { has_grace: false, ..ALL }, Lack::NoGrace),
            (Facts { is_master: false, ..ALL }, Lack::Replica),
            (Facts { has_mark: false, ..ALL }, Lack::NoMark),
            (Facts { had_replicas: true, ..ALL }, Lack::Replicas),
            (Facts { has_file: false, ..ALL }, Lack::NoFile),
            (Facts { syncs_each_grant: false, ..ALL }, Lack::NotSynced),
            (Facts { at_home: false, ..ALL }, Lack::Moved),
            (Facts { knows_all: false, ..ALL }, Lack::Unknown),
        ] {
            assert_eq!(facts.lack(), Some(lack));
            assert_eq!(
                (facts.judge(false), facts.judge(true)),
                (Verdict::Keep, Verdict::Withdraw),
                "{lack:?}"
            );
            // A rewrite hides nothing else.
            let rewriting = Facts { is_written: false, ..facts };
            assert_eq!(rewriting.judge(true), Verdict::Withdraw, "{lack:?}");
        }
    }

    #[test]
    fn a_rewrite_puts_it_off_and_voids_nothing() {
        let rewriting = Facts { is_written: false, ..ALL };
        assert_eq!(rewriting.lack(), Some(Lack::NotWritten));
        assert_eq!((rewriting.judge(false), rewriting.judge(true)), (Verdict::Keep, Verdict::Keep));
    }
}
