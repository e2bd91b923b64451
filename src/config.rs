//! The options, in one table: redis.conf, arguments where the module is loaded, CONFIG SET.

use dlock_core::{Limits, Ttl};
use dlock_protocol::options::{self, Spec};

use crate::ffi::setup::Setting;
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
        let default = |spec: Spec| spec.default() as u64;
        let (on_the_server, on_a_key) =
            (default(options::MAX_WAITERS) as usize, default(options::MAX_WAITERS_PER_KEY) as usize);
        Config {
            max_ttl: Ttl::from_millis(default(options::MAX_TTL)).unwrap_or(Ttl::MAX),
            limits: Limits { on_the_server, on_a_key },
            max_holders: default(options::MAX_HOLDERS_PER_KEY) as u32,
            restart_grace: default(options::RESTART_GRACE) as u32,
            fence_mark: default(options::FENCE_MARK) != 0,
        }
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

/// Every option.
pub static SETTINGS: [Setting; 6] = [
    Setting {
        spec: options::MAX_TTL,
        get: || with(|s| s.config.max_ttl.millis() as i64),
        set: |ms| with(|s| s.config.max_ttl = Ttl::from_millis(ms as u64).unwrap_or(Ttl::MAX)),
    },
    Setting {
        spec: options::RESTART_GRACE,
        get: || with(|s| s.config.restart_grace.into()),
        set: |ms| with(|s| s.config.restart_grace = u32::try_from(ms).unwrap_or(u32::MAX)),
    },
    Setting {
        spec: options::FENCE_MARK,
        get: || with(|s| s.config.fence_mark.into()),
        set: |yes| with(|s| s.config.fence_mark = yes != 0),
    },
    Setting {
        spec: options::MAX_WAITERS,
        get: || with(|s| s.config.limits.on_the_server as i64),
        set: |n| with(|s| s.config.limits.on_the_server = n as usize),
    },
    Setting {
        spec: options::MAX_WAITERS_PER_KEY,
        get: || with(|s| s.config.limits.on_a_key as i64),
        set: |n| with(|s| s.config.limits.on_a_key = n as usize),
    },
    Setting {
        spec: options::MAX_HOLDERS_PER_KEY,
        get: || with(|s| s.config.max_holders.into()),
        set: |n| with(|s| s.config.max_holders = u32::try_from(n).unwrap_or(u32::MAX)),
    },
];

/// Defaults from `loadmodule libdlock.so name value ..`, the name with or without `dlock.`; redis.conf overrides them.
/// The error says what is wrong.
pub fn defaults(arguments: &[&[u8]]) -> Result<[i64; SETTINGS.len()], String> {
    let mut values = SETTINGS.each_ref().map(|setting| setting.spec.default());
    for pair in arguments.chunks(2) {
        let name = String::from_utf8_lossy(pair[0]).to_lowercase();
        let at = SETTINGS.iter().position(|setting| setting.spec.is(&name));
        let at = at.ok_or_else(|| format!("unknown module argument '{name}'; options are {}", names()))?;
        let value = pair.get(1).and_then(|value| std::str::from_utf8(value).ok()).unwrap_or_default();
        let read = SETTINGS[at].spec.read(value);
        values[at] = read.map_err(|wanted| format!("module argument '{name}' requires {wanted}"))?;
    }
    Ok(values)
}

fn names() -> String {
    SETTINGS.each_ref().map(|setting| setting.spec.name).join(", ")
}
