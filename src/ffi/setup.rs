//! Loading: the entry that the server calls first, and the registration of commands, options and the INFO
//! section.

use std::ffi::{c_char, c_int, c_longlong, c_void};
use std::mem::MaybeUninit;

use dlock_protocol::options::{Kind, Spec};

use super::ctx::{Ctx, LogLevel};
use super::raw::{KeyName, api, broken, bytes_of, c_string, guard, never_freed, rm};
use super::upcalls::{Section, Upcalls, enter};

/// Makes a function the server's first call into the module, before it loads its data. The error says why the
/// module does not load.
macro_rules! on_load {
    ($module:ty, $load:path) => {
        /// # Safety
        /// Only the server calls it, with a context and arguments that are valid while it runs.
        #[unsafe(no_mangle)]
        #[allow(unsafe_code, reason = "the one way in; all it does is in ffi")]
        unsafe extern "C" fn RedisModule_OnLoad(
            ctx: *mut ::redis_module::raw::RedisModuleCtx,
            argv: *mut *mut ::redis_module::raw::RedisModuleString,
            argc: ::std::ffi::c_int,
        ) -> ::std::ffi::c_int {
            // SAFETY: by contract.
            unsafe { $crate::ffi::setup::load::<$module>(ctx, argv, argc, $load) }
        }
    };
}
pub(crate) use on_load;

/// # Safety
/// The context and the arguments are those of `RedisModule_OnLoad`, while it runs.
pub unsafe fn load<M: Upcalls>(
    ctx: *mut rm::RedisModuleCtx,
    argv: *mut *mut rm::RedisModuleString,
    argc: c_int,
    load: fn(Ctx<'_>, &[&[u8]]) -> Result<(), String>,
) -> c_int {
    let (api, failed) = (rm::REDISMODULE_APIVER_1 as c_int, rm::REDISMODULE_ERR as c_int);
    // SAFETY: by contract. False if the server has no module API of a version that this module supports.
    let (ctx, arguments) = unsafe {
        if rm::Export_RedisModule_Init(ctx, M::NAME.as_ptr(), M::VERSION, api) == failed {
            return failed;
        }
        (Ctx::new(ctx), load_arguments(argv, argc))
    };
    let loaded = guard(Err("internal error".into()), || load(ctx, &arguments));
    let Err(why) = loaded else { return rm::REDISMODULE_OK as c_int };
    ctx.log(LogLevel::Warning, &format!("module load failed: {why}"));
    failed
}

/// Returns the arguments of `loadmodule` or MODULE LOAD.
///
/// # Safety
/// `argv` and `argc` are the arguments of `RedisModule_OnLoad`.
unsafe fn load_arguments<'a>(argv: *mut *mut rm::RedisModuleString, argc: c_int) -> Vec<&'a [u8]> {
    if argc <= 0 {
        return Vec::new();
    }
    // SAFETY: by contract.
    unsafe { std::slice::from_raw_parts(argv, argc as usize).iter().map(|arg| bytes_of(*arg)).collect() }
}

/// A command.
pub trait Command {
    type Module: Upcalls;

    /// Runs the command, and replies to the client. An `Err` is sent as the error reply.
    fn run<'a>(module: &'a Self::Module, ctx: Ctx<'a>, args: &Args<'a>) -> Result<(), String>;
}

/// The arguments of a command, without its name.
pub struct Args<'a> {
    pub bytes: &'a [&'a [u8]],
    /// The first argument as a server string. The server calls no command that takes a key without one.
    pub key: KeyName<'a>,
    /// All arguments as server strings, the command's name first.
    pub(super) argv: &'a [*mut rm::RedisModuleString],
}

/// The function the server calls for a command.
pub type Entry =
    unsafe extern "C" fn(*mut rm::RedisModuleCtx, *mut *mut rm::RedisModuleString, c_int) -> c_int;

pub const fn entry<C: Command>() -> Entry {
    run::<C>
}

pub(super) unsafe extern "C" fn run<C: Command>(
    ctx: *mut rm::RedisModuleCtx,
    argv: *mut *mut rm::RedisModuleString,
    argc: c_int,
) -> c_int {
    const INTERNAL: &str = "ERR dlock met an internal error and stops working on this server: \
                            its log says where, restart it to go on";
    // SAFETY: the context and the arguments are valid for this call; no argument is changed while it runs.
    let ctx = unsafe { Ctx::new(ctx) };
    let done = guard(None, || {
        let module = C::Module::get().filter(|_| !broken())?;
        let argv = unsafe { std::slice::from_raw_parts(argv, argc as usize) };
        let rest = argv.get(1..).unwrap_or_default();
        let key = rest.first().copied().unwrap_or(std::ptr::null_mut());
        let mut inline = [const { MaybeUninit::<&[u8]>::uninit() }; INLINE_ARGS];
        let heap;
        // SAFETY: the elements that are read have been written.
        let bytes = unsafe {
            if rest.len() <= INLINE_ARGS {
                inline.iter_mut().zip(rest).for_each(|(bytes, arg)| _ = bytes.write(bytes_of(*arg)));
                std::slice::from_raw_parts(inline.as_ptr().cast(), rest.len())
            } else {
                heap = all_bytes(rest);
                &heap
            }
        };
        Some(C::run(module, ctx, &Args { bytes, key: unsafe { KeyName::new(key) }, argv }))
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
    guard((), || ctx.reply_error(text));
}

/// Up to this many arguments need no allocation.
const INLINE_ARGS: usize = 8;

#[inline(never)]
unsafe fn all_bytes(args: &[*mut rm::RedisModuleString]) -> Vec<&[u8]> {
    // SAFETY: by contract, as for each.
    args.iter().map(|arg| unsafe { bytes_of(*arg) }).collect()
}

/// Returns a function that the module needs and this server lacks. `None` on Redis 7.0 and later, and on
/// every Valkey.
pub fn missing() -> Option<&'static str> {
    // A macro, because a reference to a mutable static is not allowed.
    macro_rules! there {
        ($function:ident) => {
            // SAFETY: the API was filled in by `init` and is not written again.
            (stringify!($function), {
                let function = unsafe { rm::$function };
                function.is_some()
            })
        };
    }
    let needed = [
        there!(RedisModule_SetCommandInfo),
        there!(RedisModule_RegisterNumericConfig),
        there!(RedisModule_GetDbIdFromIO),
        there!(RedisModule_EventLoopAddOneShot),
        there!(RedisModule_AvoidReplicaTraffic),
        there!(RedisModule_GetModuleUserFromUserName),
    ];
    needed.into_iter().find(|(_, there)| !there).map(|(name, _)| name)
}

/// Declares the duties that the module takes over from the server.
pub fn set_options(ctx: Ctx<'_>) {
    let options =
        rm::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS | rm::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED;
    // SAFETY: called in OnLoad.
    unsafe { api!(RedisModule_SetModuleOptions(ctx.0, options as c_int)) };
}

/// Logs where a panic happened. Its message is left out, because it might contain a token.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map_or("somewhere".into(), |at| format!("{}:{}", at.file(), at.line()));
        let text = c_string(&format!("dlock: internal error at {place}, please report it"));
        // SAFETY: a null context is allowed for the log.
        if let Some(log) = unsafe { rm::RedisModule_Log } {
            unsafe { log(std::ptr::null_mut(), c"warning".as_ptr(), c"%s".as_ptr(), text.as_ptr()) };
        }
    }));
}

/// One option of `O`. The server reads and sets it as a number, whatever its kind.
pub struct Setting<O> {
    pub spec: Spec,
    pub get: fn(&O) -> i64,
    /// `None` refuses the number.
    pub set: fn(&mut O, i64) -> Option<()>,
}

/// Registers the options with these defaults, which may come from arguments of the module. Returns false if
/// the server refuses one, or a value in redis.conf.
pub fn register_settings<M: Upcalls>(
    ctx: Ctx<'_>,
    settings: &'static [Setting<M::Options>],
    defaults: &[i64],
) -> bool {
    let registered =
        settings.iter().zip(defaults).all(|(setting, default)| register::<M>(ctx, setting, *default));
    // SAFETY: called in OnLoad, behind the registrations.
    registered && unsafe { api!(RedisModule_LoadConfigs(ctx.0)) } == rm::REDISMODULE_OK as c_int
}

fn register<M: Upcalls>(ctx: Ctx<'_>, setting: &'static Setting<M::Options>, default: i64) -> bool {
    let (name, flags) = (c_string(setting.spec.name), rm::REDISMODULE_CONFIG_DEFAULT);
    let data = std::ptr::from_ref(setting).cast_mut().cast();
    // SAFETY: called in OnLoad; the entry lives for ever, as it is static.
    let answer = unsafe {
        match setting.spec.kind {
            Kind::Number { least, greatest, .. } => api!(RedisModule_RegisterNumericConfig(
                ctx.0,
                name.as_ptr(),
                default,
                flags,
                least,
                greatest,
                Some(get::<M, c_longlong>),
                Some(set::<M, c_longlong>),
                None,
                data,
            )),
            Kind::YesNo { .. } => api!(RedisModule_RegisterBoolConfig(
                ctx.0,
                name.as_ptr(),
                default as c_int,
                flags,
                Some(get::<M, c_int>),
                Some(set::<M, c_int>),
                None,
                data,
            )),
        }
    };
    answer == rm::REDISMODULE_OK as c_int
}

/// Serves numbers, which are `c_longlong` to the server, and yes or no, which are `c_int`.
unsafe extern "C" fn get<M: Upcalls, N: TryFrom<i64> + Default>(_: *const c_char, setting: *mut c_void) -> N {
    // SAFETY: (here and below) the data is the option that was registered.
    let setting = unsafe { &*setting.cast::<Setting<M::Options>>() };
    let number = enter(0, |module: &M| module.options(|options| (setting.get)(options)));
    N::try_from(number).unwrap_or_default()
}

unsafe extern "C" fn set<M: Upcalls, N: Into<i64>>(
    _: *const c_char,
    value: N,
    setting: *mut c_void,
    _: *mut *mut rm::RedisModuleString,
) -> c_int {
    let (setting, value) = (unsafe { &*setting.cast::<Setting<M::Options>>() }, value.into());
    let set = enter(None, |module: &M| module.options(|options| (setting.set)(options, value)));
    set.map_or(rm::REDISMODULE_ERR, |()| rm::REDISMODULE_OK) as c_int
}

pub fn register_info<M: Upcalls>(ctx: Ctx<'_>) -> bool {
    // SAFETY: called in OnLoad.
    unsafe { api!(RedisModule_RegisterInfoFunc(ctx.0, Some(on_info::<M>))) == rm::REDISMODULE_OK as c_int }
}

unsafe extern "C" fn on_info<M: Upcalls>(ctx: *mut rm::RedisModuleInfoCtx, for_crash_report: c_int) {
    // A crash report can be written at any moment, also while the state is borrowed.
    if for_crash_report != 0 {
        return;
    }
    enter((), |module: &M| {
        // SAFETY: the INFO context is valid for this call; a null name is the module's own section.
        if unsafe { api!(RedisModule_InfoAddSection(ctx, std::ptr::null())) } == rm::REDISMODULE_OK as c_int {
            module.info(&Section(ctx));
        }
    });
}

/// A command as it is registered: its name, its flags, its entry.
pub struct Registration {
    pub name: &'static str,
    /// Flags in the server's spelling.
    pub flags: &'static str,
    pub entry: Entry,
    /// Whether its first argument is a key.
    pub keyed: bool,
}

/// Returns false if the server refuses the command.
pub fn register_command(ctx: Ctx<'_>, command: &Registration) -> bool {
    let (name, flags) = (c_string(command.name), c_string(command.flags));
    let key = c_int::from(command.keyed);
    let entry = Some(command.entry);
    // SAFETY: called in OnLoad; the server copies the strings.
    unsafe {
        api!(RedisModule_CreateCommand(ctx.0, name.as_ptr(), entry, flags.as_ptr(), key, key, key))
            == rm::REDISMODULE_OK as c_int
    }
}

/// Puts a command into ACL categories, on servers that support it: Redis 7.2 (a category of the module from
/// 7.4 on) and Valkey.
pub fn categorize(ctx: Ctx<'_>, name: &str, categories: &str) {
    let (name, categories) = (c_string(name), c_string(categories));
    // SAFETY: called in OnLoad.
    unsafe {
        let command = api!(RedisModule_GetCommand(ctx.0, name.as_ptr()));
        if let Some(set) = rm::RedisModule_SetCommandACLCategories
            && !command.is_null()
        {
            set(command, categories.as_ptr());
        }
    }
}

/// Creates an ACL category for the module. Returns false if the server does not support it.
pub fn add_category(ctx: Ctx<'_>, name: &str) -> bool {
    // SAFETY: called in OnLoad.
    unsafe {
        rm::RedisModule_AddACLCategory
            .is_some_and(|add| add(ctx.0, never_freed(name)) == rm::REDISMODULE_OK as c_int)
    }
}
