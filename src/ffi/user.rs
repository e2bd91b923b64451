//! What the user may do in whose name a command runs.

use std::marker::PhantomData;

use nix::errno::Errno;

use super::ctx::{Ctx, Reply};
use super::name::KeyName;
use super::raw::{api, bytes_of, rm};

/// The user of a command, as it is while that runs.
pub struct User<'a>(Rights, PhantomData<Ctx<'a>>);

enum Rights {
    /// There is no user: the server itself asks, or another module.
    All,
    /// It has been deleted.
    None,
    Of(*mut rm::RedisModuleUser),
}

impl User<'_> {
    pub fn may_read(&self, key: KeyName<'_>) -> bool {
        self.may(key, rm::REDISMODULE_CMD_KEY_ACCESS)
    }

    /// To change what is there tells of it: it reads too.
    pub fn may_write(&self, key: KeyName<'_>) -> bool {
        self.may(key, rm::REDISMODULE_CMD_KEY_ACCESS | rm::REDISMODULE_CMD_KEY_UPDATE)
    }

    fn may(&self, key: KeyName<'_>, what: u32) -> bool {
        match self.0 {
            Rights::All => true,
            Rights::None => false,
            // SAFETY: the user and the key are valid.
            Rights::Of(user) => unsafe {
                api!(RedisModule_ACLCheckKeyPermissions(user, key.0, what as i32))
                    == rm::REDISMODULE_OK as i32
            },
        }
    }
}

impl Drop for User<'_> {
    fn drop(&mut self) {
        if let Rights::Of(user) = self.0 {
            // SAFETY: made by the server for us, given back once.
            unsafe { api!(RedisModule_FreeModuleUser(user)) };
        }
    }
}

impl<'a> Ctx<'a> {
    pub fn user(self) -> User<'a> {
        let rights = if self.has_user() {
            // SAFETY: the context is valid, its client has a user; the name is given back. A user that has
            // been deleted is not found.
            let user = unsafe {
                let name = api!(RedisModule_GetCurrentUserName(self.0));
                let user = api!(RedisModule_GetModuleUserFromUserName(name));
                api!(RedisModule_FreeString(self.0, name));
                user
            };
            if user.is_null() { Rights::None } else { Rights::Of(user) }
        } else {
            Rights::All
        };
        User(rights, PhantomData)
    }

    /// Whether the user may run every command on every key and channel.
    pub fn user_has_all_rights(self) -> bool {
        let Some(rules_of) = (unsafe { rm::RedisModule_GetModuleUserACLString }) else { return false };
        // SAFETY: as above.
        self.has_user()
            && unsafe {
                let name = api!(RedisModule_GetCurrentUserName(self.0));
                let user = api!(RedisModule_GetModuleUserFromUserName(name));
                api!(RedisModule_FreeString(self.0, name));
                if user.is_null() {
                    return false;
                }
                let rules = rules_of(user);
                let all = bytes_of(rules).ends_with(b" ~* &* +@all");
                api!(RedisModule_FreeString(self.0, rules));
                api!(RedisModule_FreeModuleUser(user));
                all
            }
    }

    /// Whether the client of this context has a user: one that another module made has none, and to ask for
    /// its name ends the server. A call in the user's name says so before it looks at anything else, so no
    /// command is needed.
    fn has_user(self) -> bool {
        // SAFETY: the context is valid; no command has this name, so there is hardly a reply.
        unsafe {
            let reply = api!(RedisModule_Call(self.0, c"dlock._nobody".as_ptr(), c"C".as_ptr()));
            let error = Errno::last();
            drop(Reply::of(reply));
            error != Errno::ENOTSUP
        }
    }
}
