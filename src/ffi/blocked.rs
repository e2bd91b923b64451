//! Blocked clients: blocking, answering, and the end of connections. The rest of the module decides which
//! client waits, and for how long. When the module blocks a client, it sets no timeout of the server, and
//! ends the wait itself. If a timeout of the server fires at the moment of a grant, Redis 7.0 loses the
//! reply, and Redis 7.2 crashes.

use std::ffi::{c_int, c_void};

use dlock_protocol::reply::Sink;

use super::ctx::Ctx;
use super::raw::{api, rm};
use super::upcalls::{Handle, Upcalls, enter};
use super::user::Waited;

/// Blocks the client of the running command. Must not be called if [`super::Flags::DENY_BLOCKING`] is set.
/// `None` if the server refuses, as Valkey does from 8.1 on for a client with subscriptions.
pub fn block<M: Upcalls>(ctx: Ctx<'_>) -> Option<Handle> {
    // CLIENT UNBLOCK needs a timeout callback. Before Redis 7.4 and Valkey 8, a CLIENT UNBLOCK at the moment
    // of a grant has the same faults as a timeout. So the module sets the callback only on newer servers,
    // which have RedisModule_ClusterKeySlot. On older ones CLIENT UNBLOCK returns 0, and DLOCK.CANCEL ends
    // the wait.
    // SAFETY: the context is that of a client's command; the callbacks are the functions below.
    unsafe {
        let on_timeout: rm::RedisModuleCmdFunc = match rm::RedisModule_ClusterKeySlot {
            Some(_) => Some(on_unblocked::<M>),
            None => None,
        };
        let handle =
            api!(RedisModule_BlockClient(ctx.0, Some(on_reply::<M>), on_timeout, Some(on_free::<M>), 0));
        if handle.is_null() {
            return None;
        }
        api!(RedisModule_SetDisconnectCallback(handle, Some(on_gone::<M>)));
        Some(Handle(handle))
    }
}

/// Unblocks a client. The server delivers the answer later in the same turn of the event loop, or gives it
/// back through [`Upcalls::reply_reclaimed`]. The caller passes no answer if the client has disconnected,
/// or the server itself has replied to it.
pub fn unblock<M: Upcalls>(_: Ctx<'_>, handle: Handle, answer: Option<Box<M::Answer>>) {
    let answer = answer.map_or(std::ptr::null_mut(), Box::into_raw);
    // SAFETY: the handle came from `block` and is unblocked once; the server gives the box back to `on_free`.
    unsafe { api!(RedisModule_UnblockClient(handle.0, answer.cast())) };
}

unsafe extern "C" fn on_reply<M: Upcalls>(
    ctx: *mut rm::RedisModuleCtx,
    argv: *mut *mut rm::RedisModuleString,
    argc: c_int,
) -> c_int {
    enter((), |module: &M| {
        // SAFETY: the context is valid for this call, and its private data is the box from `unblock`.
        unsafe {
            let answer = api!(RedisModule_GetBlockedClientPrivateData(ctx)).cast::<M::Answer>();
            match answer.as_mut() {
                Some(answer) => module.deliver(Ctx::new(ctx), answer, Waited { argv, argc }),
                None => Ctx::new(ctx).null(),
            }
        }
    });
    rm::REDISMODULE_OK as c_int
}

/// The server calls this for CLIENT UNBLOCK. Replies with null, as after a timeout.
unsafe extern "C" fn on_unblocked<M: Upcalls>(
    ctx: *mut rm::RedisModuleCtx,
    _: *mut *mut rm::RedisModuleString,
    _: c_int,
) -> c_int {
    enter((), |module: &M| {
        // SAFETY: the context is valid for this call.
        unsafe {
            Ctx::new(ctx).null();
            module.gone(Handle(api!(RedisModule_GetBlockedClientHandle(ctx))));
        }
    });
    rm::REDISMODULE_OK as c_int
}

/// Takes an answer back from the server. The context may be without a client, so it is not used.
unsafe extern "C" fn on_free<M: Upcalls>(_: *mut rm::RedisModuleCtx, answer: *mut c_void) {
    enter((), |module: &M| {
        if !answer.is_null() {
            // SAFETY: this is the box from `unblock`. The server gives it back once.
            module.reply_reclaimed(*unsafe { Box::from_raw(answer.cast::<M::Answer>()) });
        }
    });
}

/// The server calls this when the connection has closed, or when the server itself has ended the wait: by
/// CLIENT UNBLOCK ERROR, or because its role has changed.
unsafe extern "C" fn on_gone<M: Upcalls>(
    _: *mut rm::RedisModuleCtx,
    handle: *mut rm::RedisModuleBlockedClient,
) {
    enter((), |module: &M| module.gone(Handle(handle)));
}
