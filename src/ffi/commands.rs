//! Runs the commands that the server calls, and registers them, with descriptions for COMMAND DOCS, COMMAND
//! INFO and the hints of redis-cli.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use super::ctx::Ctx;
use super::raw::{KeyName, api, broken, bytes_of, c_string, catch_panic, never_freed, rm};
use super::upcalls::Upcalls;

/// The arguments of a command, without its name.
pub struct Args<'a> {
    pub bytes: &'a [&'a [u8]],
    /// The first argument as a server string. A command that takes a key always has this argument, because
    /// the server checks the number of arguments.
    pub key: KeyName<'a>,
    /// All arguments as server strings, the command's name first.
    pub(super) argv: &'a [*mut rm::RedisModuleString],
}

/// A call from the server: a context and arguments. The first argument is the name of the command.
#[derive(Clone, Copy)]
pub struct RawCall<'a> {
    pub(super) ctx: Ctx<'a>,
    pub(super) argv: &'a [*mut rm::RedisModuleString],
}

impl RawCall<'_> {
    /// # Safety
    /// The context and the arguments are valid for the lifetime of the result, and no argument is changed.
    #[inline(always)]
    pub unsafe fn new(
        ctx: *mut rm::RedisModuleCtx,
        argv: *mut *mut rm::RedisModuleString,
        argc: c_int,
    ) -> Self {
        // SAFETY: by contract.
        let argv = if argc > 0 { unsafe { std::slice::from_raw_parts(argv, argc as usize) } } else { &[] };
        RawCall { ctx: unsafe { Ctx::new(ctx) }, argv }
    }
}

/// The function the server calls for a command.
pub type Entry =
    unsafe extern "C" fn(*mut rm::RedisModuleCtx, *mut *mut rm::RedisModuleString, c_int) -> c_int;

/// Defines a function for the server to call. The function makes a [`RawCall`] of its arguments, and calls
/// `$run` with it and with each `$argument`. Without `fn $name`, the macro returns this function: an
/// [`Entry`] for the table of commands.
macro_rules! entry {
    ($(#[$attribute:meta])* fn $name:ident => $run:path, $($argument:expr),+) => {
        $(#[$attribute])*
        #[allow(unsafe_code, reason = "the server calls it, and its unsafe code only makes a `RawCall`")]
        unsafe extern "C" fn $name(
            ctx: *mut ::redis_module::raw::RedisModuleCtx,
            argv: *mut *mut ::redis_module::raw::RedisModuleString,
            argc: ::std::ffi::c_int,
        ) -> ::std::ffi::c_int {
            // SAFETY: the server keeps the context and the arguments valid during the call.
            let call = unsafe { $crate::ffi::commands::RawCall::new(ctx, argv, argc) };
            $run(call, $($argument),+)
        }
    };
    ($run:path, $($argument:expr),+) => {{
        $crate::ffi::commands::entry!(fn entry => $run, $($argument),+);
        entry
    }};
}
pub(crate) use entry;

/// Runs a command, and replies with its error, if any. After a panic, replies with an internal error.
#[inline(always)]
pub fn run<M: Upcalls>(
    RawCall { ctx, argv }: RawCall<'_>,
    command: impl for<'a> Fn(&'a M, Ctx<'a>, &Args<'a>) -> Result<(), String>,
) -> c_int {
    const INTERNAL: &str = "ERR dlock met an internal error and stops working on this server: \
                            its log says where, restart it to go on";
    let done = catch_panic(None, || {
        let module = M::get().filter(|_| !broken())?;
        let rest = argv.get(1..).unwrap_or_default();
        let key = rest.first().copied().unwrap_or(std::ptr::null_mut());
        let mut inline = [const { MaybeUninit::<&[u8]>::uninit() }; INLINE_ARGS];
        let heap;
        // SAFETY: the arguments are valid for this call; the elements that are read have been written.
        let bytes = unsafe {
            if rest.len() <= INLINE_ARGS {
                inline.iter_mut().zip(rest).for_each(|(bytes, arg)| _ = bytes.write(bytes_of(*arg)));
                std::slice::from_raw_parts(inline.as_ptr().cast(), rest.len())
            } else {
                heap = all_bytes(rest);
                &heap
            }
        };
        Some(command(module, ctx, &Args { bytes, key: unsafe { KeyName::new(key) }, argv }))
    });
    match done {
        Some(Ok(())) => {}
        Some(Err(text)) => refuse(ctx, &text),
        None => refuse(ctx, INTERNAL),
    }
    rm::REDISMODULE_OK as c_int
}

#[cold]
fn refuse(ctx: Ctx<'_>, text: &str) {
    catch_panic((), || ctx.reply_error(text));
}

/// Up to this many arguments need no allocation.
const INLINE_ARGS: usize = 8;

/// # Safety
/// The arguments are valid and not changed for `'a`.
#[inline(never)]
pub(super) unsafe fn all_bytes<'a>(args: &[*mut rm::RedisModuleString]) -> Vec<&'a [u8]> {
    // SAFETY: by contract.
    args.iter().map(|arg| unsafe { bytes_of(*arg) }).collect()
}

/// A command as it is registered and described.
pub struct Command {
    pub name: &'static str,
    pub summary: &'static str,
    pub complexity: &'static str,
    /// Flags in the server's spelling.
    pub flags: &'static str,
    /// ACL categories. The last one is the module's own.
    pub categories: &'static str,
    pub entry: Entry,
    pub key: KeyUse,
    /// Counts the command's name. A negative number means "at least".
    pub arity: i32,
    pub args: &'static [Arg],
}

/// One argument, or a group of them.
pub enum Arg {
    Key(&'static str),
    Text(&'static str),
    Number(&'static str),
    /// A keyword.
    Word(&'static str),
    /// A keyword and a value.
    WordText(&'static str, &'static str),
    WordNumber(&'static str, &'static str),
    OneOf(&'static str, &'static [Arg]),
    /// All of these, in this order.
    Block(&'static str, &'static [Arg]),
    /// An optional argument.
    Optional(&'static Arg),
    /// Zero or more of these.
    Several(&'static str),
}

/// The use that a command makes of its key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum KeyUse {
    None,
    Read,
    /// Creates, changes or deletes the key.
    Change,
    /// Like `Read`, for a command that carries another command in its arguments (GUARD). The command also
    /// uses the keys of the carried one: see [`super::inner`].
    ReadAndMore,
    ChangeAndMore,
}

impl KeyUse {
    pub(super) fn flags(self) -> u32 {
        match self {
            KeyUse::None => 0,
            KeyUse::Read | KeyUse::ReadAndMore => rm::REDISMODULE_CMD_KEY_RO | rm::REDISMODULE_CMD_KEY_ACCESS,
            KeyUse::Change | KeyUse::ChangeAndMore => {
                rm::REDISMODULE_CMD_KEY_RW | rm::REDISMODULE_CMD_KEY_ACCESS | rm::REDISMODULE_CMD_KEY_UPDATE
            }
        }
    }
}

/// Registers a command. Returns false if the server refuses it. `own_category`: whether the server has the
/// module's ACL category. The server keeps pointers to the description, so it is never freed.
pub fn register(ctx: Ctx<'_>, command: &Command, own_category: bool) -> bool {
    let version = Box::leak(Box::new(rm::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<rm::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<rm::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<rm::RedisModuleCommandArg>(),
    }));
    let info = rm::RedisModuleCommandInfo {
        version,
        summary: never_freed(command.summary),
        complexity: never_freed(command.complexity),
        since: c"0.1.0".as_ptr(),
        history: std::ptr::null_mut(),
        tips: std::ptr::null(),
        arity: command.arity as c_int,
        key_specs: key_specs(command.key),
        args: args(command.args),
    };
    let (name, flags) = (c_string(command.name), c_string(command.flags));
    // The last category is the module's own. It is left out if the server does not have it.
    let categories = command.categories.rsplit_once(' ').filter(|_| !own_category);
    let categories = c_string(categories.map_or(command.categories, |(others, _own)| others));
    let (entry, first_key) = (Some(command.entry), c_int::from(command.key != KeyUse::None));
    const OK: c_int = rm::REDISMODULE_OK as c_int;
    // SAFETY: called in OnLoad; the server copies the strings, and all that `info` points to lives for ever.
    unsafe {
        let (name, flags, key) = (name.as_ptr(), flags.as_ptr(), first_key);
        if api!(RedisModule_CreateCommand(ctx.0, name, entry, flags, key, key, key)) != OK {
            return false;
        }
        let command = api!(RedisModule_GetCommand(ctx.0, name));
        if command.is_null() || api!(RedisModule_SetCommandInfo(command, &info)) != OK {
            return false;
        }
        // Redis has this function from 7.2 on.
        if let Some(set) = rm::RedisModule_SetCommandACLCategories {
            set(command, categories.as_ptr());
        }
        true
    }
}

/// Creates an ACL category for the module. Returns false if the server does not support categories of
/// modules, as Redis before 7.4.
pub fn add_category(ctx: Ctx<'_>, name: &str) -> bool {
    // SAFETY: called in OnLoad.
    unsafe {
        rm::RedisModule_AddACLCategory
            .is_some_and(|add| add(ctx.0, never_freed(name)) == rm::REDISMODULE_OK as c_int)
    }
}

/// Returns the key specs, ended by zeros. They say that the first argument is the key.
fn key_specs(key: KeyUse) -> *mut rm::RedisModuleCommandKeySpec {
    if key == KeyUse::None {
        return std::ptr::null_mut();
    }
    // SAFETY: plain C structures, for which zero bytes are valid and mean "none".
    let (mut spec, end) =
        unsafe { (std::mem::zeroed::<rm::RedisModuleCommandKeySpec>(), std::mem::zeroed()) };
    spec.flags = key.flags().into();
    if matches!(key, KeyUse::ReadAndMore | KeyUse::ChangeAndMore) {
        // Without this flag the server uses this key spec alone, and does not ask the command for its keys.
        spec.flags |= u64::from(rm::REDISMODULE_CMD_KEY_VARIABLE_FLAGS);
    }
    spec.begin_search_type = rm::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    spec.bs.index.pos = 1;
    spec.find_keys_type = rm::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
    spec.fk.range.lastkey = 0;
    spec.fk.range.keystep = 1;
    spec.fk.range.limit = 0;
    Box::leak(Box::new([spec, end])).as_mut_ptr()
}

/// Returns the arguments, ended by zeros.
fn args(list: &[Arg]) -> *mut rm::RedisModuleCommandArg {
    if list.is_empty() {
        return std::ptr::null_mut();
    }
    // SAFETY: a plain C structure, for which zero bytes are valid and mean "none".
    let end = || unsafe { std::mem::zeroed::<rm::RedisModuleCommandArg>() };
    let all: Vec<_> = list.iter().map(arg).chain([end()]).collect();
    Box::leak(all.into_boxed_slice()).as_mut_ptr()
}

fn arg(arg: &Arg) -> rm::RedisModuleCommandArg {
    use rm::{
        RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK as BLOCK,
        RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER as INTEGER,
        RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY as KEY,
        RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF as ONEOF,
        RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN as PURE_TOKEN,
        RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING as STRING,
    };
    let (name, kind, word, sub): (&str, _, &str, &[Arg]) = match arg {
        Arg::Key(name) => (name, KEY, "", &[]),
        Arg::Text(name) | Arg::Several(name) => (name, STRING, "", &[]),
        Arg::Number(name) => (name, INTEGER, "", &[]),
        Arg::Word(word) => (word, PURE_TOKEN, word, &[]),
        Arg::WordText(word, name) => (name, STRING, word, &[]),
        Arg::WordNumber(word, name) => (name, INTEGER, word, &[]),
        Arg::OneOf(name, choices) => (name, ONEOF, "", choices),
        Arg::Block(name, parts) => (name, BLOCK, "", parts),
        Arg::Optional(inner) => {
            let mut made = self::arg(inner);
            made.flags |= rm::REDISMODULE_CMD_ARG_OPTIONAL as c_int;
            return made;
        }
    };
    // SAFETY: a plain C structure, for which zero bytes are valid and mean "none".
    let mut made = unsafe { std::mem::zeroed::<rm::RedisModuleCommandArg>() };
    if matches!(arg, Arg::Several(_)) {
        made.flags = (rm::REDISMODULE_CMD_ARG_OPTIONAL | rm::REDISMODULE_CMD_ARG_MULTIPLE) as c_int;
    }
    made.name = never_freed(&name.to_lowercase());
    made.type_ = kind;
    made.key_spec_index = if kind == KEY { 0 } else { -1 };
    made.token = never_freed(word);
    made.subargs = args(sub);
    made
}
