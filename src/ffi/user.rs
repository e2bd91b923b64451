//! Rights of users: of the user of the running command, and of users by name.

use std::marker::PhantomData;

use nix::errno::Errno;

use super::ctx::{Ctx, call};
use super::raw::{KeyName, OwnedString, api, bytes_of, rm};

/// A user, for checks of its rights.
pub struct User<'a>(Rights, PhantomData<Ctx<'a>>);

enum Rights {
    /// No user: the server itself or another module runs the command.
    All,
    /// The user has been deleted.
    None,
    Of(*mut rm::RedisModuleUser),
}

impl User<'_> {
    /// Looks a user up by name.
    fn named(name: &OwnedString) -> Self {
        // SAFETY: the name is valid. A user that has been deleted is not found.
        let user = unsafe { api!(RedisModule_GetModuleUserFromUserName(name.name().0)) };
        User(if user.is_null() { Rights::None } else { Rights::Of(user) }, PhantomData)
    }

    pub fn may_read(&self, key: KeyName<'_>) -> bool {
        self.may(key, rm::REDISMODULE_CMD_KEY_ACCESS)
    }

    /// Returns whether the user may read and change the key. Reading is required, because the reply to a
    /// change shows something of the old value.
    pub fn may_write(&self, key: KeyName<'_>) -> bool {
        self.may(key, rm::REDISMODULE_CMD_KEY_ACCESS | rm::REDISMODULE_CMD_KEY_UPDATE)
    }

    fn may(&self, key: KeyName<'_>, what: u32) -> bool {
        // SAFETY: the user and the key are valid.
        self.is_allowed(|user| unsafe { api!(RedisModule_ACLCheckKeyPermissions(user, key.0, what as i32)) })
    }

    fn is_allowed(&self, check: impl FnOnce(*mut rm::RedisModuleUser) -> i32) -> bool {
        match self.0 {
            Rights::All => true,
            Rights::None => false,
            Rights::Of(user) => check(user) == rm::REDISMODULE_OK as i32,
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

/// Returns whether a user may publish on this channel.
pub fn may_publish(user: &[u8], channel: &[u8]) -> bool {
    let (channel, publish) = (OwnedString::new(channel), rm::REDISMODULE_CMD_CHANNEL_PUBLISH as i32);
    // SAFETY: the user and the channel are valid.
    User::named(&OwnedString::new(user)).is_allowed(|user| unsafe {
        api!(RedisModule_ACLCheckChannelPermissions(user, channel.name().0, publish))
    })
}

/// Returns whether a user may run this command.
pub fn may_run(user: &[u8], command: &[&[u8]]) -> bool {
    let words: Vec<OwnedString> = command.iter().map(|word| OwnedString::new(word)).collect();
    let mut argv: Vec<_> = words.iter().map(|word| word.name().0).collect();
    // SAFETY: the user and the arguments are valid.
    User::named(&OwnedString::new(user)).is_allowed(|user| unsafe {
        api!(RedisModule_ACLCheckCommandPermissions(user, argv.as_mut_ptr(), argv.len() as i32))
    })
}

impl<'a> Ctx<'a> {
    pub fn user(self) -> User<'a> {
        match self.has_user() {
            true => User::named(&self.client_user()),
            false => User(Rights::All, PhantomData),
        }
    }

    /// Returns the name of the user of the running command. `None` for the server itself and for another
    /// module.
    pub fn user_name(self) -> Option<Vec<u8>> {
        self.has_user().then(|| self.client_user().bytes().to_vec())
    }

    /// Returns the name of the client's user. The client must have one.
    fn client_user(self) -> OwnedString {
        // SAFETY: the context is valid; the string is ours.
        unsafe { OwnedString::from_raw(api!(RedisModule_GetCurrentUserName(self.0))) }
    }

    /// Returns whether the user may run every command on every key and channel. False if the server cannot
    /// list a user's rules.
    pub fn user_has_all_rights(self) -> bool {
        match (unsafe { rm::RedisModule_GetModuleUserACLString }, &self.user()) {
            // SAFETY: the user is valid; the string is ours.
            (Some(rules_of), &User(Rights::Of(user), _)) => {
                let rules = unsafe { OwnedString::from_raw(rules_of(user)) };
                // The rules on keys, channels and commands come last, unless the user has selectors.
                rules.bytes().ends_with(b" ~* &* +@all")
            }
            _ => false,
        }
    }

    /// Adds a denial to ACL LOG.
    pub fn log_denied_channel(self, user: &[u8], channel: &[u8]) {
        let (user, channel) = (User::named(&OwnedString::new(user)), OwnedString::new(channel));
        let reason = rm::RedisModuleACLLogEntryReason_REDISMODULE_ACL_LOG_CHANNEL;
        if let Rights::Of(user) = user.0 {
            // SAFETY: the context is that of a client's command, the user and the channel are valid.
            unsafe { api!(RedisModule_ACLAddLogEntry(self.0, user, channel.name().0, reason)) };
        }
    }

    /// Returns whether the client of this context has a user. If another module calls the command, the
    /// client has none, and asking for the user's name would crash the server. Instead, this runs an unknown
    /// command as the user: without a user, the call fails with ENOTSUP before the server looks for the
    /// command.
    fn has_user(self) -> bool {
        // SAFETY: the context is valid.
        unsafe {
            let reply = call!(self, c"dlock._nobody", c"C");
            let error = Errno::last();
            drop(reply);
            error != Errno::ENOTSUP
        }
    }
}

/// The command of a client that waited, as it was sent.
#[derive(Clone, Copy)]
pub struct Waited {
    pub(super) argv: *mut *mut rm::RedisModuleString,
    pub(super) argc: i32,
}

impl Waited {
    /// Checks whether the client's user may still run the command: a user can lose rights while the client
    /// waits. If not, adds a denial to ACL LOG, and returns the denial in the server's words. `ctx` is the
    /// client's.
    pub fn deny_if_rights_lost(self, ctx: Ctx<'_>) -> Option<String> {
        const READS_AND_WRITES: u32 =
            rm::REDISMODULE_CMD_KEY_ACCESS | rm::REDISMODULE_CMD_KEY_UPDATE | rm::REDISMODULE_CMD_KEY_INSERT;
        // A call of another module can wait, too. Its client has no connection and no user, and asking for
        // the user's name crashes the server.
        if !ctx.is_connected(ctx.client_id()) {
            return None;
        }
        let (name, [command, key]) = (ctx.client_user(), unsafe { [*self.argv, *self.argv.add(1)] });
        let user = User::named(&name);
        // SAFETY: (here and below) the client of the context is connected. The arguments are those that it
        // sent: a command and its key.
        let may_run =
            |user| unsafe { api!(RedisModule_ACLCheckCommandPermissions(user, self.argv, self.argc)) };
        if user.is_allowed(may_run) {
            return None;
        }
        let command_name = String::from_utf8_lossy(unsafe { bytes_of(command) }).to_lowercase();
        let name = String::from_utf8_lossy(name.bytes());
        let no_command = format!("NOPERM User {name} has no permissions to run the '{command_name}' command");
        let Rights::Of(raw) = user.0 else { return Some(no_command) };
        let (object, reason, text) = if user.may(unsafe { KeyName::new(key) }, READS_AND_WRITES) {
            (command, rm::RedisModuleACLLogEntryReason_REDISMODULE_ACL_LOG_CMD, no_command)
        } else {
            let text = "NOPERM No permissions to access a key".to_owned();
            (key, rm::RedisModuleACLLogEntryReason_REDISMODULE_ACL_LOG_KEY, text)
        };
        unsafe { api!(RedisModule_ACLAddLogEntry(ctx.0, raw, object, reason)) };
        Some(text)
    }
}
