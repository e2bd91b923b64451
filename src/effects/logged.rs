//! How a change is told to replicas and the append only file: by an effect, or as the command came.

use dlock_core::codec::{self, Known};
use dlock_core::{Change, Instant};

use super::{Target, lock_of};
use crate::{clock, followers};

/// How a change is told.
pub(super) enum Log {
    /// By these bytes.
    Effect(Vec<u8>),
    AsItCame,
    /// Nobody can follow, which spares a third of a command.
    Nobody,
}

impl Target<'_> {
    #[inline]
    pub(super) fn log(&mut self, change: &Change, now: Instant) -> Log {
        let followed = self.in_background || self.m.with(|s| s.followers.may_follow());
        if followed { self.log_for_followers(change, now) } else { Log::Nobody }
    }

    #[inline(never)]
    fn log_for_followers(&mut self, change: &Change, now: Instant) -> Log {
        let Target { m, ctx, key, fresh, plain, .. } = self;
        let (lock, anchor) = (lock_of(m, key, fresh), clock::anchor());
        // What tells all by itself may stand anywhere.
        if plain.is_some_and(|plain| plain.tells(&mut None, lock, anchor)) {
            return Log::AsItCame;
        }
        let counts = followers::count_along(*ctx);
        m.with(|s| {
            let known = &mut s.followers.known;
            if plain.is_some_and(|plain| counts && plain.tells(known, lock, anchor)) {
                return Log::AsItCame;
            }
            let (mut bytes, last) = (std::mem::take(&mut s.buffer), s.fences.last());
            *known = counts.then_some(Known { written_by: anchor, at: now.millis(), last });
            bytes.clear();
            codec::write_effect(lock, change, last, now, anchor, &mut bytes);
            Log::Effect(bytes)
        })
    }
}
