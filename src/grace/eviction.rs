//! A server that may evict any key evicts locks too, and so forgets holds whose holders do not know of it.

use dlock_core::Name;

use super::{Ctx, LogLevel, forgot, in_ms, proof, with};
use crate::state::State;

/// At the start and at each CONFIG SET: tells the operator when it begins to be so.
pub fn look(ctx: Ctx<'_>) {
    let policy = ctx.option("maxmemory-policy").unwrap_or_default();
    let limited = ctx.option("maxmemory").is_some_and(|bytes| bytes != "0");
    let evicts = limited && policy.starts_with("allkeys-");
    let before = with(|s| std::mem::replace(&mut s.grace.evicts_locks, evicts));
    if evicts && !before {
        let text = format!(
            "maxmemory-policy {policy} evicts locks that are held, as any key, when memory is short, and others are \
             granted them then: use noeviction, or volatile-*"
        );
        ctx.log(LogLevel::Warning, &text);
    }
}

/// The key of a lock is taken away. If that was an eviction, the server says so next.
pub fn taken_away(state: &mut State, name: &Name<'_>) {
    state.grace.taken_away = Some(name.to_owned());
}

/// A key was evicted, of whatever type.
pub fn evicted(ctx: Ctx<'_>, db: i32, key: &[u8]) {
    let held = with(|s| s.grace.taken_away.take()).is_some_and(|name| name == Name::new(db, key));
    if !held {
        return;
    }
    let runs = with(|s| {
        s.stats.evictions += 1;
        let ends = in_ms(s.config.restart_grace);
        if s.grace.runs {
            s.grace.ends = s.grace.ends.max(ends);
        }
        s.grace.runs
    });
    if runs {
        // Of many at once one line in the log is enough.
        proof::knows_not_all(ctx);
    } else {
        forgot(ctx, "a lock that was held was evicted");
    }
}
