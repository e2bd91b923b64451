//! The reply of LOG.

use std::borrow::Cow;

use super::{Reply, Sink, Value, fields};

/// An incident.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Logged<'a> {
    pub id: u64,
    /// Unix time in ms.
    pub time: u64,
    pub what: Cow<'a, [u8]>,
    pub db: u64,
    pub key: Cow<'a, [u8]>,
    pub token: Cow<'a, [u8]>,
    pub label: Cow<'a, [u8]>,
    /// 0 if it is unknown.
    pub client: u64,
    pub address: Cow<'a, [u8]>,
    /// 0 if there is none.
    pub fence: u64,
    /// The duration of the hold or of the wait.
    pub lasted: Lasted,
}

/// A duration in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasted {
    Held(u64),
    Waited(u64),
}

impl Default for Lasted {
    fn default() -> Lasted {
        Lasted::Held(0)
    }
}

/// Writes the name of a field. Its value must follow.
fn name<'s, S: Sink>(to: &'s mut S, name: &str) -> &'s mut S {
    to.bulk(name.as_bytes());
    to
}

impl Reply for Logged<'_> {
    fn write(&self, to: &mut impl Sink) {
        to.map(11);
        self.id.write(name(to, "id"));
        self.time.write(name(to, "time"));
        self.what.write(name(to, "what"));
        self.db.write(name(to, "db"));
        self.key.write(name(to, "key"));
        self.token.write(name(to, "token"));
        self.label.write(name(to, "label"));
        self.client.write(name(to, "client"));
        self.address.write(name(to, "address"));
        self.fence.write(name(to, "fence"));
        match self.lasted {
            Lasted::Held(ms) => ms.write(name(to, "held")),
            Lasted::Waited(ms) => ms.write(name(to, "waited")),
        }
    }

    fn read(value: Value) -> Option<Self> {
        let mut logged = Logged::default();
        for (name, value) in fields(value)? {
            match &name[..] {
                b"id" => logged.id = u64::read(value)?,
                b"time" => logged.time = u64::read(value)?,
                b"what" => logged.what = Cow::read(value)?,
                b"db" => logged.db = u64::read(value)?,
                b"key" => logged.key = Cow::read(value)?,
                b"token" => logged.token = Cow::read(value)?,
                b"label" => logged.label = Cow::read(value)?,
                b"client" => logged.client = u64::read(value)?,
                b"address" => logged.address = Cow::read(value)?,
                b"fence" => logged.fence = u64::read(value)?,
                b"held" => logged.lasted = Lasted::Held(u64::read(value)?),
                b"waited" => logged.lasted = Lasted::Waited(u64::read(value)?),
                _ => {}
            }
        }
        Some(logged)
    }
}
