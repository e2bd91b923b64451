//! The one reader of clocks.
//!
//! The server clock is the wall clock at the module's start and moves with the boot-time clock from there on:
//! it goes on while the machine is suspended, and steps of the wall clock do not touch it.

use std::fs;
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

/// Names what the boot-time clock counts from: this start of this machine, as this process sees it. Where the
/// kernel does not tell, a number that hardly matches another.
fn boot() -> u64 {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    let boot = id.zip(time_namespace()).and_then(|(id, offset)| Anchor::boot(&id, offset));
    boot.unwrap_or_else(|| u64::from(std::process::id()) << 32 | wall_micros() & 0xffff_ffff)
}

/// By how many ns the boot-time clock is off in the time namespace of this process: a restart in another one
/// has the same boot id and another clock. Two namespaces with one offset have one clock, whatever their
/// numbers, which are given again. None where it cannot be told.
fn time_namespace() -> Option<i128> {
    let namespace = |of| fs::read_link(format!("/proc/self/ns/{of}")).ok();
    let own = namespace("time");
    if own != namespace("time_for_children") {
        // What is told below is of the children.
        return None;
    }
    if own.is_none() {
        // A kernel without them.
        return Some(0);
    }
    let offsets = fs::read_to_string("/proc/self/timens_offsets").ok()?;
    // boottime    1000    0
    let mut line = offsets.lines().find(|line| line.starts_with("boottime"))?.split_whitespace().skip(1);
    let mut number = || line.next()?.parse::<i128>().ok();
    Some(number()? * 1_000_000_000 + number()?)
}
