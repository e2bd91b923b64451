//! The context of a callback: replies, server state, clients, replication, keyspace events, the server's log.

use std::ffi::{CStr, c_int};
use std::marker::PhantomData;

use dlock_protocol::reply::Sink;

use super::raw::{KeyName, OwnedString, api, c_string, rm};

/// The context that the server passes to each callback of the module. Valid while that callback runs.
#[derive(Clone, Copy)]
pub struct Ctx<'a>(pub(super) *mut rm::RedisModuleCtx, PhantomData<&'a ()>);

/// Calls a server command. The arguments must match the format: see RM_Call. `None` if the server refuses the
/// call.
macro_rules! call {
    ($ctx:expr, $command:expr, $format:expr $(, $arg:expr)*) => {{
        let reply = $crate::ffi::raw::api!(
            RedisModule_Call($ctx.0, $command.as_ptr(), $format.as_ptr() $(, $arg)*)
        );
        (!reply.is_null()).then(|| $crate::ffi::ctx::Reply(reply))
    }};
}
pub(super) use call;

bitflags::bitflags! {
    /// The flags of the server and of the current call that the module needs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Flags: i32 {
        const MASTER = rm::REDISMODULE_CTX_FLAGS_MASTER as i32;
        const CLUSTER = rm::REDISMODULE_CTX_FLAGS_CLUSTER as i32;
        const AOF = rm::REDISMODULE_CTX_FLAGS_AOF as i32;
        const LOADING = rm::REDISMODULE_CTX_FLAGS_LOADING as i32;
        /// The command came over the replication link.
        const REPLICATED = rm::REDISMODULE_CTX_FLAGS_REPLICATED as i32;
        const LUA = rm::REDISMODULE_CTX_FLAGS_LUA as i32;
        const MULTI = rm::REDISMODULE_CTX_FLAGS_MULTI as i32;
        const DENY_BLOCKING = rm::REDISMODULE_CTX_FLAGS_DENY_BLOCKING as i32;
    }
}

bitflags::bitflags! {
    /// The flags of the option `notify-keyspace-events` that the module needs: which events the server
    /// announces, and on which channels.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct EventFlags: i32 {
        /// Module events.
        const MODULE = rm::REDISMODULE_NOTIFY_MODULE;
        /// Generic events, such as `del`.
        const GENERIC = rm::REDISMODULE_NOTIFY_GENERIC;
        /// Events are published on the channel of their key.
        const KEYSPACE = rm::REDISMODULE_NOTIFY_KEYSPACE;
    }
}

#[derive(Clone, Copy)]
pub enum LogLevel {
    Notice,
    Warning,
}

impl<'a> Ctx<'a> {
    /// # Safety
    /// `ctx` came from the server and is valid for `'a`.
    pub(super) unsafe fn new(ctx: *mut rm::RedisModuleCtx) -> Self {
        Ctx(ctx, PhantomData)
    }

    /// Replies with an error. `text` begins with the error word, such as ERR.
    pub fn reply_error(self, text: &str) {
        let text = c_string(text);
        // SAFETY: (here and in every method below) the context is valid by construction, and pointers into
        // arguments outlive the call; the server copies data that it retains.
        unsafe { api!(RedisModule_ReplyWithError(self.0, text.as_ptr())) };
    }

    pub fn reply_simple(self, text: &CStr) {
        unsafe { api!(RedisModule_ReplyWithSimpleString(self.0, text.as_ptr())) };
    }

    pub fn flags(self) -> Flags {
        Flags::from_bits_truncate(unsafe { api!(RedisModule_GetContextFlags(self.0)) })
    }

    /// Returns the flags of the server, without those of the current call.
    pub fn server_flags(self) -> Flags {
        // SAFETY: the server accepts a null context, and then returns its own flags only.
        Flags::from_bits_truncate(unsafe { api!(RedisModule_GetContextFlags(std::ptr::null_mut())) })
    }

    /// Returns a context that outlives this call, for callbacks that get no context.
    pub fn detached(self) -> Ctx<'static> {
        // SAFETY: the server creates the context for the module, which never frees it.
        unsafe { Ctx::new(api!(RedisModule_GetDetachedThreadSafeContext(self.0))) }
    }

    pub fn db(self) -> i32 {
        unsafe { api!(RedisModule_GetSelectedDb(self.0)) }
    }

    /// Selects a database for the following calls and their replication.
    pub fn select_db(self, db: i32) {
        unsafe { api!(RedisModule_SelectDb(self.0, db)) };
    }

    /// Returns the cluster slot of a key or channel. `None` if the server refuses CLUSTER KEYSLOT.
    pub fn slot_of(self, name: &[u8]) -> Option<i64> {
        unsafe {
            let reply = call!(self, c"CLUSTER", c"cb", c"KEYSLOT".as_ptr(), name.as_ptr(), name.len())?;
            Some(api!(RedisModule_CallReplyInteger(reply.0)))
        }
    }

    /// Returns whether the cluster is down, so that this node serves no key.
    pub fn cluster_is_down(self) -> bool {
        let info = unsafe { call!(self, c"CLUSTER", c"c", c"INFO".as_ptr()) };
        info.is_some_and(|info| info.bytes().is_some_and(|text| text.starts_with(b"cluster_state:fail")))
    }

    /// Reports a change of the key to WATCH and to client-side caches.
    pub fn signal_modified(self, key: KeyName<'_>) {
        unsafe { api!(RedisModule_SignalModifiedKey(self.0, key.0)) };
    }

    pub fn string(self, bytes: &[u8]) -> OwnedString {
        OwnedString::new(bytes)
    }

    pub fn log(self, level: LogLevel, text: &str) {
        let level = match level {
            LogLevel::Notice => c"notice",
            LogLevel::Warning => c"warning",
        };
        let text = c_string(text);
        unsafe { api!(RedisModule_Log(self.0, level.as_ptr(), c"%s".as_ptr(), text.as_ptr())) };
    }

    /// Returns whether the module may write outside of a command. Replicas and loading servers must not
    /// write, nor may a server that is paused: by CLIENT PAUSE, by FAILOVER, or in a shutdown that waits for
    /// replicas. A write on a paused server would fail an assertion when it is replicated, and crash the
    /// server.
    pub fn may_write(self) -> bool {
        let flags = self.flags();
        flags.contains(Flags::MASTER)
            && !flags.contains(Flags::LOADING)
            && unsafe { api!(RedisModule_AvoidReplicaTraffic()) } == 0
    }

    /// Returns a number from a section of INFO.
    pub fn info_number(self, section: &str, field: &str) -> Option<i64> {
        let (section, field) = (c_string(section), c_string(field));
        let mut status = 0;
        // SAFETY: the context is valid; the data is freed at once.
        let number = unsafe {
            let data = api!(RedisModule_GetServerInfo(self.0, section.as_ptr()));
            let number = api!(RedisModule_ServerInfoGetFieldSigned(data, field.as_ptr(), &mut status));
            api!(RedisModule_FreeServerInfo(self.0, data));
            number
        };
        (status == rm::REDISMODULE_OK as c_int).then_some(number)
    }

    /// Returns whether the server is to close the connection of `client` after writing all replies to it, as
    /// it does after QUIT.
    pub fn closes_after_reply(self, client: u64) -> bool {
        let (list, id) = (c"LIST".as_ptr(), c"ID".as_ptr());
        let reply = unsafe { call!(self, c"CLIENT", c"ccl", list, id, client as i64) };
        let line = reply.as_ref().and_then(|reply| reply.bytes()).unwrap_or_default();
        let flags = line.split(|byte| *byte == b' ').find_map(|field| field.strip_prefix(b"flags="));
        flags.is_some_and(|flags| flags.contains(&b'c'))
    }

    /// Returns `maxmemory-policy`. Empty if INFO does not contain it.
    pub fn eviction_policy(self) -> String {
        // SAFETY: the context is valid; the data is freed after the text has been copied.
        unsafe {
            let data = api!(RedisModule_GetServerInfo(self.0, c"memory".as_ptr()));
            let value = api!(RedisModule_ServerInfoGetFieldC(data, c"maxmemory_policy".as_ptr()));
            let text = (!value.is_null()).then(|| CStr::from_ptr(value).to_string_lossy().into_owned());
            api!(RedisModule_FreeServerInfo(self.0, data));
            text.unwrap_or_default()
        }
    }

    /// Returns the number of loaded modules, including this one.
    pub fn count_modules(self) -> Option<usize> {
        unsafe {
            let reply = call!(self, c"MODULE", c"c", c"LIST".as_ptr())?;
            Some(api!(RedisModule_CallReplyLength(reply.0)))
        }
    }

    /// Returns the flags that `notify-keyspace-events` has now.
    pub fn event_flags(self) -> EventFlags {
        EventFlags::from_bits_truncate(unsafe { api!(RedisModule_GetNotifyKeyspaceEvents()) })
    }
}

/// Replies of the protocol are written to the client of the command.
impl Sink for Ctx<'_> {
    #[inline]
    fn int(&mut self, number: i64) {
        unsafe { api!(RedisModule_ReplyWithLongLong(self.0, number)) };
    }

    fn null(&mut self) {
        unsafe { api!(RedisModule_ReplyWithNull(self.0)) };
    }

    fn bulk(&mut self, bytes: &[u8]) {
        unsafe { api!(RedisModule_ReplyWithStringBuffer(self.0, bytes.as_ptr().cast(), bytes.len())) };
    }

    fn array(&mut self, len: usize) {
        unsafe { api!(RedisModule_ReplyWithArray(self.0, len as _)) };
    }

    /// RESP2 clients get a flat array.
    fn map(&mut self, len: usize) {
        unsafe { api!(RedisModule_ReplyWithMap(self.0, len as _)) };
    }
}

// Clients.

impl Ctx<'_> {
    /// Returns the id of the client that sent the command. 0 means that no client sent it.
    pub fn client_id(self) -> u64 {
        unsafe { api!(RedisModule_GetClientId(self.0)) }
    }

    /// Returns the peer address as CLIENT LIST shows it. `None` if there is no connection, or it has closed.
    pub fn address(self, client: u64) -> Option<String> {
        if !self.is_connected(client) {
            return None;
        }
        // SAFETY: zero bytes are a valid value of this C structure; the server ends the text with a NUL.
        let (found, ip, port) = unsafe {
            let mut info = std::mem::zeroed::<rm::RedisModuleClientInfo>();
            info.version = rm::REDISMODULE_CLIENTINFO_VERSION.into();
            let found = api!(RedisModule_GetClientInfoById((&raw mut info).cast(), client));
            (found, CStr::from_ptr(info.addr.as_ptr()).to_string_lossy().into_owned(), info.port)
        };
        let address = if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") };
        (found == rm::REDISMODULE_OK as c_int).then_some(address)
    }

    /// Returns whether a client id belongs to an open connection. Asks for the client's user name, because
    /// the server returns one only for such an id.
    ///
    /// False for the internal client on which scripts and the commands inside DLOCK.GUARD run, although this
    /// client has an id. Valkey 9 crashes if the module asks for the address of this client.
    pub fn is_connected(self, client: u64) -> bool {
        let user = unsafe { api!(RedisModule_GetClientUserNameById(self.0, client)) };
        if !user.is_null() {
            unsafe { api!(RedisModule_FreeString(self.0, user)) };
        }
        !user.is_null()
    }
}

// Output to replicas, the append only file, keyspace listeners and subscribers.

impl Ctx<'_> {
    /// Replicates `command key change` to replicas and the append only file when the running command ends.
    pub fn replicate(self, command: &CStr, key: KeyName<'_>, change: &[u8]) {
        let format = c"sb".as_ptr();
        let (start, len) = (change.as_ptr(), change.len());
        unsafe { api!(RedisModule_Replicate(self.0, command.as_ptr(), format, key.0, start, len)) };
    }

    /// Replicates `PERSIST key`, like [`Ctx::replicate`].
    pub fn replicate_persist(self, key: KeyName<'_>) {
        unsafe { api!(RedisModule_Replicate(self.0, c"PERSIST".as_ptr(), c"s".as_ptr(), key.0)) };
    }

    /// Replicates the running command verbatim.
    pub fn replicate_verbatim(self) {
        unsafe { api!(RedisModule_ReplicateVerbatim(self.0)) };
    }

    /// Announces an event of one class on the keyspace channels.
    pub fn notify(self, class: EventFlags, event: &CStr, key: KeyName<'_>) {
        unsafe { api!(RedisModule_NotifyKeyspaceEvent(self.0, class.bits(), event.as_ptr(), key.0)) };
    }

    /// Publishes a message. `sharded` means only in the shard of the channel's cluster slot.
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

/// The reply to a call of a server command. Freed on drop.
pub(super) struct Reply(pub(super) *mut rm::RedisModuleCallReply);

impl Reply {
    /// Returns the reply as RESP, the protocol of clients. Empty if the command gave no reply.
    pub(super) fn raw(&self) -> &[u8] {
        let mut len = 0;
        // SAFETY: the reply is valid, and its bytes live as long as the reply.
        unsafe {
            let start = api!(RedisModule_CallReplyProto(self.0, &mut len));
            if start.is_null() { &[] } else { std::slice::from_raw_parts(start.cast(), len) }
        }
    }

    /// Returns the error text, including the error word. `None` if the reply is not an error.
    pub(super) fn error(&self) -> Option<String> {
        // SAFETY: the reply is valid.
        let kind = unsafe { api!(RedisModule_CallReplyType(self.0)) };
        (kind == rm::REDISMODULE_REPLY_ERROR as c_int)
            .then(|| String::from_utf8_lossy(self.bytes().unwrap_or_default()).into_owned())
    }

    /// Returns the bytes of a string reply. `None` if the reply is not a string.
    fn bytes(&self) -> Option<&[u8]> {
        let mut len = 0;
        // SAFETY: the result is null if the reply is not a string; otherwise it lives as long as the reply.
        unsafe {
            let start = api!(RedisModule_CallReplyStringPtr(self.0, &mut len));
            (!start.is_null()).then(|| std::slice::from_raw_parts(start.cast(), len))
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        // SAFETY: the reply is freed once.
        unsafe { api!(RedisModule_FreeCallReply(self.0)) };
    }
}
