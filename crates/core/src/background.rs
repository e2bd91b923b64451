//! Whatever has to be done without anybody asking: what was noted for the background job, which locks are due
//! when, and what ends with which connection.
//!
//! All of it can be lost: it is rebuilt when locks are loaded, or let go.

use std::collections::HashMap;

use dlock_protocol::{ClientId, Deadline, Instant, Token};

use crate::deliveries::give_back;
use crate::grace::Grace;
use crate::lock::Lock;
use crate::queue::{Name, WaiterId, Waiting};
use crate::schedule::Slot;
use crate::scheduled::Scheduled;
use crate::step::{Binding, Departed, Rest};
use crate::tasks::{Bindings, Pending, Task, split_off_other_resources};

#[derive(Default)]
pub struct Background {
    pending: Pending,
    dbs: Vec<Db>,
    /// Whose turn it is: see [`Background::next_task`].
    turn: usize,
    /// A file is loaded: what is due is asked for at its end.
    is_loading: bool,
}

/// What is known of a database.
#[derive(Default)]
pub struct Db {
    /// The locks by when they are due.
    pub scheduled: Scheduled,
    /// What ends with a connection.
    bindings: HashMap<ClientId, Bindings>,
}

impl Background {
    /// About how many bytes it takes that a hold is bound to a connection, which mostly binds this one alone:
    /// an entry in a table that is half full at times, a leaf of a tree with room for eleven, and the name
    /// once more.
    pub const fn binding_size(key: usize) -> usize {
        2 * size_of::<(ClientId, Bindings)>() + 11 * size_of::<(Box<[u8]>, Token)>() + key
    }

    #[inline]
    fn db(&mut self, db: i32) -> &mut Db {
        let at = usize::try_from(db).unwrap_or(0);
        if at >= self.dbs.len() {
            self.make_db(at);
        }
        &mut self.dbs[at]
    }

    #[cold]
    fn make_db(&mut self, at: usize) {
        self.dbs.resize_with(at + 1, Db::default);
        if self.is_loading {
            self.loading_begins();
        }
    }

    /// Very many locks come, and nothing is due before [`Background::loading_ended`].
    pub fn loading_begins(&mut self) {
        self.is_loading = true;
        self.dbs.iter_mut().for_each(|db| db.scheduled.begin_bulk());
    }

    pub fn loading_ended(&mut self) {
        self.is_loading = false;
        self.dbs.iter_mut().for_each(|db| db.scheduled.end_bulk());
    }

    /// How many locks are held.
    pub fn held(&self) -> usize {
        self.dbs.iter().map(|db| db.scheduled.held()).sum()
    }

    /// How many hold them.
    pub fn holders(&self) -> usize {
        self.dbs.iter().map(|db| db.scheduled.holders()).sum()
    }

    pub fn note(&mut self, task: Task) {
        self.pending.push_back(task);
    }

    /// Puts a lock into the schedule, moves it there or takes it out, by what it holds. `true` where it is
    /// due before this millisecond.
    pub fn schedule(&mut self, lock: &mut Lock, db: i32, key: &[u8], before: u64) -> bool {
        let scheduled = &mut self.db(db).scheduled;
        let Some(due) = lock.next_due() else {
            if let Some(slot) = lock.slot_mut().take() {
                scheduled.remove(slot);
            }
            return false;
        };
        *lock.slot_mut() = scheduled.put(lock.slot(), due, key, lock.stored_len());
        due.millis() < before
    }

    /// The slots of the locks of a database, from this one on: see [`Scheduled::slots`].
    pub fn slots(&self, db: i32, from: u32) -> impl Iterator<Item = (u32, Option<&[u8]>)> {
        let db = usize::try_from(db).ok().and_then(|db| self.dbs.get(db));
        db.into_iter().flat_map(move |db| db.scheduled.slots(from))
    }

    pub fn unschedule(&mut self, slot: Slot, db: i32) {
        self.db(db).scheduled.remove(slot);
    }

    /// As [`Background::unschedule`], unless the slot has become that of another key meanwhile.
    pub fn unschedule_if_of(&mut self, slot: Slot, name: &Name<'_>) {
        self.db(name.db).scheduled.remove_if_of(slot, &name.key);
    }

    /// Keeps the books of the connections that holds are bound to.
    pub fn account(&mut self, name: &Name<'_>, rest: &mut Rest) {
        for binding in &rest.bindings {
            match binding {
                Binding::Begins(client, token) => {
                    let holds = self.db(name.db).bindings.entry(*client).or_default();
                    holds.insert(((*name.key).into(), token.clone()));
                }
                Binding::Ends(client, token) => self.unbind(*client, name, token),
            }
        }
        for departed in rest.departed.drain(..) {
            self.note(Task::Departed(name.to_owned(), Box::new(departed)));
        }
        if rest.unserved {
            self.note(Task::Serve(name.to_owned()));
        }
    }

    pub fn unbind(&mut self, client: ClientId, name: &Name<'_>, token: &Token) {
        let bindings = &mut self.db(name.db).bindings;
        if let Some(holds) = bindings.get_mut(&client) {
            holds.remove(&((*name.key).into(), token.clone()));
            if holds.is_empty() {
                bindings.remove(&client);
                give_back(bindings);
            }
        }
    }

    /// A connection has closed. Whether any hold was bound to it.
    pub fn client_gone(&mut self, client: ClientId) -> bool {
        let mut bound = false;
        for (at, db) in self.dbs.iter_mut().enumerate() {
            if let Some(holds) = db.bindings.remove(&client) {
                self.pending.push_back(Task::Disconnected(client, at as i32, holds));
                bound = true;
            }
        }
        bound
    }

    /// The wait queues of a database, or of all, may have to be served: of those that began behind this
    /// waiter, some after the other.
    pub fn serve(&mut self, waiting: &Waiting, of: Option<i32>, behind: WaiterId) {
        let mut next = None;
        for (began, name) in waiting.queues_behind(behind).take(Departed::SLICE) {
            next = Some(began);
            if of.is_none_or(|db| name.db == db) {
                self.note(Task::Serve(name.clone()));
            }
        }
        next.into_iter().for_each(|began| self.note(Task::ServeBehind(began, of)));
    }

    /// The next thing to do at `now`, if any. What was noted, waits that have timed out and leases that have
    /// expired take turns, so that however many there are of one, the others come as well.
    pub fn next_task(&mut self, waiting: &mut Waiting, grace: &mut Grace, now: Instant) -> Option<Task> {
        type Next = fn(&mut Background, &mut Waiting, Instant) -> Option<Task>;
        const KINDS: [Next; 3] = [
            |background, _, now| background.pending.next(now.millis()),
            |_, waiting, now| {
                let (waiter, outcome) = waiting.next_over(now)?;
                Some(Task::Over(waiter.name.clone(), waiter.id, outcome))
            },
            |background, _, now| background.next_lease(now),
        ];
        if grace.is_over(now) {
            return Some(Task::GraceOver);
        }
        KINDS.iter().find_map(|_| {
            self.turn = (self.turn + 1) % KINDS.len();
            KINDS[self.turn](self, waiting, now)
        })
    }

    fn next_lease(&mut self, now: Instant) -> Option<Task> {
        // The earliest of all databases: many that are due in one may not hold up another's.
        let firsts = self.dbs.iter().enumerate().filter_map(|(at, db)| Some((at, db.scheduled.first()?)));
        let (db, (_, slot)) =
            firsts.min_by_key(|(_, (due, _))| *due).filter(|(_, (due, _))| due.passed(now))?;
        let key = self.dbs[db].scheduled.key(slot)?;
        Some(Task::Due(Name::new(db as i32, key).to_owned(), slot))
    }

    /// The millisecond at which there will be something to do; None for never.
    pub fn next_due(&self, waiting: &Waiting, grace: &Grace) -> Option<u64> {
        let locks = self.dbs.iter().filter_map(|db| db.scheduled.first()).map(|(due, _)| due);
        let first = locks.chain(waiting.next_due()).min().map(|due| due.millis());
        first.into_iter().chain(self.pending.due()).chain(grace.due()).min()
    }

    /// A task that cannot be carried out yet is the next one again. What is found by its time is found again.
    pub fn put_back(&mut self, task: Task) {
        if !matches!(task, Task::Over(..) | Task::Due(..)) {
            self.pending.put_back(task);
        }
    }

    /// Looks at this again at `at`, which is no earlier than for what was put off before.
    pub fn put_off(&mut self, task: Task, at: Deadline) {
        match task {
            // What is due stands where it is found by its time.
            Task::Due(name, slot) => self.db(name.db).scheduled.put_off(slot, at),
            // The other resources of the connection need not wait.
            Task::Disconnected(client, db, mut holds) => {
                let elsewhere = split_off_other_resources(&mut holds);
                self.pending.put_off(Task::Disconnected(client, db, holds), at.millis());
                if !elsewhere.is_empty() {
                    self.note(Task::Disconnected(client, db, elsewhere));
                }
            }
            task => self.pending.put_off(task, at.millis()),
        }
    }

    /// This server is a master no more: what it had to do as one is its new master's business. Answers which
    /// holds were bound to a connection, those of a resource together.
    pub fn demoted(&mut self) -> Vec<(Name<'static>, Token)> {
        let closed = std::mem::take(&mut self.pending).into_tasks().filter_map(|task| match task {
            Task::Disconnected(_, db, holds) => Some((db, holds)),
            _ => None,
        });
        let open = self.dbs.iter_mut().enumerate().flat_map(|(at, db)| {
            std::mem::take(&mut db.bindings).into_values().map(move |holds| (at as i32, holds))
        });
        let holds = closed.chain(open).flat_map(|(db, holds)| {
            holds.into_iter().map(move |(key, token)| (Name::new(db, &key).to_owned(), token))
        });
        let mut bound: Vec<_> = holds.collect();
        bound.sort_unstable();
        bound
    }

    /// A database is emptied, or all are. Answers what was known of them: to free that takes a while.
    pub fn flushed(&mut self, db: Option<i32>) -> Vec<Db> {
        match db {
            Some(db) => vec![std::mem::take(self.db(db))],
            None => std::mem::take(&mut self.dbs),
        }
    }

    /// Two databases change places. The queues stay with the number of their database, as the connections in
    /// them do; the locks move. Answers how many were held there.
    pub fn swapped(&mut self, waiting: &mut Waiting, first: i32, second: i32) -> usize {
        let one = std::mem::take(self.db(first));
        let held = one.scheduled.held() + self.db(second).scheduled.held();
        let other = std::mem::replace(self.db(second), one);
        *self.db(first) = other;
        self.pending.iter_mut().for_each(|task| task.swap_holds(first, second));
        waiting.deliveries.swapped(first, second);
        held
    }
}

#[cfg(test)]
mod tests;
