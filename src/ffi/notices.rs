//! The server's events, and the timer. The handlers only record what happened. The background job changes
//! keys later.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;

use super::ctx::Ctx;
use super::raw::{api, bytes_of, rm};
use super::upcalls::{Notice, Upcalls, enter};

/// Subscribes to the server's events. Returns false if the server refuses one.
pub fn subscribe<M: Upcalls>(ctx: Ctx<'_>) -> bool {
    let events = [
        rm::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
        rm::REDISMODULE_EVENT_FLUSHDB,
        rm::REDISMODULE_EVENT_SWAPDB,
        rm::REDISMODULE_EVENT_LOADING,
        rm::REDISMODULE_EVENT_CLIENT_CHANGE,
        rm::REDISMODULE_EVENT_CRON_LOOP,
        rm::REDISMODULE_EVENT_FORK_CHILD,
        rm::REDISMODULE_EVENT_CONFIG,
        rm::REDISMODULE_EVENT_MODULE_CHANGE,
    ];
    events.into_iter().all(|id| {
        // Data version 1 is known to every server.
        let event = rm::RedisModuleEvent { id, dataver: 1 };
        // SAFETY: called in OnLoad.
        unsafe { api!(RedisModule_SubscribeToServerEvent(ctx.0, event, Some(on_event::<M>))) == 0 }
    })
}

/// Subscribes to evictions. Returns false if the server refuses. The subscription adds
/// about 10 instructions to the 3,000 to 4,500 of each write command.
pub fn subscribe_to_evictions<M: Upcalls>(ctx: Ctx<'_>) -> bool {
    let class = rm::REDISMODULE_NOTIFY_EVICTED as c_int;
    // SAFETY: called in OnLoad.
    unsafe { api!(RedisModule_SubscribeToKeyspaceEvents(ctx.0, class, Some(on_eviction::<M>))) == 0 }
}

unsafe extern "C" fn on_eviction<M: Upcalls>(
    ctx: *mut rm::RedisModuleCtx,
    _class: c_int,
    _event: *const c_char,
    key: *mut rm::RedisModuleString,
) -> c_int {
    let errno = Errno::last_raw();
    enter((), |module: &M| {
        // SAFETY: the context and the name are valid for this call.
        let (ctx, key) = unsafe { (Ctx::new(ctx), bytes_of(key)) };
        module.evicted(ctx, ctx.db(), key);
    });
    Errno::set_raw(errno);
    rm::REDISMODULE_OK as c_int
}

/// Switches the notices of each turn of the event loop on or off. The notices cost time in each turn, so they
/// are off while no client waits. Returns whether they were on.
///
/// May be called in a tick ([`Notice::Tick`]). During a tick, the server walks its list of listeners, and
/// keeps a pointer to the listener after the one for ticks. That is a listener of [`subscribe`], and never
/// the one for turns, which is added later. So the removal of the one for turns leaves the server's pointer
/// valid.
pub fn watch_turns<M: Upcalls>(ctx: Ctx<'_>, on: bool) -> bool {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    let was_on = WATCHED.swap(on, Ordering::Relaxed);
    if was_on == on {
        return was_on;
    }
    let event = rm::RedisModuleEvent { id: rm::REDISMODULE_EVENT_EVENTLOOP, dataver: 1 };
    let callback: rm::RedisModuleEventCallback = if on { Some(on_event::<M>) } else { None };
    // SAFETY: the context is valid.
    unsafe { api!(RedisModule_SubscribeToServerEvent(ctx.0, event, callback)) };
    was_on
}

unsafe extern "C" fn on_event<M: Upcalls>(
    ctx: *mut rm::RedisModuleCtx,
    event: rm::RedisModuleEvent,
    sub: u64,
    data: *mut c_void,
) {
    let errno = Errno::last_raw();
    enter((), |module: &M| {
        // SAFETY: `data` has the structure that the server documents for this event.
        if let Some(notice) = unsafe { notice(event.id, sub, data) } {
            // SAFETY: the context is valid for this call.
            module.notice(unsafe { Ctx::new(ctx) }, notice);
        }
    });
    Errno::set_raw(errno);
}

/// # Safety
/// `data` points to the structure that belongs to the event.
unsafe fn notice(id: u64, sub: u64, data: *mut c_void) -> Option<Notice> {
    // SAFETY: by contract, in each arm.
    Some(match (id, sub) {
        (
            rm::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
            rm::REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER,
        ) => Notice::BecameMaster,
        (rm::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, _) => Notice::BecameReplica,
        (rm::REDISMODULE_EVENT_FLUSHDB, rm::REDISMODULE_SUBEVENT_FLUSHDB_START) => {
            let info = unsafe { &*data.cast::<rm::RedisModuleFlushInfo>() };
            Notice::Flushing((info.dbnum >= 0).then_some(info.dbnum))
        }
        (rm::REDISMODULE_EVENT_SWAPDB, _) => {
            let info = unsafe { &*data.cast::<rm::RedisModuleSwapDbInfo>() };
            Notice::Swapped(info.dbnum_first, info.dbnum_second)
        }
        (rm::REDISMODULE_EVENT_LOADING, rm::REDISMODULE_SUBEVENT_LOADING_REPL_START) => {
            Notice::Loading { from_master: true }
        }
        (
            rm::REDISMODULE_EVENT_LOADING,
            rm::REDISMODULE_SUBEVENT_LOADING_RDB_START | rm::REDISMODULE_SUBEVENT_LOADING_AOF_START,
        ) => Notice::Loading { from_master: false },
        (rm::REDISMODULE_EVENT_LOADING, sub) => {
            Notice::LoadingEnded { complete: sub != rm::REDISMODULE_SUBEVENT_LOADING_FAILED }
        }
        (rm::REDISMODULE_EVENT_CLIENT_CHANGE, rm::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED) => {
            Notice::ClientGone(unsafe { &*data.cast::<rm::RedisModuleClientInfo>() }.id)
        }
        (rm::REDISMODULE_EVENT_CRON_LOOP, _) => Notice::Tick,
        (rm::REDISMODULE_EVENT_EVENTLOOP, rm::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP) => {
            Notice::TurnEnds
        }
        (rm::REDISMODULE_EVENT_EVENTLOOP, rm::REDISMODULE_SUBEVENT_EVENTLOOP_AFTER_SLEEP) => Notice::NextTurn,
        (rm::REDISMODULE_EVENT_FORK_CHILD, rm::REDISMODULE_SUBEVENT_FORK_CHILD_BORN) => Notice::Forked,
        (rm::REDISMODULE_EVENT_CONFIG, _) => Notice::Configured,
        (rm::REDISMODULE_EVENT_MODULE_CHANGE, _) => Notice::ModulesChanged,
        _ => return None,
    })
}

/// An armed timer of the server. It runs by the wall clock, which can jump. When it fires, the module
/// reads its own clock (`src/clock.rs`), which never jumps, to find what is due.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Timer(u64);

/// Arms a timer that fires once, in `ms`.
pub fn arm<M: Upcalls>(ctx: Ctx<'_>, ms: u64) -> Timer {
    // SAFETY: the context is valid; the callback needs no data.
    unsafe {
        let id = api!(RedisModule_CreateTimer(ctx.0, ms as i64, Some(on_timer::<M>), std::ptr::null_mut()));
        // Redis 7.0 first computes how long the event loop sleeps, then answers unblocked clients. A timer
        // that is armed during these answers would fire only after that sleep. The sleep can last as long as
        // a tick (the option hz). An empty one-shot event wakes the event loop at once.
        if ms == 0 {
            next_turn_at_once();
        }
        Timer(id)
    }
}

/// Makes the next turn of the event loop begin at once, even if the server has decided to sleep.
pub fn next_turn_at_once() {
    // SAFETY: the callback needs no data.
    unsafe {
        if let Some(add) = rm::RedisModule_EventLoopAddOneShot {
            add(Some(wake_up), std::ptr::null_mut());
        }
    }
}

/// Disarms a timer that has not fired. Must not be called for the timer that is firing: the server frees it.
pub fn disarm(ctx: Ctx<'_>, timer: Timer) {
    // SAFETY: the context is valid; an unknown id is refused by the server.
    unsafe { api!(RedisModule_StopTimer(ctx.0, timer.0, std::ptr::null_mut())) };
}

unsafe extern "C" fn on_timer<M: Upcalls>(ctx: *mut rm::RedisModuleCtx, _: *mut c_void) {
    // SAFETY: the context is valid for this call.
    enter((), |module: &M| module.on_timer(unsafe { Ctx::new(ctx) }));
}

unsafe extern "C" fn wake_up(_: *mut c_void) {}
