//! The options, in one table: redis.conf, arguments where the module is loaded, CONFIG SET.

use dlock_core::{Limits, Ttl};

use crate::ffi::setup::{Kind, Setting};
use crate::state::with;

/// The options as they are now.
pub struct Config {
    pub max_ttl: Ttl,
    pub limits: Limits,
    /// How many may share a key, or hold permits of it.
    pub max_holders: u32,
    /// ms without new grants after holds may have been forgotten; 0: off.
    pub restart_grace: u32,
    /// Whether a fence mark is kept on the disk.
    pub fence_mark: bool,
}

impl Default for Config {
    fn default() -> Self {
        let limits = Limits { on_the_server: 10_000, on_a_key: 1_000 };
        let max_ttl = Ttl::from_millis(MAX_TTL as u64).unwrap_or(Ttl::MAX);
        Config { max_ttl, limits, max_holders: MAX_HOLDERS as u32, restart_grace: 0, fence_mark: true }
    }
}

impl Config {
    /// The longest lease: a longer one than the grace might outlast it, forgotten.
    pub fn longest_lease(&self) -> Ttl {
        Ttl::from_millis(self.restart_grace.into()).map_or(self.max_ttl, |grace| grace.min(self.max_ttl))
    }

    /// A fence from outside may lie so many ms ahead of the clock: less than the grace, so that a number that was
    /// raised so far and forgotten has been passed by the clock when the next one is issued.
    pub fn skew_bound(&self) -> u64 {
        match self.restart_grace {
            0 => 10_000,
            ms => u64::from(ms / 2),
        }
    }
}

const MAX_TTL: i64 = 86_400_000;
const MAX_HOLDERS: i64 = 100_000;

/// Every option.
pub static SETTINGS: [Setting; 6] = [
    Setting {
        name: "max-ttl",
        kind: Kind::Number { default: MAX_TTL, least: 1, greatest: u32::MAX as i64 },
        get: || with(|s| s.config.max_ttl.millis() as i64),
        set: |ms| with(|s| s.config.max_ttl = Ttl::from_millis(ms as u64).unwrap_or(Ttl::MAX)),
    },
    Setting {
        name: "restart-grace",
        kind: Kind::Number { default: 0, least: 0, greatest: u32::MAX as i64 },
        get: || with(|s| s.config.restart_grace.into()),
        set: |ms| with(|s| s.config.restart_grace = u32::try_from(ms).unwrap_or(u32::MAX)),
    },
    Setting {
        name: "fence-mark",
        kind: Kind::YesNo { default: true },
        get: || with(|s| s.config.fence_mark.into()),
        set: |yes| with(|s| s.config.fence_mark = yes != 0),
    },
    Setting {
        name: "max-waiters",
        kind: Kind::Number { default: 10_000, least: 0, greatest: 1_000_000 },
        get: || with(|s| s.config.limits.on_the_server as i64),
        set: |n| with(|s| s.config.limits.on_the_server = n as usize),
    },
    Setting {
        name: "max-waiters-per-key",
        // A tenth of those on the server: the waiters on one key do not shut out everybody else's.
        kind: Kind::Number { default: 1_000, least: 0, greatest: 1_000_000 },
        get: || with(|s| s.config.limits.on_a_key as i64),
        set: |n| with(|s| s.config.limits.on_a_key = n as usize),
    },
    Setting {
        name: "max-holders-per-key",
        kind: Kind::Number { default: MAX_HOLDERS, least: 1, greatest: 1_000_000 },
        get: || with(|s| s.config.max_holders.into()),
        set: |n| with(|s| s.config.max_holders = u32::try_from(n).unwrap_or(u32::MAX)),
    },
];

/// Defaults from `loadmodule libdlock.so name value ..`, the name with or without `dlock.`; redis.conf overrides them.
/// The error says what is wrong.
pub fn defaults(arguments: &[&[u8]]) -> Result<[i64; SETTINGS.len()], String> {
    let mut values = SETTINGS.each_ref().map(|setting| setting.kind.default());
    for pair in arguments.chunks(2) {
        let name = String::from_utf8_lossy(pair[0]).to_lowercase();
        let at =
            SETTINGS.iter().position(|setting| setting.name == name.strip_prefix("dlock.").unwrap_or(&name));
        let at = at.ok_or_else(|| format!("unknown module argument '{name}'; options are {}", names()))?;
        let value = pair.get(1).and_then(|value| std::str::from_utf8(value).ok());
        values[at] = value
            .and_then(|value| read(&SETTINGS[at].kind, value))
            .ok_or_else(|| format!("module argument '{name}' needs {}", wanted(&SETTINGS[at].kind)))?;
    }
    Ok(values)
}

/// As redis.conf says it.
fn read(kind: &Kind, value: &str) -> Option<i64> {
    match kind {
        Kind::Number { least, greatest, .. } => {
            value.parse().ok().filter(|value| (least..=greatest).contains(&value))
        }
        Kind::YesNo { .. } => match value.to_lowercase().as_str() {
            "yes" => Some(1),
            "no" => Some(0),
            _ => None,
        },
    }
}

fn wanted(kind: &Kind) -> String {
    match kind {
        Kind::Number { least, greatest, .. } => format!("a number from {least} to {greatest}"),
        Kind::YesNo { .. } => "yes or no".into(),
    }
}

fn names() -> String {
    SETTINGS.each_ref().map(|setting| setting.name).join(", ")
}
