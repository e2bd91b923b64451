//! Whether the server would accept a client's write at this moment. The background job asks before it writes.
//!
//! The server itself makes its checks: `min-replicas-to-write`, a disk error that stops writes, memory, the
//! state of the cluster, the slot. From Redis 7.2 on, a call can be a dry run of the real command. Redis 7.0
//! has none; there the module runs a command with the same flags that does nothing.

use std::ffi::CStr;
use std::sync::OnceLock;

use nix::errno::Errno;

use super::ctx::{Ctx, call};
use super::raw::{KeyName, api, rm};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Allowed,
    /// Out of memory, and nothing else: ending holds is still allowed, as RELEASE is.
    NoMemory,
    /// Refused for another reason, which applies to every key.
    Refused,
    /// Another node serves the key's slot, or the slot is migrating and the key has left.
    Elsewhere,
}

/// The command of a dry run.
pub struct DryRun {
    pub command: &'static CStr,
    /// The arguments after its key.
    pub arguments: [&'static CStr; 2],
    /// A command with the same flags that takes a key and does nothing, for servers without dry runs.
    pub stand_in: &'static CStr,
}

/// Returns whether the server supports dry runs.
pub fn has_dry_runs(ctx: Ctx<'_>) -> bool {
    static DRY_RUNS: OnceLock<bool> = OnceLock::new();
    // SAFETY: the context is valid; the reply is freed at once.
    *DRY_RUNS.get_or_init(|| unsafe {
        // A server that supports dry runs (the format D) replies that there is no such command. An older
        // server gives no reply.
        call!(ctx, c"dlock._none", c"D").is_some()
    })
}

impl Ctx<'_> {
    /// Returns the server's verdict on this command with this key of a database.
    pub fn verdict(self, detached: Ctx<'_>, of: &DryRun, db: i32, key: KeyName<'_>) -> Verdict {
        detached.select_db(db);
        match detached.dry_run(of, key, true) {
            Err(Errno::ENOSPC) => {}
            answer => return verdict(answer),
        }
        // In the detached context, the server checks the memory in use at this moment. This check is too
        // strict for a server that evicts keys before it runs a client's command. In the context of a
        // callback (`self`), the server checks the result of the last eviction instead. If the server
        // evicts no keys, the first answer stands: the second dry run leaves out the check of memory, and so
        // shows whether another check refuses the command, too.
        let evicts = self.eviction_policy() != "noeviction";
        self.select_db(db);
        match self.dry_run(of, key, evicts) {
            Ok(()) if evicts => Verdict::Allowed,
            Ok(()) | Err(Errno::ENOSPC) => Verdict::NoMemory,
            answer => verdict(answer),
        }
    }

    fn dry_run(self, of: &DryRun, key: KeyName<'_>, check_memory: bool) -> Result<(), Errno> {
        let dry = has_dry_runs(self);
        Errno::clear();
        // S: with the checks of replicas and of disk errors, as for a write in a script. M: with the check of
        // memory. D: a dry run.
        // SAFETY: the context and the key are valid; the reply is freed at once.
        unsafe {
            let reply = if dry {
                let format = if check_memory { c"SMDscc" } else { c"SDscc" };
                let [first, second] = of.arguments.map(CStr::as_ptr);
                call!(self, of.command, format, key.0, first, second)
            } else {
                let format = if check_memory { c"SMs" } else { c"Ss" };
                call!(self, of.stand_in, format, key.0)
            };
            let why = Errno::last();
            // If the server would refuse the command, the reply to a dry run is an error. Otherwise there is
            // no reply, or on Valkey 9 a reply of no type. The stand-in is really called: if the server
            // refuses it, there is no reply.
            let refused = match reply {
                Some(reply) => {
                    dry && api!(RedisModule_CallReplyType(reply.0)) == rm::REDISMODULE_REPLY_ERROR as i32
                }
                None => !dry,
            };
            if refused { Err(why) } else { Ok(()) }
        }
    }
}

fn verdict(answer: Result<(), Errno>) -> Verdict {
    match answer {
        Ok(()) => Verdict::Allowed,
        Err(Errno::EPERM) => Verdict::Elsewhere,
        Err(_) => Verdict::Refused,
    }
}
