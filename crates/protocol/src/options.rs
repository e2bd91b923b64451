//! The options of a server: their names, defaults and ranges.

/// An option of redis.conf, CONFIG SET and `loadmodule`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The name without the prefix `dlock.`, which the server adds.
    pub name: &'static str,
    pub kind: Kind,
}

/// The type of a value. The module reads and sets values of every kind as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Number {
        default: i64,
        least: i64,
        greatest: i64,
    },
    /// A boolean: 1 for yes, 0 for no.
    YesNo {
        default: bool,
    },
}

/// The longest lease in ms. Default: a day.
pub const MAX_TTL: Spec = number("max-ttl", 86_400_000, 1, u32::MAX as i64);
/// The length of the grace period in ms. 0 switches it off.
pub const RESTART_GRACE: Spec = number("restart-grace", 0, 0, u32::MAX as i64);
/// Whether the server keeps a fence mark: a number on the disk, some seconds ahead of the fences. After a
/// restart, the fences continue above this number.
pub const FENCE_MARK: Spec = Spec { name: "fence-mark", kind: Kind::YesNo { default: true } };
/// The maximum number of clients that wait (BLOCK) on the server.
pub const MAX_WAITERS: Spec = number("max-waiters", 10_000, 0, 1_000_000);
/// The maximum number of clients that wait for one key. The default is a tenth of the default of
/// `max-waiters`, so that the waiters of one key do not use up `max-waiters`.
pub const MAX_WAITERS_PER_KEY: Spec = number("max-waiters-per-key", 1_000, 0, 1_000_000);
/// The maximum number of QUEUE positions on the server.
pub const MAX_QUEUED: Spec = number("max-queued", 100_000, 0, 1_000_000);
/// The maximum number of sharers or permit holders of one key.
pub const MAX_HOLDERS_PER_KEY: Spec = number("max-holders-per-key", 100_000, 1, 1_000_000);

/// Whether a string counts as a lock that a client holds by `SET key token NX PX`.
pub const HONOUR_STRINGS: Spec = Spec { name: "honour-strings", kind: Kind::YesNo { default: false } };
/// The maximum number of entries in DLOCK.LOG.
pub const LOG_MAX_LEN: Spec = number("log-max-len", 128, 0, 10_000);
/// DLOCK.LOG records a hold or a wait that took at least this number of ms. -1 records none.
pub const LOG_SLOWER_THAN: Spec = number("log-slower-than", 10_000, -1, u32::MAX as i64);

/// All options, in the order of `docs/options.md`.
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
    /// Returns whether `name` is the name of this option, with or without `dlock.`. Ignores case.
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

    /// Parses a value in the notation of redis.conf. The error describes the allowed values.
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
