//! Who waits: one line a resource, first come first served, and the ways to find somebody in it.
//!
//! It keeps the order and decides no grant: that is [`crate::decide`], which serves a line from its head. Nothing here
//! is stored or sent; the lines live as long as the connections that wait in them.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};

use smallvec::SmallVec;

use crate::bytes::Bytes;
use crate::lock::{Count, Mode, Request};
use crate::schedule::{Schedule, Slot};
use crate::units::{ClientId, Deadline, Instant, Token, Ttl};

/// A resource as the server names it: a key of a database.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name<'a> {
    pub db: i32,
    pub key: Cow<'a, [u8]>,
}

impl<'a> Name<'a> {
    pub fn new(db: i32, key: &'a [u8]) -> Name<'a> {
        Name { db, key: Cow::Borrowed(key) }
    }

    pub fn to_owned(&self) -> Name<'static> {
        Name { db: self.db, key: Cow::Owned(self.key.to_vec()) }
    }
}

/// A waiter, for as long as the server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(pub u64);

/// Where in the line somebody joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rank {
    /// A sharer that wants to be the exclusive holder: everybody behind it waits for it anyway.
    Upgrade,
    Newcomer,
}

/// A place in a line: those of a rank stand in the order in which they came.
pub(crate) type Place = (Rank, WaiterId);

/// A blocked ACQUIRE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    pub id: WaiterId,
    pub rank: Rank,
    pub name: Name<'static>,
    pub token: Token,
    pub mode: Mode,
    pub ttl: Ttl,
    pub count: Count,
    pub bound_to: Option<ClientId>,
    pub delay: u32,
    pub label: Bytes,
    /// The connection that waits.
    pub client: ClientId,
    pub since: Instant,
    /// None waits for ever.
    pub until: Option<Deadline>,
    timeout: Slot,
}

impl Waiter {
    /// What it asked for.
    pub fn request(&self) -> Request<'_> {
        Request {
            token: self.token.as_bytes(),
            ttl: self.ttl,
            mode: self.mode,
            count: self.count,
            bound_to: self.bound_to,
            delay: self.delay,
            label: &self.label,
        }
    }
}

/// Somebody who is to join a line.
pub struct Newcomer<'a> {
    pub name: Name<'a>,
    pub rank: Rank,
    pub request: Request<'a>,
    pub client: ClientId,
    pub since: Instant,
    pub until: Option<Deadline>,
}

/// The most that may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub on_the_server: usize,
    pub on_a_key: usize,
}

/// Everybody who waits on this server.
#[derive(Clone, Default)]
pub struct Waiting {
    waiters: HashMap<WaiterId, Waiter>,
    lines: HashMap<Name<'static>, BTreeSet<Place>>,
    by_token: HashMap<Token, BTreeSet<WaiterId>>,
    by_client: HashMap<ClientId, WaiterId>,
    timeouts: Schedule<WaiterId>,
    /// The tokens that wait more than once.
    in_several: HashSet<Token>,
    last_id: u64,
}

impl Waiting {
    /// The room for so many is kept while nobody waits.
    const CROWD: usize = 1_000;

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// How many wait for one resource.
    pub fn len_of(&self, name: &Name<'_>) -> usize {
        if self.is_empty() { 0 } else { self.lines.get(name).map_or(0, BTreeSet::len) }
    }

    pub fn has_room(&self, name: &Name<'_>, limits: Limits) -> bool {
        self.len() < limits.on_the_server && self.len_of(name) < limits.on_a_key
    }

    /// Joins the line. The caller has looked whether there is room and whether waiting would close a circle.
    pub fn join(&mut self, newcomer: Newcomer<'_>) -> Option<WaiterId> {
        self.last_id += 1;
        let id = WaiterId(self.last_id);
        let Newcomer { name, rank, request, client, since, until } = newcomer;
        let token = Token::new(request.token)?;
        let timeout = match until {
            Some(until) => self.timeouts.insert(until, id)?,
            None => Slot::NONE,
        };
        let waiter = Waiter {
            id,
            rank,
            name: name.to_owned(),
            token: token.clone(),
            mode: request.mode,
            ttl: request.ttl,
            count: request.count,
            bound_to: request.bound_to,
            delay: request.delay,
            label: request.label.into(),
            client,
            since,
            until,
            timeout,
        };
        self.lines.entry(waiter.name.clone()).or_default().insert((rank, id));
        let waits = self.by_token.entry(token).or_default();
        waits.insert(id);
        if waits.len() == 2 {
            self.in_several.insert(waiter.token.clone());
        }
        self.by_client.insert(client, id);
        self.waiters.insert(id, waiter);
        Some(id)
    }

    /// Takes somebody out of the line, wherever in it.
    pub fn leave(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = self.waiters.remove(&id)?;
        if let Some(line) = self.lines.get_mut(&waiter.name) {
            line.remove(&(waiter.rank, id));
            if line.is_empty() {
                self.lines.remove(&waiter.name);
            }
        }
        if let Some(ids) = self.by_token.get_mut(&waiter.token) {
            ids.remove(&id);
            if ids.len() == 1 {
                self.in_several.remove(&waiter.token);
            }
            if ids.is_empty() {
                self.by_token.remove(&waiter.token);
            }
        }
        if self.by_client.get(&waiter.client) == Some(&id) {
            self.by_client.remove(&waiter.client);
        }
        if waiter.timeout != Slot::NONE {
            self.timeouts.remove(waiter.timeout);
        }
        if self.is_empty() && self.waiters.capacity() > Self::CROWD {
            // Give the memory of a crowd back once it has left.
            *self = Waiting { last_id: self.last_id, ..Waiting::default() };
        }
        Some(waiter)
    }

    pub fn get(&self, id: WaiterId) -> Option<&Waiter> {
        self.waiters.get(&id)
    }

    /// Who is next.
    pub fn head(&self, name: &Name<'_>) -> Option<&Waiter> {
        if self.is_empty() {
            return None;
        }
        self.lines.get(name)?.first().and_then(|(_, id)| self.waiters.get(id))
    }

    /// Everybody in the line, first first.
    pub fn line<'a>(&'a self, name: &Name<'a>) -> impl Iterator<Item = &'a Waiter> + use<'a> {
        self.lines.get(name).into_iter().flatten().filter_map(|(_, id)| self.waiters.get(id))
    }

    /// Every resource somebody waits for.
    pub fn names(&self) -> impl Iterator<Item = &Name<'static>> {
        self.lines.keys()
    }

    /// Everything this token waits for, here and on other resources.
    pub fn of_token(&self, token: &[u8]) -> impl Iterator<Item = &Waiter> {
        self.by_token.get(token).into_iter().flatten().filter_map(|id| self.waiters.get(id))
    }

    /// The waiters of a token on one resource.
    pub fn of_token_on(&self, token: &[u8], name: &Name<'_>) -> SmallVec<[WaiterId; 2]> {
        if self.is_empty() {
            return SmallVec::new();
        }
        self.of_token(token).filter(|waiter| waiter.name == *name).map(|waiter| waiter.id).collect()
    }

    pub fn of_client(&self, client: ClientId) -> Option<&Waiter> {
        self.waiters.get(self.by_client.get(&client)?)
    }

    /// Whether a sharer waits to be the exclusive holder.
    pub fn upgrader(&self, name: &Name<'_>) -> Option<&Waiter> {
        self.head(name).filter(|waiter| waiter.rank == Rank::Upgrade)
    }

    /// Where the token stands in a line, its first place if it waits there more than once: whatever it is granted
    /// there answers the others.
    pub(crate) fn place(&self, token: &Token, name: &Name<'_>) -> Option<Place> {
        let here = self.of_token(token.as_bytes()).filter(|waiter| waiter.name == *name);
        here.map(|waiter| (waiter.rank, waiter.id)).min()
    }

    /// The tokens in a line that wait elsewhere too: only they can be stuck there for a reason of their own.
    pub(crate) fn elsewhere_too<'a>(&'a self, name: &Name<'a>) -> Vec<&'a Token> {
        if self.in_several.len() < self.len_of(name) {
            self.in_several.iter().filter(|token| self.place(token, name).is_some()).collect()
        } else {
            self.line(name)
                .map(|waiter| &waiter.token)
                .filter(|token| self.in_several.contains(*token))
                .collect()
        }
    }

    /// When the first wait is over.
    pub fn next_timeout(&self) -> Option<Deadline> {
        self.timeouts.first().map(|(due, _)| due)
    }

    /// Somebody whose time is over.
    pub fn timed_out(&self, now: Instant) -> Option<WaiterId> {
        let (due, slot) = self.timeouts.first()?;
        if due.passed(now) { self.timeouts.get(slot).copied() } else { None }
    }
}
