//! Does anybody follow what is replicated, or listen to what is announced?
//!
//! Building an effect costs about as much as the rest of a command, so it is left out while nobody can ever read it.
//! That is proven by the server, not assumed: the append only file is off, there is no replica and no replication
//! backlog from which one could catch up, and it is no cluster, where slots are streamed to other nodes. Whoever begins
//! to follow is first given a snapshot by a forked child, or by a rewrite of the file that forks one, and reads on from
//! there; the fork is announced before the next command runs. So from each fork on, and from each change of the
//! configuration, effects are sent until the server has been asked again.
//!
//! While nobody follows, the command itself is handed to the server as if to be replicated. It goes nowhere, and counts
//! as a change for the RDB's save points.
//!
//! Announcing goes to other modules first, whatever `notify-keyspace-events` says. Where no other module is loaded that
//! option alone tells whether anybody can hear.

use crate::ffi::{Ctx, Flags};
use crate::state::with;

/// Somebody may follow from now on.
pub fn may_begin() {
    with(|s| s.followed = true);
}

/// Another module was loaded, or taken out: who listens has to be asked again.
pub fn modules_changed() {
    with(|s| s.alone = None);
}

/// Asks the server, where it is not known that nobody does.
pub fn look(ctx: Ctx<'_>) {
    if with(|s| s.alone).is_none() {
        let alone = ctx.count_modules() == Some(1);
        with(|s| s.alone = Some(alone));
    }
    if with(|s| s.followed) && !could_read(ctx) {
        with(|s| s.followed = false);
    }
}

fn could_read(ctx: Ctx<'_>) -> bool {
    let flags = ctx.flags();
    flags.intersects(Flags::AOF | Flags::CLUSTER | Flags::LOADING)
        || !flags.contains(Flags::MASTER)
        || ctx.info_number("replication", "connected_slaves") != Some(0)
        || ctx.info_number("replication", "repl_backlog_active") != Some(0)
}
