//! Whether anything follows the log of this server (its replication stream and append only file), or listens
//! to its events.
//!
//! An effect is an entry of the log that contains a changed lock. Building an effect costs about as much as
//! the rest of a command. So the module builds none while nothing can ever read it. That is the case on a
//! master that is not a node of a cluster, if the append only file is off, and there is neither a replica nor
//! a replication backlog. (A node of a cluster can send the log of a slot to the node that takes the slot
//! over.)
//!
//! A new follower first gets a snapshot, which a forked child of the server writes. It then reads the log
//! from the fork on. The server announces a fork before the next command runs. So after a fork, and after a
//! CONFIG SET (which may set `appendonly`), the module builds effects until [`Followers::update`] finds no
//! follower.
//!
//! While nothing follows, the module asks the server to replicate the running command as it is. The command
//! reaches no reader, but counts as a change for the save points of the RDB file.
//!
//! The server announces events to other modules too, whatever `notify-keyspace-events` says. If no other
//! module is loaded, that option alone decides whether there can be listeners.

use dlock_core::plain::LogState;

use crate::ffi::{Ctx, Flags};

/// Knowledge about the readers of this server's log and the listeners to its events.
#[derive(Clone, Copy)]
pub struct Followers {
    /// Whether replicas or the append only file may get what this server logs.
    pub may_follow: bool,
    /// Whether this server may read a log itself: its master's, or the append only file.
    pub server_may_read: bool,
    /// The state that every reader of the log has after the last entry. `None` if a reader may begin with the
    /// next entry. That entry must then be an effect, because an ACQUIRE that is logged verbatim builds on an
    /// earlier effect.
    pub readers_state: Option<LogState>,
    /// Whether this is the only loaded module. `None` means unknown: since the start, or since another module
    /// was loaded or unloaded.
    pub is_only_module: Option<bool>,
}

impl Default for Followers {
    fn default() -> Self {
        Followers { may_follow: true, server_may_read: true, readers_state: None, is_only_module: None }
    }
}

impl Followers {
    /// Clears `may_follow` if the log has no follower, and `server_may_read` if the server reads no log.
    /// The module `server_events` sets them again. Counts the loaded modules if `is_only_module` is unknown.
    pub fn update(&mut self, ctx: Ctx<'_>) {
        // The count includes this module.
        self.is_only_module = self.is_only_module.or_else(|| Some(ctx.count_modules() == Some(1)));
        // A master in a cluster may read the log of another node, to take over slots from that node.
        let reading = Flags::MASTER | Flags::LOADING | Flags::CLUSTER;
        self.server_may_read = self.server_may_read && ctx.flags().intersection(reading) != Flags::MASTER;
        self.may_follow = self.may_follow && can_be_followed(ctx);
    }

    pub fn other_modules_may_listen(&self) -> bool {
        self.is_only_module != Some(true)
    }

    /// Returns whether a command that this server reads from a log can be passed on verbatim: the readers of
    /// its own log have the state that the command builds on. If so, advances their state past the command.
    pub fn advance_past(&mut self, position: &LogPosition) -> bool {
        let readers_can_apply = position.builds_on.is_none() || position.builds_on == self.readers_state;
        if readers_can_apply {
            self.readers_state = position.leads_to.or(self.readers_state);
        }
        readers_can_apply
    }
}

/// Position of a command in a log.
pub struct LogPosition {
    /// The state of the log that a reader needs for the command. `None` if it needs none.
    pub builds_on: Option<LogState>,
    /// The state of the log after the command. `None` if the command does not change it.
    pub leads_to: Option<LogState>,
}

/// Returns whether every reader of the next entry of the log has read the running command's entry before. If
/// so, the next entry can build on this one. False in a script or transaction. False in a cluster, where a
/// node can also send the log of a single slot. False in a call of another module: that module decides
/// whether the call is logged, and no flag shows its decision.
pub fn next_entry_can_build_on_this(ctx: Ctx<'_>) -> bool {
    !ctx.flags().intersects(Flags::CLUSTER | Flags::MULTI | Flags::LUA | Flags::DENY_BLOCKING)
}

fn can_be_followed(ctx: Ctx<'_>) -> bool {
    let flags = ctx.flags();
    flags.intersects(Flags::AOF | Flags::CLUSTER | Flags::LOADING)
        || !flags.contains(Flags::MASTER)
        || ctx.info_number("replication", "connected_slaves") != Some(0)
        || ctx.info_number("replication", "repl_backlog_active") != Some(0)
}
