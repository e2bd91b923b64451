//! An open key that holds a value of the module's type, or nothing.

use std::marker::PhantomData;

use super::ctx::Ctx;
use super::raw::{KeyName, api, rm};
use super::types;

/// The key holds a value of another type.
pub struct WrongType;

/// An open key. Closed on drop. `V` is the Rust type of the values of the one key type that the module
/// registers.
pub struct Key<'a, V> {
    key: *mut rm::RedisModuleKey,
    /// The value of the key, or null. Read when the key is opened, and updated by `set` and `delete`.
    value: *mut V,
    lifetime: PhantomData<Ctx<'a>>,
}

impl<'a, V: Send> Key<'a, V> {
    pub fn open_for_write(ctx: Ctx<'a>, name: KeyName<'_>) -> Result<Self, WrongType> {
        Self::open(ctx, name, rm::REDISMODULE_READ | rm::REDISMODULE_WRITE)
    }

    pub fn open_for_read(ctx: Ctx<'a>, name: KeyName<'_>) -> Result<Self, WrongType> {
        Self::open(ctx, name, rm::REDISMODULE_READ)
    }

    /// Returns a key that is closed from the start, and so has no value.
    pub fn none() -> Self {
        Key { key: std::ptr::null_mut(), value: std::ptr::null_mut(), lifetime: PhantomData }
    }

    fn open(ctx: Ctx<'a>, name: KeyName<'_>, mode: u32) -> Result<Self, WrongType> {
        // SAFETY: the context and the name are valid for this call. The server returns null for a key that is
        // opened for reading and does not exist.
        unsafe {
            let raw = api!(RedisModule_OpenKey(ctx.0, name.0, mode as i32));
            let mut key = Key { key: raw, value: std::ptr::null_mut(), lifetime: PhantomData };
            if raw.is_null() || api!(RedisModule_KeyType(raw)) == rm::REDISMODULE_KEYTYPE_EMPTY as i32 {
                return Ok(key);
            }
            if api!(RedisModule_ModuleTypeGetType(raw)) != types::key_type() {
                return Err(WrongType);
            }
            key.value = api!(RedisModule_ModuleTypeGetValue(raw)).cast();
            Ok(key)
        }
    }

    /// Returns whether a key holds a string.
    pub fn is_string(ctx: Ctx<'a>, name: KeyName<'_>) -> bool {
        // SAFETY: the context and the name are valid for this call; a null key has no type.
        unsafe {
            let raw = api!(RedisModule_OpenKey(ctx.0, name.0, rm::REDISMODULE_READ as i32));
            let key = Key::<V> { key: raw, value: std::ptr::null_mut(), lifetime: PhantomData };
            api!(RedisModule_KeyType(key.key)) == rm::REDISMODULE_KEYTYPE_STRING as i32
        }
    }

    pub fn value(&self) -> Option<&V> {
        // SAFETY: null, or the `Box<V>` that the server owns. It lives until `set` or `delete`, which need
        // `&mut self`. The server makes one call into the module at a time.
        unsafe { self.value.as_ref() }
    }

    pub fn value_mut(&mut self) -> Option<&mut V> {
        // SAFETY: as for `value`.
        unsafe { self.value.as_mut() }
    }

    /// Stores a value under a key that has none.
    pub fn set(&mut self, value: Box<V>) {
        let value = Box::into_raw(value);
        // SAFETY: the key is open for writing. The server takes the box over, unless it refuses, which it
        // does only for a closed key.
        unsafe {
            let answer = api!(RedisModule_ModuleTypeSetValue(self.key, types::key_type(), value.cast()));
            if answer == rm::REDISMODULE_OK as i32 {
                self.value = value;
            } else {
                drop(Box::from_raw(value));
            }
        }
    }

    /// Clears the TTL of the key. Returns whether there was one.
    pub fn persist(&mut self) -> bool {
        const NONE: i64 = rm::REDISMODULE_NO_EXPIRE as i64;
        // SAFETY: the key is open for writing.
        unsafe {
            api!(RedisModule_GetExpire(self.key)) != NONE
                && api!(RedisModule_SetExpire(self.key, NONE)) == rm::REDISMODULE_OK as i32
        }
    }

    /// Deletes the key, and returns its value.
    pub fn delete(&mut self) -> Option<Box<V>> {
        let value = std::mem::replace(&mut self.value, std::ptr::null_mut());
        // SAFETY: the key is open for writing.
        types::delete_without_freeing(value, || unsafe {
            api!(RedisModule_DeleteKey(self.key));
        })
    }
}

impl<V> Key<'_, V> {
    /// Closes the key before drop. It has no value afterwards.
    pub fn close(&mut self) {
        self.value = std::ptr::null_mut();
        let key = std::mem::replace(&mut self.key, std::ptr::null_mut());
        if !key.is_null() {
            // SAFETY: open until here.
            unsafe { api!(RedisModule_CloseKey(key)) };
        }
    }
}

impl<V> Drop for Key<'_, V> {
    fn drop(&mut self) {
        self.close();
    }
}
