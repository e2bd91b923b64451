//! What commands begin with: the lock of their key, to change or to read.

use dlock_core::Lock;
use dlock_protocol::error::{Error, Misuse};

use crate::effects::Target;
use crate::ffi::setup::Args;
use crate::ffi::{Ctx, WrongType};
use crate::module::Module;
use crate::value::Key;

/// What is wrong is the reply.
pub type Done = Result<(), String>;

/// The reply to what cannot be read; by reference, so that what can be is not moved about.
#[cold]
pub fn misuse(why: &Misuse) -> String {
    why.to_string()
}

pub fn open<'a>(m: &'a Module, ctx: Ctx<'a>, args: &Args<'a>, key: &'a [u8]) -> Result<Target<'a>, String> {
    Target::open(m, ctx, args.key, key)
}

/// Reads a lock as it is now, without changing anything; works on replicas.
pub fn look<R>(ctx: Ctx<'_>, args: &Args<'_>, read: impl FnOnce(&Lock) -> R) -> Result<R, String> {
    let mut key = Key::open_for_read(ctx, args.key).map_err(|WrongType| Error::WrongType)?;
    let free = Lock::default();
    let lock = key.value().map_or(&free, |value| &value.lock);
    Ok(read(lock))
}
