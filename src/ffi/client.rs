//! The connections of clients.

use std::ffi::{CStr, c_int};

use super::Ctx;
use super::raw::{api, rm};

impl Ctx<'_> {
    /// The connection that sent the command; 0 where there is none.
    pub fn client_id(self) -> u64 {
        // SAFETY: (here and below) the context is valid by construction.
        unsafe { api!(RedisModule_GetClientId(self.0)) }
    }

    /// From where a connection comes, as CLIENT LIST shows it; None where there is none, or none any more.
    pub fn address(self, client: u64) -> Option<String> {
        if !self.is_connected(client) {
            return None;
        }
        // SAFETY: a plain C structure, for which zero bytes are valid; the server ends the text with a NUL.
        let (found, ip, port) = unsafe {
            let mut info = std::mem::zeroed::<rm::RedisModuleClientInfo>();
            info.version = rm::REDISMODULE_CLIENTINFO_VERSION.into();
            let found = api!(RedisModule_GetClientInfoById((&raw mut info).cast(), client));
            (found, CStr::from_ptr(info.addr.as_ptr()).to_string_lossy().into_owned(), info.port)
        };
        let address = if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") };
        (found == rm::REDISMODULE_OK as c_int).then_some(address)
    }

    /// Whether a client is a connection. What runs in a script or a guard has a number too. Valkey 9 finds it
    /// by that, and crashes at its address. The name of a user is looked for among connections only.
    pub fn is_connected(self, client: u64) -> bool {
        let user = unsafe { api!(RedisModule_GetClientUserNameById(self.0, client)) };
        if !user.is_null() {
            unsafe { api!(RedisModule_FreeString(self.0, user)) };
        }
        !user.is_null()
    }
}
