//! The events that keyspace channels announce: `dlock.acquire` and so on.

use std::ffi::CStr;

/// A hold began.
pub const ACQUIRE: &CStr = c"dlock.acquire";
/// A lease was set anew.
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
/// Nobody holds the resource any more.
pub const FREE: &CStr = c"dlock.free";

/// All of them, in the order of the manual.
pub const TABLE: [&CStr; 8] = [ACQUIRE, EXTEND, RELEASE, EXPIRED, DISCONNECT, BREAK, DOWNGRADE, FREE];
