//! Every way by which the server comes in, but for the commands: who takes what.

use std::ffi::CStr;

use crate::config::Config;
use crate::ffi::{Ctx, Handle, MainThread, Notice, Section, Upcalls, Waited};
use crate::module::Module;
use crate::value::Value;
use crate::waiters::{self, Answer};
use crate::{clock, deadlines, effects, events, evictions, info, stored};

/// Only [`Upcalls::get`] asks it: everything else is handed the module.
static MODULE: MainThread<Module> = MainThread::empty();

/// Makes the one of this process. Nothing that the server calls finds it before.
pub fn start(ctx: Ctx<'_>) -> &'static Module {
    MODULE.set(Module::new(ctx, clock::now()))
}

impl Upcalls for Module {
    type Value = Value;
    type Answer = Answer;
    type Options = Config;

    const NAME: &'static CStr = c"dlock";
    /// 0.1.0 as MODULE LIST shows it: two digits each.
    const VERSION: i32 = 100;
    const TYPE: &'static CStr = c"dlock-key";
    const EFFECT: &'static CStr = effects::SET;

    #[inline]
    fn get() -> Option<&'static Module> {
        MODULE.get()
    }

    fn options<R>(&self, run: impl FnOnce(&mut Config) -> R + Send) -> R {
        self.with(|s| run(&mut s.config))
    }

    fn info(&self, section: &Section) {
        info::write(self, section);
    }

    fn notice(&self, ctx: Ctx<'_>, notice: Notice) {
        events::on_notice(self, ctx, notice);
    }

    fn evicted(&self, ctx: Ctx<'_>, db: i32, key: &[u8]) {
        evictions::evicted(self, ctx, db, key);
    }

    fn on_timer(&self, ctx: Ctx<'_>) {
        deadlines::on_timer(self, ctx);
    }

    fn deliver(&self, ctx: Ctx<'_>, answer: &mut Answer, waited: Waited) {
        answer.deliver(self, ctx, waited);
    }

    fn came_back(&self, answer: Answer) {
        waiters::came_back(self, answer);
    }

    fn gone(&self, handle: Handle) {
        waiters::gone(self, handle);
    }

    fn load(&self, bytes: &[u8], db: i32, key: &[u8]) -> Result<Box<Value>, String> {
        stored::load(self, bytes, db, key)
    }

    fn save(&self, value: &Value) -> Vec<u8> {
        stored::save(value)
    }

    fn effect(&self, value: &Value) -> Vec<u8> {
        stored::effect(self, value)
    }

    fn digest(&self, value: &Value, add: &mut dyn FnMut(&[u8])) {
        value.digest(clock::anchor(), add);
    }

    fn memory(&self, value: &Value, key: usize) -> usize {
        value.memory(key)
    }

    fn unlinked(&self, value: &mut Value, db: i32, key: &[u8]) {
        stored::unlinked(self, value, db, key);
    }

    fn stored_number(&self) -> u64 {
        stored::last_fence(self)
    }

    fn load_number(&self, number: u64) -> bool {
        stored::raise_fence(self, number)
    }
}
