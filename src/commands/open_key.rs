//! What every command begins and ends with: opening its key, to change or to read it, and writing the reply.

use dlock_core::Lock;
use dlock_protocol::error::{Error, Misuse};
use dlock_protocol::reply::Sink;

use crate::effects::Target;
use crate::ffi::setup::Args;
use crate::ffi::{Ctx, WrongType};
use crate::module::Module;
use crate::value::Key;

/// Result of a command. The error is the reply.
pub type Done = Result<(), String>;

/// Returns the reply to arguments that cannot be parsed. Takes a reference, so that the parsed command is not
/// moved.
#[cold]
pub fn misuse(why: &Misuse) -> String {
    why.to_string()
}

pub fn open<'a>(m: &'a Module, ctx: Ctx<'a>, args: &Args<'a>, key: &'a [u8]) -> Result<Target<'a>, String> {
    Target::open(m, ctx, args.key, key)
}

/// Reads the lock of the command's key without changing it. Works on replicas.
pub fn read_lock<R>(ctx: Ctx<'_>, args: &Args<'_>, read: impl FnOnce(&Lock) -> R) -> Result<R, String> {
    let mut key = Key::open_for_read(ctx, args.key).map_err(|WrongType| Error::WrongType)?;
    let free = Lock::default();
    let lock = key.value().map_or(&free, |value| &value.lock);
    Ok(read(lock))
}

/// Replies of the protocol are written to the connection of the command.
impl Sink for Ctx<'_> {
    #[inline]
    fn int(&mut self, number: i64) {
        self.reply_int(number);
    }

    fn null(&mut self) {
        self.reply_null();
    }

    fn bulk(&mut self, bytes: &[u8]) {
        self.reply_bytes(bytes);
    }

    fn array(&mut self, len: usize) {
        self.reply_array(len);
    }

    fn map(&mut self, len: usize) {
        self.reply_map(len);
    }
}
