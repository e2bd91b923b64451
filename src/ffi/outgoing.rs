//! What others get to know: replicas and the append only file, listeners, subscribers.

use std::ffi::{CStr, c_int};

use super::Ctx;
use super::name::KeyName;
use super::raw::{api, rm};

impl Ctx<'_> {
    /// Sends `command key change` to replicas and the append only file. Goes out after the command that runs.
    pub fn replicate(self, command: &CStr, key: KeyName<'_>, change: &[u8]) {
        let format = c"sb".as_ptr();
        let (start, len) = (change.as_ptr(), change.len());
        // SAFETY: (here and in every method below) the context is valid by construction, and pointers into
        // arguments outlive the call; the server copies what it keeps.
        unsafe { api!(RedisModule_Replicate(self.0, command.as_ptr(), format, key.0, start, len)) };
    }

    /// Sends `PERSIST key`, as [`Ctx::replicate`] sends a change.
    pub fn replicate_persist(self, key: KeyName<'_>) {
        unsafe { api!(RedisModule_Replicate(self.0, c"PERSIST".as_ptr(), c"s".as_ptr(), key.0)) };
    }

    /// Sends the command that runs as it came.
    pub fn replicate_verbatim(self) {
        unsafe { api!(RedisModule_ReplicateVerbatim(self.0)) };
    }

    /// Announces a module event on the keyspace channels.
    pub fn notify(self, event: &CStr, key: KeyName<'_>) {
        self.notify_as(rm::REDISMODULE_NOTIFY_MODULE, event, key);
    }

    /// Announces what happens to any key.
    pub fn notify_generic(self, event: &CStr, key: KeyName<'_>) {
        self.notify_as(rm::REDISMODULE_NOTIFY_GENERIC, event, key);
    }

    fn notify_as(self, class: c_int, event: &CStr, key: KeyName<'_>) {
        unsafe { api!(RedisModule_NotifyKeyspaceEvent(self.0, class, event.as_ptr(), key.0)) };
    }

    /// Publishes a message: `sharded` on the channel's own shard of a cluster.
    pub fn publish(self, channel: &[u8], message: &[u8], sharded: bool) {
        let (channel, message) = (self.string(channel), self.string(message));
        let (channel, message) = (channel.name().0, message.name().0);
        unsafe {
            if sharded {
                api!(RedisModule_PublishMessageShard(self.0, channel, message));
            } else {
                api!(RedisModule_PublishMessage(self.0, channel, message));
            }
        }
    }
}
