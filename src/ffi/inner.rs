//! Commands that carry another command in their arguments: GUARD and FENCED. This file reports the keys of
//! both commands to the server, and runs the carried command. It also accesses the gate of FENCED: a string
//! key with the greatest fence that this gate has seen.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_longlong};

use nix::errno::Errno;

use super::commands::{Args, KeyUse, RawCall, run};
use super::ctx::{Ctx, call};
use super::key::WrongType;
use super::raw::{KeyName, api, bytes_of, catch_panic, rm};
use super::upcalls::Upcalls;
use super::verdict::has_dry_runs;

/// Position of the carried command, with the carrier's name at 0. The key of the carrier is at 1.
const CARRIED_AT: usize = 3;

/// Like [`run`], for a command that carries another one. The server also calls this function to learn the
/// keys of both commands. `key` is the use of the carrier's own key.
#[inline(always)]
pub fn run_carrier<M: Upcalls>(
    call: RawCall<'_>,
    command: impl for<'a> Fn(&'a M, Ctx<'a>, &Args<'a>) -> Result<(), String>,
    key: KeyUse,
) -> c_int {
    // SAFETY: the context is valid.
    if unsafe { rm::RedisModule_IsKeysPositionRequest.is_none_or(|asks| asks(call.ctx.0) == 0) } {
        return run(call, command);
    }
    catch_panic((), || report_keys(call, key));
    rm::REDISMODULE_OK as c_int
}

thread_local! {
    /// Set while the keys of a carried command are collected. A carrier within a carrier reports one key
    /// only, so that a chain of carriers, which could have any length, is not followed.
    static COLLECTING_KEYS: Cell<bool> = const { Cell::new(false) };
}

/// Reports the keys of a command. The server may ask on any thread, before the command runs, so this function
/// does not access the module.
fn report_keys(RawCall { ctx, argv }: RawCall<'_>, key: KeyUse) {
    let (mut count, mut flags) = (0, std::ptr::null_mut());
    // SAFETY: the context is that of a request for keys, with the arguments of the command. The server
    // returns the positions and their flags as two lists of `count` elements, which are freed below.
    unsafe {
        api!(RedisModule_KeyAtPosWithFlags(ctx.0, 1, key.flags() as c_int));
        let Some(carried @ [_, ..]) = argv.get(CARRIED_AT..) else { return };
        if COLLECTING_KEYS.replace(true) {
            return;
        }
        let (start, len) = (carried.as_ptr().cast_mut(), carried.len() as c_int);
        let inner = api!(RedisModule_GetCommandKeysWithFlags(ctx.0, start, len, &mut count, &mut flags));
        COLLECTING_KEYS.set(false);
        if inner.is_null() {
            return;
        }
        for at in 0..count as usize {
            let (position, flags) = (*inner.add(at) + CARRIED_AT as c_int, *flags.add(at));
            api!(RedisModule_KeyAtPosWithFlags(ctx.0, position, flags));
        }
        api!(RedisModule_Free(inner.cast()));
        api!(RedisModule_Free(flags.cast()));
    }
}

/// The checks that the server makes before it runs a carried command. In any case the server also checks the
/// user's rights and the memory in use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Checks {
    /// The command must be allowed in scripts.
    AsInScripts,
    AnyCommand,
}

/// The reason why the server did not run a command.
pub enum Refused {
    /// The command is not allowed in scripts, or its name cannot be that of a command.
    NotAllowed,
    Error(String),
}

impl Ctx<'_> {
    /// Runs the carried command as if the client had sent it alone, and sends its reply. The command cannot
    /// block.
    pub fn run_carried(self, args: &Args<'_>, checks: Checks) -> Result<(), Refused> {
        // `!` replicates the command, C checks the user's rights, S refuses what scripts may not run, M
        // checks the memory, E returns errors as replies, 0 selects the client's protocol, v passes a list.
        let format = match checks {
            Checks::AsInScripts => c"!CSME0v",
            Checks::AnyCommand => c"!CME0v",
        };
        let [name, rest @ ..] = args.argv.get(CARRIED_AT..).unwrap_or_default() else {
            return Err(Refused::NotAllowed);
        };
        // SAFETY: the context and the arguments are valid; a server string ends in a NUL. No name of a
        // command contains a NUL. The reply is freed after it was sent.
        unsafe {
            let bytes = bytes_of(*name);
            let name = CStr::from_ptr(bytes.as_ptr().cast());
            if name.count_bytes() != bytes.len() {
                return Err(Refused::NotAllowed);
            }
            let reply = call!(self, name, format, rest.as_ptr(), rest.len());
            let reply = reply.ok_or_else(|| Refused::Error(refused()))?;
            // The first byte shows whether the reply is an error. `RedisModule_CallReplyType` would parse the
            // whole reply.
            let error = match reply.raw().first() {
                None => Some(self.pending_error()),
                Some(b'-') => reply.error(),
                Some(_) => None,
            };
            match error {
                Some(text) => Err(Refused::of(text)),
                None if api!(RedisModule_ReplyWithCallReply(self.0, reply.0)) == 0 => Ok(()),
                None => {
                    Err(Refused::Error("ERR the reply does not fit the protocol of this connection".into()))
                }
            }
        }
    }

    /// Returns the error of a command that the server ran and that gave an empty reply. If GETDEL or GETSET
    /// fails because the key holds no string, Valkey 9 returns the error as the reply to the next call. So
    /// this function makes another call (PING) to take the error.
    fn pending_error(self) -> String {
        // SAFETY: the context is valid; the reply is freed at once.
        let next = unsafe { call!(self, c"PING", c"") };
        next.and_then(|reply| reply.error())
            .unwrap_or_else(|| "ERR the server does not say what came of the command".into())
    }

    /// Runs and replicates `SET key number`. With `check_memory`, a server that is out of memory refuses it.
    pub fn set_number(self, key: KeyName<'_>, number: u64, check_memory: bool) -> Result<(), String> {
        let format: &CStr = if check_memory { c"!MEsl" } else { c"!Esl" };
        // SAFETY: the context and the key are valid; the reply is freed at once.
        let reply = unsafe { call!(self, c"SET", format, key.0, number as c_longlong) };
        reply.ok_or_else(refused)?.error().map_or(Ok(()), Err)
    }

    /// Reads a key that holds a string. `None` is passed to the reader if there is no key.
    pub fn read_string<R>(
        self,
        key: KeyName<'_>,
        read: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, WrongType> {
        // SAFETY: the context and the key are valid; the bytes are not changed before the key is closed,
        // because nothing else runs until then. A null key may be closed.
        unsafe {
            let open = api!(RedisModule_OpenKey(self.0, key.0, rm::REDISMODULE_READ as c_int));
            const EMPTY: c_int = rm::REDISMODULE_KEYTYPE_EMPTY as c_int;
            const STRING: c_int = rm::REDISMODULE_KEYTYPE_STRING as c_int;
            let done = match api!(RedisModule_KeyType(open)) {
                EMPTY => Ok(read(None)),
                STRING => {
                    let mut len = 0;
                    let mode = rm::REDISMODULE_READ as c_int;
                    let start = api!(RedisModule_StringDMA(open, &mut len, mode)).cast::<u8>();
                    Ok(read(Some(std::slice::from_raw_parts(start, len))))
                }
                _ => Err(WrongType),
            };
            api!(RedisModule_CloseKey(open));
            done
        }
    }

    /// Returns whether the server runs a carried command with the rights of the client's user. It then also
    /// checks the keys that a script or SORT reads. Redis 7.0 only checks whether the user may send the
    /// command. The servers that use the user's rights are those that support dry runs (checks of a command
    /// without running it).
    pub fn calls_run_as_user(self) -> bool {
        has_dry_runs(self)
    }
}

/// Returns the error text of a call that the server refused. `errno` says why.
fn refused() -> String {
    format!("ERR the server refuses the call: {}", Errno::last().desc())
}

impl Refused {
    fn of(text: String) -> Refused {
        // Both texts below are errors that the server returns to modules only. Redis 7.0 reports missing
        // rights with ERR, where a client gets NOPERM.
        if text.ends_with("is not allowed on script mode") {
            return Refused::NotAllowed;
        }
        match text.strip_prefix("ERR acl verification failed, ") {
            Some(denied) => Refused::Error(format!("NOPERM {denied}")),
            None => Refused::Error(text),
        }
    }
}
