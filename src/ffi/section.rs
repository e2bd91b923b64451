//! The INFO section.

use std::ffi::CStr;

use super::raw::{api, c_string, rm};

/// Writes the fields of the INFO section.
pub struct Section(pub(super) *mut rm::RedisModuleInfoCtx);

impl Section {
    pub fn number(&self, field: &CStr, value: u64) {
        // SAFETY: valid while the INFO callback runs.
        unsafe { api!(RedisModule_InfoAddFieldULongLong(self.0, field.as_ptr(), value)) };
    }

    pub fn text(&self, field: &CStr, value: &str) {
        let value = c_string(value);
        // SAFETY: as above; the server copies the text.
        unsafe { api!(RedisModule_InfoAddFieldCString(self.0, field.as_ptr(), value.as_ptr())) };
    }
}
