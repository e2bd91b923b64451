//! What listeners are told of: see [`crate::followers`].

use std::ffi::CStr;

use dlock_core::{End, Event, Name};
use dlock_protocol::event;

use super::Stored;
use crate::ffi::{Announced, Ctx, KeyName};
use crate::module::Module;

/// Tells listeners, where there may be any.
#[inline]
pub(super) fn announce(m: &Module, ctx: Ctx<'_>, key: KeyName<'_>, events: &[Event], stored: Stored) {
    let announced =
        if m.with(|s| s.followers.modules_may_listen()) { Announced::all() } else { ctx.announced() };
    if announced.intersects(Announced::MODULE | Announced::GENERIC) {
        announce_to(announced, ctx, key, events, stored);
    }
}

#[inline(never)]
fn announce_to(announced: Announced, ctx: Ctx<'_>, key: KeyName<'_>, events: &[Event], stored: Stored) {
    if announced.contains(Announced::MODULE) {
        events.iter().for_each(|event| ctx.notify(event_name(*event), key));
    }
    if stored == Stored::Deleted && announced.contains(Announced::GENERIC) {
        ctx.notify_generic(c"del", key);
    }
}

/// Tells that nobody holds a resource any more whose key holds something else by now.
pub fn announce_freed(ctx: Ctx<'_>, name: &Name<'_>) {
    ctx.notify(event_name(Event::Freed), ctx.string(&name.key).name());
}

/// The words of the contract.
fn event_name(event: Event) -> &'static CStr {
    match event {
        Event::Acquired => event::ACQUIRE,
        Event::Extended => event::EXTEND,
        Event::Downgraded => event::DOWNGRADE,
        Event::Ended(why, _) | Event::AllEnded(why) => match why {
            End::Released => event::RELEASE,
            End::Expired => event::EXPIRED,
            End::Disconnected => event::DISCONNECT,
            End::Broken => event::BREAK,
        },
        Event::Freed => event::FREE,
    }
}
