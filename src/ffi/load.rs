//! How the server gets in at first.

use std::ffi::c_int;

use super::ctx::{Ctx, LogLevel};
use super::raw::{bytes_of, guard, rm};
use super::upcalls::Upcalls;

/// Makes this function what the server calls once, before it loads its data; the error says why it does not
/// load.
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
            unsafe { $crate::ffi::load::load::<$module>(ctx, argv, argc, $load) }
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
    // SAFETY: by contract. False where the server speaks no module API this module knows.
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

/// The arguments given where the module was loaded.
///
/// # Safety
/// `argv` and `argc` are the ones `RedisModule_OnLoad` got.
unsafe fn load_arguments<'a>(argv: *mut *mut rm::RedisModuleString, argc: c_int) -> Vec<&'a [u8]> {
    if argc <= 0 {
        return Vec::new();
    }
    // SAFETY: by contract.
    unsafe { std::slice::from_raw_parts(argv, argc as usize).iter().map(|arg| bytes_of(*arg)).collect() }
}
