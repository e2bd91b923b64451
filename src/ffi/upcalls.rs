//! The server's calls into the module, except commands, in safe types.

use std::cell::Cell;
use std::ffi::CStr;

use super::ctx::Ctx;
use super::raw::{api, c_string, catch_panic, rm};
use super::user::Waited;

/// The module as the server calls it. Many of the server's callbacks have no parameter for data of the
/// module. So each callback calls [`Upcalls::get`], which returns the only module value of the process.
///
/// The server calls from its main thread, one call at a time. But some functions of the server call the
/// module back before they return.
pub trait Upcalls: Sized + 'static {
    /// The value of a key. Any thread of the server may free it.
    type Value: Send;
    /// The answer to a blocked client.
    type Answer;
    type Options: 'static;

    /// The name in MODULE LIST.
    const NAME: &'static CStr;
    const VERSION: i32;
    /// The name of the type, which TYPE returns. The server requires nine characters.
    const TYPE: &'static CStr;
    /// The command that makes a value from the bytes of [`Upcalls::effect`], in a rewritten append only file.
    const EFFECT: &'static CStr;

    /// Returns the module of this process. `None` before it is loaded.
    fn get() -> Option<&'static Self>;

    fn options<R>(&self, run: impl FnOnce(&mut Self::Options) -> R + Send) -> R;
    fn info(&self, section: &Section);

    fn notice(&self, ctx: Ctx<'_>, notice: Notice);
    /// A key of any type was evicted.
    fn evicted(&self, ctx: Ctx<'_>, db: i32, key: &[u8]);
    /// The timer has fired.
    fn on_timer(&self, ctx: Ctx<'_>);

    /// Writes an answer to its client.
    fn deliver(&self, ctx: Ctx<'_>, answer: &mut Self::Answer, waited: Waited);
    /// The server returns an answer that it no longer needs, delivered or not.
    fn reply_reclaimed(&self, answer: Self::Answer);
    /// The connection of a blocked client has closed, or the server itself has ended the wait: by CLIENT
    /// UNBLOCK, or because its role has changed.
    fn gone(&self, handle: Handle);

    /// Reads the saved value of a key. The error says why the value is refused.
    fn load(&self, bytes: &[u8], db: i32, key: &[u8]) -> Result<Box<Self::Value>, String>;
    fn save(&self, value: &Self::Value) -> Vec<u8>;
    fn effect(&self, value: &Self::Value) -> Vec<u8>;
    /// Adds to the digest all data that must be equal on a replica.
    fn digest(&self, value: &Self::Value, add: &mut dyn FnMut(&[u8]));
    /// Returns the bytes of memory that a value takes.
    fn memory(&self, value: &Self::Value) -> usize;
    /// The key of a value is removed. After RENAME or MOVE, the value continues under another name.
    fn unlinked(&self, value: &mut Self::Value, db: i32, key: &[u8]);
    /// Returns the numbers to save in an RDB file beside the keys. The first number is below 2^63. If it is
    /// 0, there is nothing to save.
    fn stored_numbers(&self) -> [u64; 5];
    /// Receives the numbers of an RDB file that is loaded. Returns false if one is invalid.
    fn load_numbers(&self, numbers: [u64; 5]) -> bool;
}

/// An event of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    BecameMaster,
    BecameReplica,
    /// A database is being emptied. `None` means all of them.
    Flushing(Option<i32>),
    Swapped(i32, i32),
    /// A load has begun: of a file, or (`from_master`) of a snapshot from the master.
    Loading {
        from_master: bool,
    },
    LoadingEnded {
        complete: bool,
    },
    /// A connection has closed.
    ClientGone(u64),
    /// Sent many times a second. Jumps of the wall clock neither delay nor hasten it.
    Tick,
    /// A turn of the event loop ends: the server is about to write its append only file, and after that the
    /// replies. Only while [`super::notices::watch_turns`] is on.
    TurnEnds,
    /// A turn of the event loop begins, and the replies of the last turn have been sent. Only while
    /// [`super::notices::watch_turns`] is on.
    NextTurn,
    /// A child process was forked.
    Forked,
    /// CONFIG SET.
    Configured,
    /// A module was loaded or unloaded.
    ModulesChanged,
}

/// A blocked client. Must be unblocked exactly once, even if it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub(super) *mut rm::RedisModuleBlockedClient);

// SAFETY: a handle only identifies a client. `unblock` also needs a context, and a context is not `Send`.
unsafe impl Send for Handle {}
// SAFETY: as for `Send`.
unsafe impl Sync for Handle {}

/// Writes the fields of the INFO section.
pub struct Section(pub(super) *mut rm::RedisModuleInfoCtx);

impl Section {
    pub fn number(&self, field: &CStr, value: u64) {
        // SAFETY: valid while the INFO callback runs.
        unsafe { api!(RedisModule_InfoAddFieldULongLong(self.0, field.as_ptr(), value)) };
    }

    pub fn text(&self, field: &CStr, value: &str) {
        let value = c_string(value);
        // SAFETY: valid while the INFO callback runs; the server copies the text.
        unsafe { api!(RedisModule_InfoAddFieldCString(self.0, field.as_ptr(), value.as_ptr())) };
    }
}

/// Runs an upcall. Returns `fallback` after a panic, and before the module is loaded.
pub(super) fn enter<M: Upcalls, R>(fallback: R, call: impl FnOnce(&'static M) -> R) -> R {
    catch_panic(None, || M::get().map(call)).unwrap_or(fallback)
}

/// A value for the server's main thread only. It lives as long as the process.
pub struct MainThread<T: 'static>(Cell<Option<&'static T>>);

// SAFETY: every entry of the module that reaches a `MainThread` is called by the server's main thread while
// it holds the server's global lock. The one entry that other threads call (the key type's `free`) reaches
// none. The module's own threads get no reference to one: the module contains cells, so it is not `Sync`, and
// the compiler lets no reference to it pass to another thread.
unsafe impl<T> Sync for MainThread<T> {}

impl<T> MainThread<T> {
    pub const fn empty() -> Self {
        MainThread(Cell::new(None))
    }

    pub fn set(&self, value: T) -> &'static T {
        let value = Box::leak(Box::new(value));
        self.0.set(Some(value));
        value
    }

    #[inline]
    pub fn get(&self) -> Option<&'static T> {
        self.0.get()
    }
}
