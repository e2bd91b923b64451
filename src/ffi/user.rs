//! What the user may do in whose name a command runs.

use nix::errno::Errno;

use super::ctx::Ctx;
use super::name::KeyName;
use super::raw::{api, rm};

impl Ctx<'_> {
    /// Whether the user may write this key. Where there is no user the server itself asks, or another module,
    /// and it may.
    pub fn user_may_write(self, key: KeyName<'_>) -> bool {
        if !self.has_user() {
            return true;
        }
        let writes = rm::REDISMODULE_CMD_KEY_ACCESS | rm::REDISMODULE_CMD_KEY_UPDATE;
        // SAFETY: the context and the key are valid, its client has a user; what the server makes is given
        // back. A user that has been deleted is not found.
        unsafe {
            let name = api!(RedisModule_GetCurrentUserName(self.0));
            let user = api!(RedisModule_GetModuleUserFromUserName(name));
            api!(RedisModule_FreeString(self.0, name));
            if user.is_null() {
                return false;
            }
            let allowed = api!(RedisModule_ACLCheckKeyPermissions(user, key.0, writes as i32));
            api!(RedisModule_FreeModuleUser(user));
            allowed == rm::REDISMODULE_OK as i32
        }
    }

    /// Whether the client of this context has a user: one that another module made has none, and to ask for
    /// its name ends the server. A call in the user's name says so before it looks at anything else, so no
    /// command is needed.
    fn has_user(self) -> bool {
        // SAFETY: the context is valid; no command has this name, so there is no reply to be freed.
        unsafe {
            let reply = api!(RedisModule_Call(self.0, c"dlock._nobody".as_ptr(), c"C".as_ptr()));
            let error = Errno::last();
            if !reply.is_null() {
                api!(RedisModule_FreeCallReply(reply));
            }
            error != Errno::ENOTSUP
        }
    }
}
