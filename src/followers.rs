//! Does anybody follow what is replicated, or listen to what is announced?
//!
//! Building an effect costs about as much as the rest of a command, so it is left out while nobody can ever
//! read it. That is proven by the server, not assumed: the append only file is off, there is no replica and
//! no replication backlog from which one could catch up, and it is no cluster, where slots are streamed to
//! other nodes. Whoever begins to follow is first given a snapshot by a forked child, or by a rewrite of the
//! file that forks one, and reads on from there; the fork is announced before the next command runs. So from
//! each fork on, and from each change of the configuration, effects are sent until the server has been asked
//! again.
//!
//! Whether this server itself reads a log, of its master or while it loads, is known in the same way. A node
//! of a cluster may, for slots that it takes over.
//!
//! While nobody follows, the command itself is handed to the server as if to be replicated. It goes nowhere,
//! and counts as a change for the RDB's save points.
//!
//! Announcing goes to other modules first, whatever `notify-keyspace-events` says. Where no other module is
//! loaded that option alone tells whether anybody can hear.

use crate::ffi::{Announced, Ctx, Flags};
use crate::module::Module;

/// Asks the server, where it is not known that nobody does.
pub fn look(m: &Module, ctx: Ctx<'_>) {
    if m.with(|s| s.followers.alone.is_none()) {
        // This one is counted too.
        let alone = ctx.count_modules() == Some(1);
        m.with(|s| s.followers.alone = Some(alone));
    }
    if m.with(|s| s.followers.may_read)
        && ctx.flags().intersection(Flags::MASTER | Flags::LOADING | Flags::CLUSTER) == Flags::MASTER
    {
        m.with(|s| s.followers.may_read = false);
    }
    if m.with(|s| s.followers.may_follow) && !could_read(ctx) {
        m.with(|s| s.followers.may_follow = false);
    }
}

/// Whether anybody may hear of what happens to locks.
pub fn is_heard(m: &Module) -> bool {
    m.with(|s| s.followers.modules_may_listen()) || m.ctx().announced().contains(Announced::MODULE)
}

/// Whether all readers of the log will have read what is logged now when they read what comes next, so that
/// they can count on from it. In a cluster a log is also sent by slots. A call within a script, a transaction
/// or another module may be logged nowhere: the other module decides, and no flag tells.
pub fn count_along(ctx: Ctx<'_>) -> bool {
    !ctx.flags().intersects(Flags::CLUSTER | Flags::MULTI | Flags::LUA | Flags::DENY_BLOCKING)
}

fn could_read(ctx: Ctx<'_>) -> bool {
    let flags = ctx.flags();
    flags.intersects(Flags::AOF | Flags::CLUSTER | Flags::LOADING)
        || !flags.contains(Flags::MASTER)
        || ctx.info_number("replication", "connected_slaves") != Some(0)
        || ctx.info_number("replication", "repl_backlog_active") != Some(0)
}
