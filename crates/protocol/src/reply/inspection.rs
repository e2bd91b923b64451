//! What INSPECT and WAITERS answer: who holds, who waits.

use std::borrow::Cow;

use super::{Reply, Sink, Value, fields};
use crate::request::Mode;

/// A resource as a server sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection<'a> {
    /// As [`Mode::word`] says it, or [`Inspection::FREE`].
    pub mode: Cow<'a, [u8]>,
    /// How many permits there are; 0 in any other mode.
    pub permits: u64,
    /// The greatest fence among the holders; 0 where nobody holds it.
    pub fence: u64,
    /// Not all of them where they are many.
    pub holders: Vec<Holder<'a>>,
    pub holders_count: u64,
    pub waiters: u64,
    /// The ms left of a lock-delay.
    pub delay: u64,
}

/// Who holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder<'a> {
    pub token: Cow<'a, [u8]>,
    pub count: u64,
    pub fence: u64,
    /// The ms left of its lease.
    pub pttl: u64,
    /// The ms since the grant.
    pub held: u64,
    pub label: Cow<'a, [u8]>,
    pub ephemeral: bool,
    /// The connection it is bound to; 0 where none is known, as after a restart.
    pub client: u64,
}

/// Who waits for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waiting<'a> {
    pub client: u64,
    pub token: Cow<'a, [u8]>,
    /// As [`Mode::word`] says it.
    pub mode: Cow<'a, [u8]>,
    /// For so many ms.
    pub waited: u64,
    /// For so many ms more; None, on the wire -1, for ever.
    pub left: Option<u64>,
    pub label: Cow<'a, [u8]>,
}

impl Inspection<'_> {
    /// The mode of a resource that nobody holds.
    pub const FREE: &'static str = "free";
}

impl Mode {
    pub const fn word(self) -> &'static str {
        match self {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
            Mode::Permits(_) => "permits",
        }
    }

    /// How many permits there are; 0 in any other mode.
    pub const fn permits(self) -> u32 {
        match self {
            Mode::Permits(n) => n.get(),
            Mode::Exclusive | Mode::Shared => 0,
        }
    }
}

/// Null where nobody holds the resource or waits for it, and no lock-delay runs.
impl Reply for Option<Inspection<'_>> {
    fn write(&self, to: &mut impl Sink) {
        let Some(seen) = self else { return to.null() };
        to.map(7);
        fields::name(to, "mode").bulk(&seen.mode);
        seen.permits.write(fields::name(to, "permits"));
        seen.fence.write(fields::name(to, "fence"));
        fields::name(to, "holders").array(seen.holders.len());
        seen.holders.iter().for_each(|holder| holder.write(to));
        seen.holders_count.write(fields::name(to, "holders-count"));
        seen.waiters.write(fields::name(to, "waiters"));
        seen.delay.write(fields::name(to, "delay"));
    }

    fn read(value: Value) -> Option<Self> {
        if value == Value::Null {
            return Some(None);
        }
        let mut seen = Inspection::default();
        for (name, value) in fields::read(value)? {
            match &name[..] {
                b"mode" => seen.mode = text(value)?,
                b"permits" => seen.permits = u64::read(value)?,
                b"fence" => seen.fence = u64::read(value)?,
                b"holders" => seen.holders = fields::list(value, Holder::read)?,
                b"holders-count" => seen.holders_count = u64::read(value)?,
                b"waiters" => seen.waiters = u64::read(value)?,
                b"delay" => seen.delay = u64::read(value)?,
                _ => {}
            }
        }
        Some(Some(seen))
    }
}

impl Reply for Holder<'_> {
    fn write(&self, to: &mut impl Sink) {
        to.map(8);
        fields::name(to, "token").bulk(&self.token);
        self.count.write(fields::name(to, "count"));
        self.fence.write(fields::name(to, "fence"));
        self.pttl.write(fields::name(to, "pttl"));
        self.held.write(fields::name(to, "held"));
        fields::name(to, "label").bulk(&self.label);
        self.ephemeral.write(fields::name(to, "ephemeral"));
        self.client.write(fields::name(to, "client"));
    }

    fn read(value: Value) -> Option<Self> {
        let mut holder = Holder::default();
        for (name, value) in fields::read(value)? {
            match &name[..] {
                b"token" => holder.token = text(value)?,
                b"count" => holder.count = u64::read(value)?,
                b"fence" => holder.fence = u64::read(value)?,
                b"pttl" => holder.pttl = u64::read(value)?,
                b"held" => holder.held = u64::read(value)?,
                b"label" => holder.label = text(value)?,
                b"ephemeral" => holder.ephemeral = bool::read(value)?,
                b"client" => holder.client = u64::read(value)?,
                _ => {}
            }
        }
        Some(holder)
    }
}

/// The queue, its head first.
impl Reply for Vec<Waiting<'_>> {
    fn write(&self, to: &mut impl Sink) {
        to.array(self.len());
        self.iter().for_each(|waiting| waiting.write(to));
    }

    fn read(value: Value) -> Option<Self> {
        fields::list(value, Waiting::read)
    }
}

impl Reply for Waiting<'_> {
    fn write(&self, to: &mut impl Sink) {
        to.map(6);
        self.client.write(fields::name(to, "client"));
        fields::name(to, "token").bulk(&self.token);
        fields::name(to, "mode").bulk(&self.mode);
        self.waited.write(fields::name(to, "waited"));
        match self.left {
            Some(ms) => ms.write(fields::name(to, "left")),
            None => fields::name(to, "left").int(-1),
        }
        fields::name(to, "label").bulk(&self.label);
    }

    fn read(value: Value) -> Option<Self> {
        let mut waiting = Waiting::default();
        for (name, value) in fields::read(value)? {
            match &name[..] {
                b"client" => waiting.client = u64::read(value)?,
                b"token" => waiting.token = text(value)?,
                b"mode" => waiting.mode = text(value)?,
                b"waited" => waiting.waited = u64::read(value)?,
                b"left" => waiting.left = u64::read(value),
                b"label" => waiting.label = text(value)?,
                _ => {}
            }
        }
        Some(waiting)
    }
}

fn text(value: Value) -> Option<Cow<'static, [u8]>> {
    fields::bytes(value).map(Cow::Owned)
}
