//! Loading: the entry that the server calls first, and the registration of options and the INFO section.

use std::ffi::{c_char, c_int, c_longlong, c_void};

use dlock_protocol::options::{Kind, Spec};

use super::commands::{RawCall, all_bytes};
use super::ctx::{Ctx, LogLevel};
use super::raw::{api, c_string, catch_panic, rm};
use super::upcalls::{Section, Upcalls, enter};

/// Defines `RedisModule_OnLoad`, which the server calls when it loads the module. If `$load` returns an
/// error, [`load`] logs the error, and the server does not load the module.
macro_rules! on_load {
    ($module:ty, $load:path) => {
        $crate::ffi::commands::entry!(
            #[unsafe(no_mangle)]
            fn RedisModule_OnLoad => $crate::ffi::setup::load::<$module>, $load
        );
    };
}
pub(crate) use on_load;

/// Loads the module API, and then the module.
pub fn load<M: Upcalls>(
    RawCall { ctx, argv }: RawCall<'_>,
    load: fn(Ctx<'_>, &[&[u8]]) -> Result<(), String>,
) -> c_int {
    let (api, failed) = (rm::REDISMODULE_APIVER_1 as c_int, rm::REDISMODULE_ERR as c_int);
    // SAFETY: the context and the arguments are valid. The call fails if the server has no module API of a
    // version that this module supports.
    let arguments = unsafe {
        if rm::Export_RedisModule_Init(ctx.0, M::NAME.as_ptr(), M::VERSION, api) == failed {
            return failed;
        }
        all_bytes(argv)
    };
    let loaded = catch_panic(Err("internal error".into()), || load(ctx, &arguments));
    let Err(why) = loaded else { return rm::REDISMODULE_OK as c_int };
    ctx.log(LogLevel::Warning, &format!("module load failed: {why}"));
    failed
}

/// Returns a function that the module needs and this server lacks. `None` on Redis 7.0 and later, and on
/// every Valkey.
pub fn missing() -> Option<&'static str> {
    // A macro, because a reference to a mutable static is not allowed.
    macro_rules! has {
        ($function:ident) => {
            // SAFETY: `load` has filled in the API, and it is not written again.
            (stringify!($function), {
                let function = unsafe { rm::$function };
                function.is_some()
            })
        };
    }
    let needed = [
        has!(RedisModule_SetCommandInfo),
        has!(RedisModule_RegisterNumericConfig),
        has!(RedisModule_GetDbIdFromIO),
        has!(RedisModule_EventLoopAddOneShot),
        has!(RedisModule_AvoidReplicaTraffic),
        has!(RedisModule_GetModuleUserFromUserName),
    ];
    needed.into_iter().find(|(_, has)| !has).map(|(name, _)| name)
}

/// Declares two things that the module itself does: it checks for I/O errors while it reads values from an
/// RDB file, and it reports which keys it has changed.
pub fn set_api_options(ctx: Ctx<'_>) {
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

/// One option of the module. `O` is the struct of all options. The server reads and sets an option as a
/// number, whatever its kind.
pub struct Setting<O> {
    pub spec: Spec,
    pub get: fn(&O) -> i64,
    /// The server has checked the range of the number.
    pub set: fn(&mut O, i64),
}

/// Registers the options with these defaults, which may come from arguments of the module. Returns false if
/// the server refuses an option, or a value that redis.conf sets.
pub fn register_settings<M: Upcalls>(
    ctx: Ctx<'_>,
    settings: &'static [Setting<M::Options>],
    defaults: &[i64],
) -> bool {
    let registered =
        settings.iter().zip(defaults).all(|(setting, default)| register::<M>(ctx, setting, *default));
    // SAFETY: called in OnLoad, after the registrations.
    registered && unsafe { api!(RedisModule_LoadConfigs(ctx.0)) } == rm::REDISMODULE_OK as c_int
}

fn register<M: Upcalls>(ctx: Ctx<'_>, setting: &'static Setting<M::Options>, default: i64) -> bool {
    let (name, flags) = (c_string(setting.spec.name), rm::REDISMODULE_CONFIG_DEFAULT);
    let data = std::ptr::from_ref(setting).cast_mut().cast();
    // SAFETY: called in OnLoad; `data` stays valid, because the setting is static.
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

/// Returns the value of an option to the server. `N` is `c_longlong` for a number, and `c_int` for yes or no.
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
    enter(rm::REDISMODULE_ERR, |module: &M| {
        module.options(|options| (setting.set)(options, value));
        rm::REDISMODULE_OK
    }) as c_int
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
