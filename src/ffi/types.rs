//! The callbacks of the key type. They pass bytes; [`Upcalls`] encodes and decodes the values.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::ctx::Ctx;
use super::raw::{api, bytes_of, c_string, catch_panic, rm};
use super::upcalls::{Upcalls, enter};

/// The version of the type in the RDB file. The layout inside the bytes has a version of its own.
const ENCODING: c_int = 1;

static KEY_TYPE: AtomicPtr<rm::RedisModuleType> = AtomicPtr::new(std::ptr::null_mut());

pub(super) fn key_type() -> *mut rm::RedisModuleType {
    KEY_TYPE.load(Ordering::Relaxed)
}

/// Registers the key type. Returns false if the server refuses it.
pub fn register<M: Upcalls>(ctx: Ctx<'_>) -> bool {
    let mut methods = rm::RedisModuleTypeMethods {
        // Older servers read only the part of the table that they know.
        version: 5,
        rdb_load: Some(rdb_load::<M>),
        rdb_save: Some(rdb_save::<M>),
        aof_rewrite: Some(aof_rewrite::<M>),
        mem_usage: None,
        digest: Some(digest::<M>),
        free: Some(free::<M>),
        aux_load: Some(aux_load::<M>),
        aux_save: Some(aux_save::<M>),
        aux_save_triggers: rm::REDISMODULE_AUX_BEFORE_RDB as c_int,
        free_effort: None,
        unlink: None,
        // COPY is refused: a hold belongs to one key.
        copy: None,
        defrag: None,
        mem_usage2: Some(mem_usage::<M>),
        free_effort2: None,
        unlink2: Some(unlink::<M>),
        copy2: None,
        aux_save2: Some(aux_save_if_any::<M>),
    };
    // SAFETY: called in OnLoad; the server copies the table.
    let made = unsafe { api!(RedisModule_CreateDataType(ctx.0, M::TYPE.as_ptr(), ENCODING, &mut methods)) };
    KEY_TYPE.store(made, Ordering::Relaxed);
    !made.is_null()
}

fn refuse(io: *mut rm::RedisModuleIO, why: &str) {
    let text = c_string(&format!("dlock: refused a stored lock: {why}"));
    // SAFETY: `io` is the one of the running callback.
    unsafe { api!(RedisModule_LogIOError(io, c"warning".as_ptr(), c"%s".as_ptr(), text.as_ptr())) };
}

/// Reads the next string of the stream. `None` if the stream ends early or is damaged.
///
/// # Safety
/// `io` is the one of the running callback.
unsafe fn load_bytes<R>(io: *mut rm::RedisModuleIO, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
    let mut len = 0;
    // SAFETY: by contract. The server hands over a buffer of its allocator, or null with the error flag set.
    unsafe {
        let start = api!(RedisModule_LoadStringBuffer(io, &mut len));
        if start.is_null() || api!(RedisModule_IsIOError(io)) != 0 {
            if !start.is_null() {
                api!(RedisModule_Free(start.cast()));
            }
            return None;
        }
        let done = read(std::slice::from_raw_parts(start.cast::<u8>(), len));
        api!(RedisModule_Free(start.cast()));
        Some(done)
    }
}

unsafe extern "C" fn rdb_load<M: Upcalls>(io: *mut rm::RedisModuleIO, encoding: c_int) -> *mut c_void {
    enter(std::ptr::null_mut(), |module: &M| {
        if encoding > ENCODING {
            refuse(io, "a newer module wrote it, load that one");
            return std::ptr::null_mut();
        }
        // SAFETY: `io` is valid for this call; the key name lives as long.
        let loaded = unsafe {
            let key = bytes_of(api!(RedisModule_GetKeyNameFromIO(io)));
            let db = api!(RedisModule_GetDbIdFromIO(io));
            load_bytes(io, |bytes| module.load(bytes, db, key))
        };
        match loaded.unwrap_or_else(|| Err("the stream ends in it".into())) {
            Ok(value) => Box::into_raw(value).cast(),
            Err(why) => {
                refuse(io, &why);
                std::ptr::null_mut()
            }
        }
    })
}

/// # Safety
/// `value` is a live value of the type.
unsafe fn stored<'a, M: Upcalls>(value: *const c_void) -> &'a M::Value {
    // SAFETY: by contract.
    unsafe { &*value.cast::<M::Value>() }
}

unsafe extern "C" fn rdb_save<M: Upcalls>(io: *mut rm::RedisModuleIO, value: *mut c_void) {
    enter((), |module: &M| {
        // SAFETY: the server hands in a live value of the type.
        let bytes = module.save(unsafe { stored::<M>(value) });
        unsafe { api!(RedisModule_SaveStringBuffer(io, bytes.as_ptr().cast(), bytes.len())) };
    });
}

/// Writes a command that creates the value again: [`Upcalls::EFFECT`], with the bytes of [`Upcalls::effect`].
unsafe extern "C" fn aof_rewrite<M: Upcalls>(
    io: *mut rm::RedisModuleIO,
    key: *mut rm::RedisModuleString,
    value: *mut c_void,
) {
    enter((), |module: &M| {
        // SAFETY: as for rdb_save.
        let effect = module.effect(unsafe { stored::<M>(value) });
        let (command, format) = (M::EFFECT.as_ptr(), c"sb".as_ptr());
        unsafe { api!(RedisModule_EmitAOF(io, command, format, key, effect.as_ptr(), effect.len())) };
    });
}

unsafe extern "C" fn mem_usage<M: Upcalls>(
    _ctx: *mut rm::RedisModuleKeyOptCtx,
    value: *const c_void,
    _samples: usize,
) -> usize {
    // SAFETY: as for rdb_save.
    enter(0, |module: &M| module.memory(unsafe { stored::<M>(value) }))
}

unsafe extern "C" fn digest<M: Upcalls>(digest: *mut rm::RedisModuleDigest, value: *mut c_void) {
    enter((), |module: &M| {
        // SAFETY: as for rdb_save; the server copies the bytes.
        module.digest(unsafe { stored::<M>(value) }, &mut |part| unsafe {
            api!(RedisModule_DigestAddStringBuffer(digest, part.as_ptr().cast::<c_char>(), part.len()));
        });
        unsafe { api!(RedisModule_DigestEndSequence(digest)) };
    });
}

/// The value of the key that the module itself is deleting. Only the main thread changes this pointer.
static DELETED: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Runs `delete`, which deletes the key of this value, and returns the value, so that the next key can reuse
/// its memory. That saves an allocation, about 2 % of an ACQUIRE and RELEASE.
pub(super) fn delete_without_freeing<V>(value: *mut V, delete: impl FnOnce()) -> Option<Box<V>> {
    DELETED.store(value.cast(), Ordering::Relaxed);
    delete();
    let given_back = DELETED.swap(std::ptr::null_mut(), Ordering::Relaxed).is_null();
    // SAFETY: the server gave the box back to `free`, which did not free it.
    (given_back && !value.is_null()).then(|| unsafe { Box::from_raw(value) })
}

/// Frees a value. May run on a background thread (FLUSHALL ASYNC), so it accesses nothing but the value
/// and [`DELETED`].
unsafe extern "C" fn free<M: Upcalls>(value: *mut c_void) {
    if DELETED.load(Ordering::Relaxed) == value {
        return DELETED.store(std::ptr::null_mut(), Ordering::Relaxed);
    }
    // SAFETY: the server gives back the box that `rdb_load` or `Key::set` gave it, once.
    catch_panic((), || drop(unsafe { Box::from_raw(value.cast::<M::Value>()) }));
}

/// The key leaves the keyspace for any reason but a flush or [`delete_without_freeing`]: DEL, RENAME to
/// another name, an overwrite, eviction.
unsafe extern "C" fn unlink<M: Upcalls>(ctx: *mut rm::RedisModuleKeyOptCtx, value: *const c_void) {
    if DELETED.load(Ordering::Relaxed).cast_const() == value {
        return;
    }
    enter((), |module: &M| {
        // SAFETY: the value is live (RENAME and MOVE keep it under another name) and nothing else refers to
        // it now: this is called on the main thread, and `Key` lends no value out across `delete`.
        unsafe {
            let value = &mut *value.cast_mut().cast::<M::Value>();
            let key = bytes_of(api!(RedisModule_GetKeyNameFromOptCtx(ctx)));
            module.unlinked(value, api!(RedisModule_GetDbIdFromOptCtx(ctx)), key);
        }
    });
}

/// Flag in the first of the numbers stored beside the keys. It says that the others follow. An older module,
/// which stores one number only, refuses a number with this flag. That is intended, because the older module
/// could not read the append only file and the replication stream of this module.
const MORE_FOLLOW: u64 = 1 << 63;

/// Saves the numbers that are stored beside the keys. For Redis 7.0, where an RDB file names the module even
/// if this callback saves nothing.
unsafe extern "C" fn aux_save<M: Upcalls>(io: *mut rm::RedisModuleIO, _when: c_int) {
    enter((), |module: &M| {
        let [first, others @ ..] = module.stored_numbers();
        // SAFETY: `io` is valid for this call.
        let save = |number| unsafe { api!(RedisModule_SaveUnsigned(io, number)) };
        save(first | MORE_FOLLOW);
        others.into_iter().for_each(save);
    });
}

/// For Redis 7.2 and later, where an RDB file names the module only if this callback saves something. Before
/// the first fence it saves nothing, so a server without the module can load the file.
unsafe extern "C" fn aux_save_if_any<M: Upcalls>(io: *mut rm::RedisModuleIO, when: c_int) {
    if enter(0, |module: &M| module.stored_numbers()[0]) > 0 {
        // SAFETY: `io` is valid for this call.
        unsafe { aux_save::<M>(io, when) };
    }
}

unsafe extern "C" fn aux_load<M: Upcalls>(
    io: *mut rm::RedisModuleIO,
    _encoding: c_int,
    _when: c_int,
) -> c_int {
    enter(rm::REDISMODULE_ERR as c_int, |module: &M| {
        // SAFETY: `io` is valid for this call. After an error the server returns 0.
        let load = || unsafe { api!(RedisModule_LoadUnsigned(io)) };
        let first = load();
        let mut numbers = [first & !MORE_FOLLOW, 0, 0, 0, 0];
        if first & MORE_FOLLOW != 0 {
            numbers[1..].fill_with(load);
        }
        let failed = unsafe { api!(RedisModule_IsIOError(io)) } != 0;
        if failed || !module.load_numbers(numbers) {
            refuse(io, "the fence counter is damaged");
            return rm::REDISMODULE_ERR as c_int;
        }
        rm::REDISMODULE_OK as c_int
    })
}
