//! Whether anything follows the log of this server, or listens to its events.
//!
//! Building an effect costs about as much as the rest of a command. It is skipped while nothing can ever read
//! it. That is not assumed; the server is asked: the append only file is off, there is no replica and no
//! replication backlog, and the server is no node of a cluster, which streams slots to other nodes. A new
//! follower first gets a snapshot from a forked child (of the server, or of a rewrite of the file), and reads
//! the log from there on. The server announces a fork before the next command runs. So effects are sent from
//! each fork and each CONFIG SET on, until the server has been asked again.
//!
//! Meanwhile the module has the server replicate the running command itself. It reaches nothing, but counts
//! as a change for the save points of the RDB file.
//!
//! The server announces events to other modules too, whatever `notify-keyspace-events` says. If no other
//! module is loaded, that option alone tells whether there can be listeners.

use crate::ffi::{Announced, Ctx, Flags};
use crate::module::Module;

/// Asks the server again, as far as followers, listeners and a log to read are possible.
pub fn update(m: &Module, ctx: Ctx<'_>) {
    if m.with(|s| s.followers.alone.is_none()) {
        // The count includes this module.
        let alone = ctx.count_modules() == Some(1);
        m.with(|s| s.followers.alone = Some(alone));
    }
    // A node of a cluster may read a log as a master too, of slots that it takes over.
    if m.with(|s| s.followers.may_read)
        && ctx.flags().intersection(Flags::MASTER | Flags::LOADING | Flags::CLUSTER) == Flags::MASTER
    {
        m.with(|s| s.followers.may_read = false);
    }
    if m.with(|s| s.followers.may_follow) && !can_be_followed(ctx) {
        m.with(|s| s.followers.may_follow = false);
    }
}

/// Returns whether an event of a lock may reach a listener.
pub fn has_listeners(m: &Module) -> bool {
    m.with(|s| s.followers.modules_may_listen()) || m.ctx().announced().contains(Announced::MODULE)
}

/// Returns whether every reader of the log reads the running command's entry before the next entry, so that
/// the next one can build on it. Not in a cluster, which also sends its log by slots, and not in a script, a
/// transaction or a call of another module: that module decides whether the call is logged, and no flag
/// tells.
pub fn next_can_build_on(ctx: Ctx<'_>) -> bool {
    !ctx.flags().intersects(Flags::CLUSTER | Flags::MULTI | Flags::LUA | Flags::DENY_BLOCKING)
}

fn can_be_followed(ctx: Ctx<'_>) -> bool {
    let flags = ctx.flags();
    flags.intersects(Flags::AOF | Flags::CLUSTER | Flags::LOADING)
        || !flags.contains(Flags::MASTER)
        || ctx.info_number("replication", "connected_slaves") != Some(0)
        || ctx.info_number("replication", "repl_backlog_active") != Some(0)
}
