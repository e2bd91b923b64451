//! Every way in that is not a command: what the server calls, in safe terms.

use std::cell::Cell;
use std::ffi::CStr;

use super::ctx::Ctx;
use super::raw::{api, c_string, guard, rm};
use super::user::Waited;

/// What a module is to the server. Many of the server's callbacks carry no data of the module's, so each asks
/// for the one value of the process and hands it on as an argument.
///
/// The server calls from its main thread, one call at a time, but some of the functions that the module calls
/// come back in here before they return.
pub trait Upcalls: Sized + 'static {
    /// What a key holds. Freed by whatever thread the server likes.
    type Value: Send;
    /// What a waiter is told.
    type Answer;
    type Options: 'static;

    /// As MODULE LIST shows it.
    const NAME: &'static CStr;
    const VERSION: i32;
    /// Nine characters, as the server wants it; what TYPE answers.
    const TYPE: &'static CStr;
    /// The command that makes a value anew, from what [`Upcalls::effect`] answers.
    const EFFECT: &'static CStr;

    /// The one of this process; None until it is loaded.
    fn get() -> Option<&'static Self>;

    fn options<R>(&self, run: impl FnOnce(&mut Self::Options) -> R + Send) -> R;
    fn info(&self, section: &Section);

    fn notice(&self, ctx: Ctx<'_>, notice: Notice);
    /// A key was evicted, of whatever type.
    fn evicted(&self, ctx: Ctx<'_>, db: i32, key: &[u8]);
    /// The timer has fired.
    fn on_timer(&self, ctx: Ctx<'_>);

    /// Its client takes the answer.
    fn deliver(&self, ctx: Ctx<'_>, answer: &mut Self::Answer, waited: Waited);
    /// An answer has done its work, or found nobody to work on.
    fn reply_reclaimed(&self, answer: Self::Answer);
    /// A waiter has gone, or was answered by the server.
    fn gone(&self, handle: Handle);

    /// Reads what was saved under this name; the error says why it is refused.
    fn load(&self, bytes: &[u8], db: i32, key: &[u8]) -> Result<Box<Self::Value>, String>;
    fn save(&self, value: &Self::Value) -> Vec<u8>;
    fn effect(&self, value: &Self::Value) -> Vec<u8>;
    /// Feeds what has to be equal on a replica.
    fn digest(&self, value: &Self::Value, add: &mut dyn FnMut(&[u8]));
    /// Bytes it takes under a name of so many.
    fn memory(&self, value: &Self::Value, key: usize) -> usize;
    /// Its key is taken out of the keyspace. The value itself may live on under another name.
    fn unlinked(&self, value: &mut Self::Value, db: i32, key: &[u8]);
    /// The numbers that are stored beside the keys. The first is below 2^63, and 0 where there are none.
    fn stored_numbers(&self) -> [u64; 5];
    /// False where one cannot be.
    fn load_numbers(&self, numbers: [u64; 5]) -> bool;
}

/// Something happened to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    BecameMaster,
    BecameReplica,
    /// A database is being emptied; None for all of them.
    Flushing(Option<i32>),
    Swapped(i32, i32),
    /// Loading began, of a file or, `live`, from the master over the replication link.
    Loading {
        live: bool,
    },
    LoadingEnded,
    LoadingFailed,
    /// A connection has closed.
    ClientGone(u64),
    /// Many times a second, by a clock that does not jump.
    Tick,
    /// A turn of the event loop begins: what was to be written in the last one is written. Told from
    /// [`super::notices::watch_turns`] on.
    NextTurn,
    /// A child process was forked.
    Forked,
    /// CONFIG SET.
    Configured,
    /// A module was loaded or unloaded.
    ModulesChanged,
}

/// A blocked client; has to be unblocked exactly once, even when it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub(super) *mut rm::RedisModuleBlockedClient);

// SAFETY: by itself it only names a client; `unblock` needs a context beside it, which is not `Send`.
unsafe impl Send for Handle {}
// SAFETY: as above.
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
        // SAFETY: as above; the server copies the text.
        unsafe { api!(RedisModule_InfoAddFieldCString(self.0, field.as_ptr(), value.as_ptr())) };
    }
}

/// Runs an upcall. What a panic, or a call before the module is loaded, comes to is `fallback`.
pub(super) fn enter<M: Upcalls, R>(fallback: R, call: impl FnOnce(&'static M) -> R) -> R {
    guard(None, || M::get().map(call)).unwrap_or(fallback)
}

/// Something only the server's main thread touches. It lives as long as the process.
pub struct MainThread<T: 'static>(Cell<Option<&'static T>>);

// SAFETY: every entry of the module that reaches a `MainThread` is called by the server's main thread while
// it holds the server's global lock. The one entry that other threads call (the key type's `free`) reaches
// none. A thread of the module's own gets no reference from here: what has cells in it is not `Sync`, so none
// can be sent there.
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
