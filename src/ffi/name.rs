//! Names of keys as the server has them.

use std::marker::PhantomData;

use super::raw::{api, bytes_of, rm};

/// The name of a key, lent by whoever has it.
#[derive(Clone, Copy)]
pub struct KeyName<'a>(pub(super) *mut rm::RedisModuleString, PhantomData<&'a ()>);

impl KeyName<'_> {
    /// # Safety
    /// Valid for the lifetime, or null where no key will be asked for.
    pub(super) unsafe fn new(name: *mut rm::RedisModuleString) -> Self {
        KeyName(name, PhantomData)
    }
}

/// A server string made by the module.
pub struct OwnedString(*mut rm::RedisModuleString);

impl OwnedString {
    pub(super) fn new(bytes: &[u8]) -> OwnedString {
        // Without a context: it is freed by its owner, not by the server's automatic memory.
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
