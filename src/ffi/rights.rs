//! What the user of a connection may do at this moment: rights can be withdrawn while somebody waits.

use super::ctx::Ctx;
use super::raw::{api, bytes_of, rm};

/// The command of a client that waited, as it was sent.
#[derive(Clone, Copy)]
pub struct Waited {
    pub(super) argv: *mut *mut rm::RedisModuleString,
    pub(super) argc: i32,
}

impl Waited {
    /// Why the client's user may not run it now; None where it may. `ctx` is the client's.
    pub fn refused(self, ctx: Ctx<'_>) -> Option<String> {
        // A call of another module can wait, too. It has no user, and to ask for its name ends the server.
        if !ctx.is_connected(ctx.client_id()) {
            return None;
        }
        // SAFETY: the context is that of a client that is still there, the arguments are its own; what the
        // server makes for us is freed before we return.
        unsafe {
            let name = api!(RedisModule_GetCurrentUserName(ctx.0));
            let user = api!(RedisModule_GetModuleUserFromUserName(name));
            let denied = if user.is_null() {
                Some(self.no_command(name))
            } else {
                let allowed = api!(RedisModule_ACLCheckCommandPermissions(user, self.argv, self.argc));
                let denied = (allowed != rm::REDISMODULE_OK as i32).then(|| self.denied(ctx, name, user));
                api!(RedisModule_FreeModuleUser(user));
                denied
            };
            api!(RedisModule_FreeString(ctx.0, name));
            denied
        }
    }

    /// What of it is denied, in the server's words. The operator finds it in ACL LOG, as any other denial.
    ///
    /// # Safety
    /// The context, the arguments, the user and its name are valid.
    unsafe fn denied(
        self,
        ctx: Ctx<'_>,
        name: *mut rm::RedisModuleString,
        user: *mut rm::RedisModuleUser,
    ) -> String {
        const READS_AND_WRITES: u32 =
            rm::REDISMODULE_CMD_KEY_ACCESS | rm::REDISMODULE_CMD_KEY_UPDATE | rm::REDISMODULE_CMD_KEY_INSERT;
        // SAFETY: by contract; the command has a key, which has been looked at when it came.
        unsafe {
            let [command, key] = [*self.argv, *self.argv.add(1)];
            let has_key = api!(RedisModule_ACLCheckKeyPermissions(user, key, READS_AND_WRITES as i32));
            let (object, reason, text) = if has_key == rm::REDISMODULE_OK as i32 {
                (command, rm::RedisModuleACLLogEntryReason_REDISMODULE_ACL_LOG_CMD, self.no_command(name))
            } else {
                let text = "NOPERM No permissions to access a key".to_owned();
                (key, rm::RedisModuleACLLogEntryReason_REDISMODULE_ACL_LOG_KEY, text)
            };
            api!(RedisModule_ACLAddLogEntry(ctx.0, user, object, reason));
            text
        }
    }

    /// # Safety
    /// The arguments and the name are valid.
    unsafe fn no_command(self, name: *mut rm::RedisModuleString) -> String {
        // SAFETY: by contract; the first argument is the command.
        let (name, command) = unsafe { (bytes_of(name), bytes_of(*self.argv)) };
        let command = String::from_utf8_lossy(command).to_lowercase();
        format!(
            "NOPERM User {} has no permissions to run the '{command}' command",
            String::from_utf8_lossy(name)
        )
    }
}
