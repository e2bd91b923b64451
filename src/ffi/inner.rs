//! A command that carries another one in its arguments: which keys the two have, and how the other one runs.

use std::cell::Cell;
use std::ffi::{CStr, c_int};

use nix::errno::Errno;

use super::ctx::{Ctx, Reply};
use super::docs::KeyUse;
use super::key::WrongType;
use super::name::KeyName;
use super::raw::{api, bytes_of, guard, rm};
use super::setup::{Args, Command, Entry, run};
use super::verdict::has_dry_runs;

/// A command whose first argument is a key, and whose third one begins another command.
pub trait Carrier: Command {
    /// What it does to that key.
    const KEY: KeyUse;
}

/// Where the other command begins, the name of the first one counted.
const AT: usize = 3;

pub const fn carrier<C: Carrier>() -> Entry {
    tell_keys_or_run::<C>
}

unsafe extern "C" fn tell_keys_or_run<C: Carrier>(
    ctx: *mut rm::RedisModuleCtx,
    argv: *mut *mut rm::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the context and the arguments are valid for this call.
    unsafe {
        if rm::RedisModule_IsKeysPositionRequest.is_none_or(|asks| asks(ctx) == 0) {
            return run::<C>(ctx, argv, argc);
        }
        guard((), || tell_keys(ctx, argv, argc, C::KEY));
    }
    rm::REDISMODULE_OK as c_int
}

thread_local! {
    /// A carrier in a carrier has one key: so a chain of them is never followed, which could be of any
    /// length.
    static TELLING: Cell<bool> = const { Cell::new(false) };
}

/// Asked before the command runs, on whichever thread: nothing of the module is touched.
///
/// # Safety
/// The context is that of a question for keys, the arguments are those of the command.
unsafe fn tell_keys(
    ctx: *mut rm::RedisModuleCtx,
    argv: *mut *mut rm::RedisModuleString,
    argc: c_int,
    key: KeyUse,
) {
    let (mut count, mut flags) = (0, std::ptr::null_mut());
    // SAFETY: by contract; the server counts the keys that it names, and both lists are ours to free.
    unsafe {
        api!(RedisModule_KeyAtPosWithFlags(ctx, 1, key.flags() as c_int));
        if argc as usize <= AT || TELLING.replace(true) {
            return;
        }
        let inner = api!(RedisModule_GetCommandKeysWithFlags(
            ctx,
            argv.add(AT),
            argc - AT as c_int,
            &mut count,
            &mut flags
        ));
        TELLING.set(false);
        if inner.is_null() {
            return;
        }
        for at in 0..count as usize {
            let (position, flags) = (*inner.add(at) + AT as c_int, *flags.add(at));
            api!(RedisModule_KeyAtPosWithFlags(ctx, position, flags));
        }
        api!(RedisModule_Free(inner.cast()));
        api!(RedisModule_Free(flags.cast()));
    }
}

/// Which of the server's checks are made for a command that another one runs. All of them are made of its
/// user's rights and of memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Checks {
    /// That scripts may run it.
    AsInScripts,
    AnyCommand,
}

/// Why the server did not run it.
pub enum Refused {
    NotInScripts,
    Error(String),
}

impl Ctx<'_> {
    /// Runs the command in the arguments of one that carries it, as if the client had sent it by itself, and
    /// sends on its reply. It cannot block.
    pub fn run_carried(self, args: &Args<'_>, checks: Checks) -> Result<(), Refused> {
        let format = match checks {
            Checks::AsInScripts => c"!CSME0v",
            Checks::AnyCommand => c"!CME0v",
        };
        let [name, rest @ ..] = args.argv.get(AT..).unwrap_or_default() else {
            return Err(Refused::NotInScripts);
        };
        // SAFETY: the context and the arguments are valid; a server string ends in a NUL. One that holds
        // another is no command's name. The reply is freed when it was sent.
        unsafe {
            let name = bytes_of(*name);
            if name.contains(&0) {
                return Err(Refused::NotInScripts);
            }
            let (name, arguments) = (name.as_ptr().cast(), rest.as_ptr());
            let call = api!(RedisModule_Call(self.0, name, format.as_ptr(), arguments, rest.len()));
            let reply = Reply::of(call).ok_or_else(|| Refused::Error(refused()))?;
            // To be asked for its type it would have to be read through.
            let error = match reply.raw().first() {
                None => Some(self.left_behind()),
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

    /// The error of a call that came back with nothing. Valkey 9 leaves what GETDEL and GETSET say of a key
    /// that holds no string with the client that it makes calls on. The next call on it gets that for its own
    /// reply, whoever makes it: so it is fetched at once.
    fn left_behind(self) -> String {
        // SAFETY: the context is valid; the reply is freed at once.
        let next = unsafe { Reply::of(api!(RedisModule_Call(self.0, c"PING".as_ptr(), c"".as_ptr()))) };
        next.and_then(|reply| reply.error())
            .unwrap_or_else(|| "ERR the server does not say what came of the command".into())
    }

    /// `SET key number`, replicated too.
    pub fn set_number(self, key: KeyName<'_>, number: u64, by_memory: bool) -> Result<(), String> {
        let format: &CStr = if by_memory { c"!MEsl" } else { c"!Esl" };
        // SAFETY: the context and the key are valid; the reply is freed at once.
        let reply = unsafe {
            let number = number as std::ffi::c_longlong;
            Reply::of(api!(RedisModule_Call(self.0, c"SET".as_ptr(), format.as_ptr(), key.0, number)))
        };
        reply.ok_or_else(refused)?.error().map_or(Ok(()), Err)
    }

    /// Reads a key that holds a plain string; None where there is no key.
    pub fn read_string<R>(
        self,
        key: KeyName<'_>,
        read: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, WrongType> {
        // SAFETY: the context and the key are valid; the bytes are not changed before the key is closed, for
        // nothing else runs meanwhile. A null key may be closed.
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

    /// Whether a call in the user's name also runs in it: what a script or SORT does by itself is checked
    /// against the user's rights. Redis learned that together with dry runs.
    pub fn calls_run_as_user(self) -> bool {
        has_dry_runs(self)
    }
}

/// What is said of a call without a reply.
fn refused() -> String {
    format!("ERR the server refuses the call: {}", Errno::last().desc())
}

impl Refused {
    fn of(text: String) -> Refused {
        // The server's words for what no client sees otherwise; Redis 7.0 has no word of its own for rights.
        if text.ends_with("is not allowed on script mode") {
            return Refused::NotInScripts;
        }
        match text.strip_prefix("ERR acl verification failed, ") {
            Some(denied) => Refused::Error(format!("NOPERM {denied}")),
            None => Refused::Error(text),
        }
    }
}
