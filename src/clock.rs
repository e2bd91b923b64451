//! The clocks. No other file reads one.
//!
//! The server clock is the wall clock at the start of the module, advanced by the boot-time clock. It
//! continues while the machine is suspended, and ignores steps of the wall clock.

use std::fs;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use dlock_core::Instant;
use dlock_core::codec::Anchor;
use nix::time::{ClockId, clock_gettime};

static ANCHOR: OnceLock<Anchor> = OnceLock::new();

/// Sets the origin of the server clock. Called once, when the module is loaded.
pub fn start() {
    anchor();
}

/// Returns the identity of this server clock.
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

/// Returns an identifier of the boot and of the boot-time clock that this process sees. If the kernel does
/// not provide one, returns a number that another process is unlikely to have.
fn boot() -> u64 {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    let boot = id.zip(time_namespace_offset()).and_then(|(id, offset)| Anchor::boot(&id, offset));
    boot.unwrap_or_else(|| u64::from(std::process::id()) << 32 | wall_micros() & 0xffff_ffff)
}

/// Returns the offset of the boot-time clock in this process's time namespace, in ns. A restart in another
/// namespace has the same boot id, but another clock. Namespaces are compared by offset, because their
/// numbers are reused. `None` if it cannot be determined.
fn time_namespace_offset() -> Option<i128> {
    let namespace = |of| fs::read_link(format!("/proc/self/ns/{of}")).ok();
    let own = namespace("time");
    if own != namespace("time_for_children") {
        // The offsets below would be those of the child processes.
        return None;
    }
    if own.is_none() {
        // The kernel has no time namespaces.
        return Some(0);
    }
    let offsets = fs::read_to_string("/proc/self/timens_offsets").ok()?;
    // The line has s and ns: `boottime    1000    0`.
    let mut line = offsets.lines().find(|line| line.starts_with("boottime"))?.split_whitespace().skip(1);
    let mut number = || line.next()?.parse::<i128>().ok();
    Some(number()? * 1_000_000_000 + number()?)
}
