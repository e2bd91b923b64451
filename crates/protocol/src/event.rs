//! The keyspace events: `dlock.acquire` and the others.

use std::ffi::CStr;

/// A hold began.
pub const ACQUIRE: &CStr = c"dlock.acquire";
/// A lease was changed.
pub const EXTEND: &CStr = c"dlock.extend";
/// The holder ended its hold.
pub const RELEASE: &CStr = c"dlock.release";
/// A lease ended.
pub const EXPIRED: &CStr = c"dlock.expired";
/// The connection of an EPHEMERAL hold closed.
pub const DISCONNECT: &CStr = c"dlock.disconnect";
/// An operator ended a hold.
pub const BREAK: &CStr = c"dlock.break";
/// An exclusive hold became a shared one.
pub const DOWNGRADE: &CStr = c"dlock.downgrade";
/// The resource has no holder any more.
pub const FREE: &CStr = c"dlock.free";

/// All events, in the order of the manual.
pub const TABLE: [&CStr; 8] = [ACQUIRE, EXTEND, RELEASE, EXPIRED, DISCONNECT, BREAK, DOWNGRADE, FREE];
