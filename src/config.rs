//! The options in one table. They are set in redis.conf, by arguments of the module, or by CONFIG SET.

use dlock_core::{Bounds, Limits, Ttl};
use dlock_protocol::options;

use crate::ffi::setup::Setting;

/// The current values of the options.
pub struct Config {
    pub bounds: Bounds,
    /// Maximum numbers of waiters.
    pub limits: Limits,
    /// Maximum number of sharers or permit holders of a key.
    pub max_holders: u32,
    /// Whether the fence mark ([`crate::fence_mark`]) is written to the disk.
    pub fence_mark: bool,
    /// Whether a string counts as a lock that another library holds.
    pub honour_strings: bool,
    /// Maximum length of DLOCK.LOG, in entries.
    pub log_max_len: usize,
    /// DLOCK.LOG records each hold and each wait that takes this many ms or more. `None` means none.
    pub log_slower_than: Option<u32>,
}

impl Default for Config {
    fn default() -> Self {
        let mut config = Config {
            bounds: Bounds { max_ttl: Ttl::MAX, grace: None },
            limits: Limits { on_the_server: 0, on_a_key: 0, queued: 0 },
            max_holders: 0,
            fence_mark: false,
            honour_strings: false,
            log_max_len: 0,
            log_slower_than: None,
        };
        SETTINGS.iter().for_each(|setting| (setting.set)(&mut config, setting.spec.default()));
        config
    }
}

/// Returns a ttl. `None` for 0.
fn ttl(ms: i64) -> Option<Ttl> {
    Ttl::from_millis(ms as u64)
}

/// All options. The server checks the range of each.
pub static SETTINGS: [Setting<Config>; 10] = [
    Setting {
        spec: options::MAX_TTL,
        get: |config| config.bounds.max_ttl.millis() as i64,
        set: |config, ms| config.bounds.max_ttl = ttl(ms).unwrap_or(Ttl::MAX),
    },
    Setting {
        spec: options::RESTART_GRACE,
        get: |config| config.bounds.grace.map_or(0, |grace| grace.millis() as i64),
        set: |config, ms| config.bounds.grace = ttl(ms),
    },
    Setting {
        spec: options::FENCE_MARK,
        get: |config| config.fence_mark.into(),
        set: |config, yes| config.fence_mark = yes != 0,
    },
    Setting {
        spec: options::MAX_WAITERS,
        get: |config| config.limits.on_the_server as i64,
        set: |config, n| config.limits.on_the_server = n as usize,
    },
    Setting {
        spec: options::MAX_WAITERS_PER_KEY,
        get: |config| config.limits.on_a_key as i64,
        set: |config, n| config.limits.on_a_key = n as usize,
    },
    Setting {
        spec: options::MAX_QUEUED,
        get: |config| config.limits.queued as i64,
        set: |config, n| config.limits.queued = n as usize,
    },
    Setting {
        spec: options::MAX_HOLDERS_PER_KEY,
        get: |config| config.max_holders.into(),
        set: |config, n| config.max_holders = n as u32,
    },
    Setting {
        spec: options::HONOUR_STRINGS,
        get: |config| config.honour_strings.into(),
        set: |config, yes| config.honour_strings = yes != 0,
    },
    Setting {
        spec: options::LOG_MAX_LEN,
        get: |config| config.log_max_len as i64,
        set: |config, n| config.log_max_len = n as usize,
    },
    Setting {
        spec: options::LOG_SLOWER_THAN,
        get: |config| config.log_slower_than.map_or(-1, i64::from),
        // -1 means never.
        set: |config, ms| config.log_slower_than = u32::try_from(ms).ok(),
    },
];

/// Returns the initial value of each option: the one in the arguments of the module
/// (`loadmodule libdlock.so name value ..`, the name with or without `dlock.`), otherwise the default. A line
/// of redis.conf for the option overrides it.
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
