//! Strings of the server (`RedisModuleString`): borrowed key names, and strings that the module creates.

use std::marker::PhantomData;

use super::raw::{api, bytes_of, rm};

/// A borrowed name of a key.
#[derive(Clone, Copy)]
pub struct KeyName<'a>(pub(super) *mut rm::RedisModuleString, PhantomData<&'a ()>);

impl KeyName<'_> {
    /// # Safety
    /// `name` is valid for the lifetime of the result. It may be null only if no key is opened with it.
    pub(super) unsafe fn new(name: *mut rm::RedisModuleString) -> Self {
        KeyName(name, PhantomData)
    }
}

/// A string that the module created. Freed on drop.
pub struct OwnedString(*mut rm::RedisModuleString);

impl OwnedString {
    pub(super) fn new(bytes: &[u8]) -> OwnedString {
        // With a context, the server's automatic memory management would free the string, too.
        let ctx = std::ptr::null_mut();
        // SAFETY: the server copies the bytes.
        OwnedString(unsafe { api!(RedisModule_CreateString(ctx, bytes.as_ptr().cast(), bytes.len())) })
    }

    pub fn name(&self) -> KeyName<'_> {
        KeyName(self.0, PhantomData)
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the string is valid until it is dropped.
        unsafe { bytes_of(self.0) }
    }
}

impl Drop for OwnedString {
    fn drop(&mut self) {
        // SAFETY: the string was created without a context, and is freed once.
        unsafe { api!(RedisModule_FreeString(std::ptr::null_mut(), self.0)) };
    }
}
