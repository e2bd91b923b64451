//! Strings of the server: the names of keys, and strings that the module makes.

use std::marker::PhantomData;

use super::raw::{api, bytes_of, rm};

/// A borrowed name of a key.
#[derive(Clone, Copy)]
pub struct KeyName<'a>(pub(super) *mut rm::RedisModuleString, PhantomData<&'a ()>);

impl KeyName<'_> {
    /// # Safety
    /// `name` is valid for the lifetime. It may be null if no key is opened by it.
    pub(super) unsafe fn new(name: *mut rm::RedisModuleString) -> Self {
        KeyName(name, PhantomData)
    }
}

/// A string that the module has made. Freed on drop.
pub struct OwnedString(*mut rm::RedisModuleString);

impl OwnedString {
    pub(super) fn new(bytes: &[u8]) -> OwnedString {
        // Without a context, because its owner frees it, not the server's automatic memory.
        let ctx = std::ptr::null_mut();
        // SAFETY: the server copies the bytes.
        OwnedString(unsafe { api!(RedisModule_CreateString(ctx, bytes.as_ptr().cast(), bytes.len())) })
    }

    pub fn name(&self) -> KeyName<'_> {
        KeyName(self.0, PhantomData)
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: valid until dropped.
        unsafe { bytes_of(self.0) }
    }
}

impl Drop for OwnedString {
    fn drop(&mut self) {
        // SAFETY: made without a context, freed once.
        unsafe { api!(RedisModule_FreeString(std::ptr::null_mut(), self.0)) };
    }
}
