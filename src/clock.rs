//! The one reader of clocks.
//!
//! The server clock is the wall clock at the module's start and moves with the boot-time clock from there on: it goes
//! on while the machine is suspended, and steps of the wall clock do not touch it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use dlock_core::Instant;
use dlock_core::codec::Anchor;
use nix::time::{ClockId, clock_gettime};

static ANCHOR: OnceLock<Anchor> = OnceLock::new();

/// Fixes the server clock. Called once, when the module is loaded.
pub fn start() {
    anchor();
}

/// What relates this server clock to others.
pub fn anchor() -> Anchor {
    *ANCHOR
        .get_or_init(|| Anchor { boot: boot(), offset: (wall_micros() / 1000 - boot_micros() / 1000) as i64 })
}

pub fn now() -> Instant {
    Instant::from_micros((boot_micros() as i64 + anchor().offset * 1000) as u64)
}

#[allow(clippy::disallowed_methods, reason = "the one reader of clocks")]
fn wall_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

#[allow(clippy::disallowed_methods, reason = "the one reader of clocks")]
fn boot_micros() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).unwrap_or(nix::sys::time::TimeSpec::new(0, 0));
    time.tv_sec() as u64 * 1_000_000 + time.tv_nsec() as u64 / 1000
}

/// Names this start of this machine; 0, which never matches another, where the kernel does not tell.
fn boot() -> u64 {
    let Ok(id) = std::fs::read_to_string("/proc/sys/kernel/random/boot_id") else {
        return u64::from(std::process::id()) << 32 | wall_micros() & 0xffff_ffff;
    };
    let mut hasher = DefaultHasher::new();
    id.trim().hash(&mut hasher);
    hasher.finish()
}
