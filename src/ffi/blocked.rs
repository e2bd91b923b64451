//! Clients that wait: blocked, answered, or gone. Who waits for what, and for how long, is none of its
//! business: the server's own time limits race with a grant (a lost reply up to 7.0, a crash in 7.2), so none
//! is ever given to it.

use std::ffi::{c_int, c_void};

use super::ctx::Ctx;
use super::raw::{api, rm};
use super::upcalls::{Handle, Upcalls, enter};
use super::user::Waited;

/// Blocks the client whose command runs; not allowed where [`super::Flags::DENY_BLOCKING`] is set. None where
/// the server refuses, as Valkey does from 8.1 on for a client that is subscribed to something.
pub fn block<M: Upcalls>(ctx: Ctx<'_>) -> Option<Handle> {
    // Where the server handles CLIENT UNBLOCK beside a grant correctly (Redis 7.4, Valkey 8: told by a
    // function they have in common) it may be used; before, it answers 0, and DLOCK.CANCEL does it. SAFETY:
    // the context is that of a client's command; the callbacks are those below.
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

/// Ends the block. The answer is delivered later in the same turn of the event loop, or comes back by
/// [`Upcalls::reply_reclaimed`]. Without one the client is gone, or answered already.
pub fn unblock<M: Upcalls>(_: Ctx<'_>, handle: Handle, answer: Option<Box<M::Answer>>) {
    let answer = answer.map_or(std::ptr::null_mut(), Box::into_raw);
    // SAFETY: the handle came from `block` and is used for this once; the server gives the box back to
    // `on_free`.
    unsafe { api!(RedisModule_UnblockClient(handle.0, answer.cast())) };
}

unsafe extern "C" fn on_reply<M: Upcalls>(
    ctx: *mut rm::RedisModuleCtx,
    argv: *mut *mut rm::RedisModuleString,
    argc: c_int,
) -> c_int {
    enter((), |module: &M| {
        // SAFETY: the context is valid for this call, and its private data is what `unblock` gave.
        unsafe {
            let answer = api!(RedisModule_GetBlockedClientPrivateData(ctx)).cast::<M::Answer>();
            match answer.as_mut() {
                Some(answer) => module.deliver(Ctx::new(ctx), answer, Waited { argv, argc }),
                None => Ctx::new(ctx).reply_null(),
            }
        }
    });
    rm::REDISMODULE_OK as c_int
}

/// CLIENT UNBLOCK, as if it had timed out.
unsafe extern "C" fn on_unblocked<M: Upcalls>(
    ctx: *mut rm::RedisModuleCtx,
    _: *mut *mut rm::RedisModuleString,
    _: c_int,
) -> c_int {
    enter((), |module: &M| {
        // SAFETY: the context is valid for this call.
        unsafe {
            Ctx::new(ctx).reply_null();
            module.gone(Handle(api!(RedisModule_GetBlockedClientHandle(ctx))));
        }
    });
    rm::REDISMODULE_OK as c_int
}

/// The answer comes back. There may be no client in this context: nothing may be called with it.
unsafe extern "C" fn on_free<M: Upcalls>(_: *mut rm::RedisModuleCtx, answer: *mut c_void) {
    enter((), |module: &M| {
        if !answer.is_null() {
            // SAFETY: the box that `unblock` gave, given back once.
            module.reply_reclaimed(*unsafe { Box::from_raw(answer.cast::<M::Answer>()) });
        }
    });
}

/// The connection closed, or the server made the client give up (CLIENT UNBLOCK ERROR, a change of role).
unsafe extern "C" fn on_gone<M: Upcalls>(
    _: *mut rm::RedisModuleCtx,
    handle: *mut rm::RedisModuleBlockedClient,
) {
    enter((), |module: &M| module.gone(Handle(handle)));
}
