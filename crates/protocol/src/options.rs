//! The options of a server: their names, defaults and ranges.

/// An option of redis.conf, CONFIG SET and `loadmodule`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Without `dlock.` before it, which the server puts there.
    pub name: &'static str,
    pub kind: Kind,
}

/// Whatever the kind, the module reads and sets the value as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Number {
        default: i64,
        least: i64,
        greatest: i64,
    },
    /// 1 and 0.
    YesNo {
        default: bool,
    },
}

/// The longest lease, in ms: a day.
pub const MAX_TTL: Spec = number("max-ttl", 86_400_000, 1, u32::MAX as i64);
/// The ms without new grants after holds may have been forgotten; 0: off.
pub const RESTART_GRACE: Spec = number("restart-grace", 0, 0, u32::MAX as i64);
/// Whether a fence mark is kept on the disk.
pub const FENCE_MARK: Spec = Spec { name: "fence-mark", kind: Kind::YesNo { default: true } };
/// How many may wait on the server.
pub const MAX_WAITERS: Spec = number("max-waiters", 10_000, 0, 1_000_000);
/// How many may wait for one key. A tenth of those on the server: they do not shut out everybody else's.
pub const MAX_WAITERS_PER_KEY: Spec = number("max-waiters-per-key", 1_000, 0, 1_000_000);
/// How many may have a position of their own in a queue, without a connection.
pub const MAX_QUEUED: Spec = number("max-queued", 100_000, 0, 1_000_000);
/// How many may share a key, or hold permits of it.
pub const MAX_HOLDERS_PER_KEY: Spec = number("max-holders-per-key", 100_000, 1, 1_000_000);

/// Whether a string counts as held by somebody who locks by `SET key token NX PX`.
pub const HONOUR_STRINGS: Spec = Spec { name: "honour-strings", kind: Kind::YesNo { default: false } };
/// Entries of DLOCK.LOG.
pub const LOG_MAX_LEN: Spec = number("log-max-len", 128, 0, 10_000);
/// The ms from which a hold or a wait is long; -1: none is.
pub const LOG_SLOWER_THAN: Spec = number("log-slower-than", 10_000, -1, u32::MAX as i64);

/// All of them, in the order of the manual.
pub const TABLE: [Spec; 10] = [
    MAX_TTL,
    RESTART_GRACE,
    FENCE_MARK,
    MAX_WAITERS,
    MAX_WAITERS_PER_KEY,
    MAX_QUEUED,
    MAX_HOLDERS_PER_KEY,
    HONOUR_STRINGS,
    LOG_MAX_LEN,
    LOG_SLOWER_THAN,
];

const fn number(name: &'static str, default: i64, least: i64, greatest: i64) -> Spec {
    Spec { name, kind: Kind::Number { default, least, greatest } }
}

impl Spec {
    /// Whether `name` names it, with or without `dlock.` and in any case.
    pub fn is(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        name.strip_prefix("dlock.").unwrap_or(&name) == self.name
    }

    pub const fn default(&self) -> i64 {
        match self.kind {
            Kind::Number { default, .. } => default,
            Kind::YesNo { default } => default as i64,
        }
    }

    /// A value as redis.conf spells it. The error says what it must be.
    pub fn read(&self, value: &str) -> Result<i64, String> {
        match self.kind {
            Kind::Number { least, greatest, .. } => {
                let number = value.parse().ok().filter(|number| (least..=greatest).contains(number));
                number.ok_or_else(|| format!("a number from {least} to {greatest}"))
            }
            Kind::YesNo { .. } if value.eq_ignore_ascii_case("yes") => Ok(1),
            Kind::YesNo { .. } if value.eq_ignore_ascii_case("no") => Ok(0),
            Kind::YesNo { .. } => Err("yes or no".into()),
        }
    }
}
