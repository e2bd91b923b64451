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

impl Proof {
    pub fn write(&self) -> String {
        let Proof { own, folder, name } = self;
        let numbers = format!("{} {} {} {}", own.inode, own.made, folder.inode, folder.made);
        let text = format!("dlock-proof 1 {numbers} {}", escaped(name));
        format!("{text} {:016x}\n", fnv(text.as_bytes()))
    }

    /// Whether these bytes are this proof and no other, or why not: it has one form, so nobody has to read
    /// it.
    pub fn is_in(&self, bytes: &[u8]) -> Result<(), &'static str> {
        const COPY: &str = "it is a copy, or was changed";
        const ANOTHER: &str = "it is of another append only file";
        const WHY: [&str; 8] = [
            "it is damaged",
            "a newer module wrote it",
            COPY,
            COPY,
            ANOTHER,
            ANOTHER,
            ANOTHER,
            "it is damaged",
        ];
        let expected = self.write();
        if bytes == expected.as_bytes() {
            return Ok(());
        }
        let mut words =
            expected.as_bytes().split(|byte| *byte == b' ').zip(bytes.split(|byte| *byte == b' '));
        let other = words.position(|(expected, found)| expected != found);
        Err(other.and_then(|word| WHY.get(word)).unwrap_or(&WHY[0]))
    }
}

/// Without blanks or line ends: other bytes than letters, digits and `.-_` as % and two digits.
fn escaped(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    name.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02x}") }).collect()
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// What is known of a server at a moment, as far as a proof depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
}

impl Facts {
    /// Why no proof may stand.
    pub fn lack(self) -> Option<&'static str> {
        [
            (self.has_grace, "dlock.restart-grace is off"),
            (self.is_master, "this server is a replica"),
            (self.has_mark, "dlock.fence-mark is off"),
            (!self.had_replicas, "a replica has followed this server and could be promoted"),
            (self.has_file, "there is no append only file"),
            (
                self.syncs_each_grant,
                "appendfsync is not always, or no-appendfsync-on-rewrite is not no (or CONFIG is renamed, which tells)",
            ),
            (self.at_home, "dir has changed since the start"),
            (self.knows_all, "no grace period has ended since holds may have been forgotten"),
        ]
        .into_iter()
        .find_map(|(holds, lack)| (!holds).then_some(lack))
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
        for name in ["", "a b", "%", "50%41", "Säge\n", &"x".repeat(250)] {
            let proof = Proof { name: name.into(), ..proof() };
            assert_eq!(proof.is_in(proof.write().as_bytes()), Ok(()), "{proof:?}");
            assert!(proof.write().len() <= MAX_LEN);
        }
    }

    #[test]
    fn no_byte_of_it_can_change_unseen() {
        for at in 0..BYTES.len() {
            for bit in 0..8 {
                let mut wrong = BYTES.as_bytes().to_vec();
                wrong[at] ^= 1 << bit;
                assert!(proof().is_in(&wrong).is_err(), "{}", wrong.escape_ascii());
            }
            assert!(proof().is_in(&BYTES.as_bytes()[..at]).is_err());
        }
        assert!(proof().is_in(&[BYTES.as_bytes(), b"\n"].concat()).is_err());
    }

    #[test]
    fn why_it_is_another_is_told() {
        for (from, to, why) in [
            ("proof 1", "proof 2", "a newer module wrote it"),
            ("5242881", "5242882", "it is a copy, or was changed"),
            ("5242890", "5242891", "it is of another append only file"),
            ("only.aof", "only.bof", "it is of another append only file"),
            (BYTES, "", "it is damaged"),
        ] {
            assert_eq!(proof().is_in(BYTES.replace(from, to).as_bytes()), Err(why), "{to}");
        }
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
    };

    #[test]
    fn whatever_is_missing_speaks_against_it_and_only_that() {
        assert_eq!(ALL.lack(), None);
        for (facts, lack) in [
            (Facts { has_grace: false, ..ALL }, "restart-grace"),
            (Facts { is_master: false, ..ALL }, "is a replica"),
            (Facts { has_mark: false, ..ALL }, "fence-mark"),
            (Facts { had_replicas: true, ..ALL }, "has followed"),
            (Facts { has_file: false, ..ALL }, "no append only file"),
            (Facts { syncs_each_grant: false, ..ALL }, "appendfsync"),
            (Facts { at_home: false, ..ALL }, "dir"),
            (Facts { knows_all: false, ..ALL }, "no grace period has ended"),
        ] {
            assert!(facts.lack().is_some_and(|text| text.contains(lack)), "{lack}");
        }
    }
}
