//! The options, in one table: redis.conf, arguments where the module is loaded, CONFIG SET.

use dlock_core::{Limits, Ttl};

use crate::ffi::setup::Number;
use crate::state::with;

/// The options as they are now.
pub struct Config {
    pub max_ttl: Ttl,
    pub limits: Limits,
    /// ms without new grants after holds may have been forgotten; 0: off.
    pub restart_grace: u32,
}

impl Default for Config {
    fn default() -> Self {
        let limits = Limits { on_the_server: 10_000, on_a_key: 10_000 };
        let max_ttl = Ttl::from_millis(MAX_TTL.default as u64).unwrap_or(Ttl::MAX);
        Config { max_ttl, limits, restart_grace: 0 }
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

const MAX_TTL: Number = Number {
    name: "max-ttl",
    default: 86_400_000,
    least: 1,
    greatest: u32::MAX as i64,
    get: || with(|s| s.config.max_ttl.millis() as i64),
    set: |ms| with(|s| s.config.max_ttl = Ttl::from_millis(ms as u64).unwrap_or(Ttl::MAX)),
};

/// Every option.
pub static NUMBERS: [Number; 4] = [
    MAX_TTL,
    Number {
        name: "restart-grace",
        default: 0,
        least: 0,
        greatest: u32::MAX as i64,
        get: || with(|s| s.config.restart_grace.into()),
        set: |ms| with(|s| s.config.restart_grace = u32::try_from(ms).unwrap_or(u32::MAX)),
    },
    Number {
        name: "max-waiters",
        default: 10_000,
        least: 0,
        greatest: 1_000_000,
        get: || with(|s| s.config.limits.on_the_server as i64),
        set: |n| with(|s| s.config.limits.on_the_server = n as usize),
    },
    Number {
        name: "max-waiters-per-key",
        default: 10_000,
        least: 0,
        greatest: 1_000_000,
        get: || with(|s| s.config.limits.on_a_key as i64),
        set: |n| with(|s| s.config.limits.on_a_key = n as usize),
    },
];

/// Defaults from `loadmodule libdlock.so name value ..`, the name with or without `dlock.`; redis.conf overrides them.
/// The error says what is wrong.
pub fn defaults(arguments: &[&[u8]]) -> Result<[i64; NUMBERS.len()], String> {
    let mut values = NUMBERS.each_ref().map(|number| number.default);
    for pair in arguments.chunks(2) {
        let name = String::from_utf8_lossy(pair[0]).to_lowercase();
        let at =
            NUMBERS.iter().position(|number| number.name == name.strip_prefix("dlock.").unwrap_or(&name));
        let at = at.ok_or_else(|| format!("unknown module argument '{name}'; options are {}", names()))?;
        let (least, greatest) = (NUMBERS[at].least, NUMBERS[at].greatest);
        let value = pair.get(1).and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
        values[at] = value
            .filter(|value| (least..=greatest).contains(value))
            .ok_or_else(|| format!("module argument '{name}' needs a number from {least} to {greatest}"))?;
    }
    Ok(values)
}

fn names() -> String {
    NUMBERS.each_ref().map(|number| number.name).join(", ")
}
