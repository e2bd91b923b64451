//! The work of the background job: noted tasks, locks that are due, and holds that end with a connection.
//!
//! None of it is stored. It is rebuilt when locks are loaded.

use std::collections::HashMap;

use dlock_protocol::{ClientId, Deadline, Instant, Token};

use crate::deliveries::give_back;
use crate::grace::Grace;
use crate::lock::Lock;
use crate::queue::{Name, WaiterId, Waiting};
use crate::schedule::Slot;
use crate::scheduled::Scheduled;
use crate::step::{Binding, EndedHolds, QueueEffects};
use crate::tasks::{Bindings, Pending, Task, split_off_other_resources};

#[derive(Default)]
pub struct Background {
    pending: Pending,
    dbs: Vec<Db>,
    /// The kind of work to try first: see [`Background::next_task`].
    turn: usize,
    /// A file is being loaded: locks that are due wait until its end.
    is_loading: bool,
}

/// The locks of one database.
#[derive(Default)]
pub struct Db {
    /// The locks, by the time at which they are due.
    pub scheduled: Scheduled,
    /// The holds that end with a connection.
    bindings: HashMap<ClientId, Bindings>,
}

impl Background {
    /// Estimated bytes for a hold that is bound to a connection, which usually has only this one: an entry in
    /// a table that is half full at times, a tree leaf with room for eleven entries, and the name again.
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

    /// Many locks are about to be loaded. None is due before [`Background::loading_ended`].
    pub fn loading_begins(&mut self) {
        self.is_loading = true;
        self.dbs.iter_mut().for_each(|db| db.scheduled.begin_bulk());
    }

    pub fn loading_ended(&mut self) {
        self.is_loading = false;
        self.dbs.iter_mut().for_each(|db| db.scheduled.end_bulk());
    }

    /// Number of held locks.
    pub fn held(&self) -> usize {
        self.dbs.iter().map(|db| db.scheduled.held()).sum()
    }

    /// Number of holds.
    pub fn holders(&self) -> usize {
        self.dbs.iter().map(|db| db.scheduled.holders()).sum()
    }

    pub fn note(&mut self, task: Task) {
        self.pending.push_back(task);
    }

    /// Schedules a lock, moves it in the schedule or removes it, depending on its content. Returns true if it
    /// is due before this ms.
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

    /// Updates the holds that are bound to connections.
    pub fn account(&mut self, name: &Name<'_>, rest: &mut QueueEffects) {
        for binding in &rest.bindings {
            match binding {
                Binding::Begins(client, token) => {
                    let holds = self.db(name.db).bindings.entry(*client).or_default();
                    holds.insert(((*name.key).into(), token.clone()));
                }
                Binding::Ends(client, token) => self.unbind(*client, name, token),
            }
        }
        for ended_holds in rest.ended_holds.drain(..) {
            self.note(Task::EndedHolds(name.to_owned(), Box::new(ended_holds)));
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

    /// A connection has closed. Returns whether a hold was bound to it.
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

    /// Some of the wait queues of one database or all that began after this waiter, which may have to be
    /// served.
    pub fn serve(&mut self, waiting: &Waiting, of: Option<i32>, behind: WaiterId) {
        let mut next = None;
        for (began, name) in waiting.queues_behind(behind).take(EndedHolds::SLICE) {
            next = Some(began);
            if of.is_none_or(|db| name.db == db) {
                self.note(Task::Serve(name.clone()));
            }
        }
        next.into_iter().for_each(|began| self.note(Task::ServeBehind(began, of)));
    }

    /// The next task at `now`. Noted tasks, timeouts and expired leases take turns, so that none of them
    /// holds up the others.
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
        // The earliest of all databases, so that many due locks in one do not hold up another.
        let firsts = self.dbs.iter().enumerate().filter_map(|(at, db)| Some((at, db.scheduled.first()?)));
        let (db, (_, slot)) =
            firsts.min_by_key(|(_, (due, _))| *due).filter(|(_, (due, _))| due.passed(now))?;
        let key = self.dbs[db].scheduled.key(slot)?;
        Some(Task::Due(Name::new(db as i32, key).to_owned(), slot))
    }

    /// The ms at which there will be a task. `None` for never.
    pub fn next_due(&self, waiting: &Waiting, grace: &Grace) -> Option<u64> {
        let locks = self.dbs.iter().filter_map(|db| db.scheduled.first()).map(|(due, _)| due);
        let first = locks.chain(waiting.next_due()).min().map(|due| due.millis());
        first.into_iter().chain(self.pending.due()).chain(grace.due()).min()
    }

    /// Returns a task that cannot be carried out yet: it is the next one again. A task that was found by its
    /// time is found again anyway.
    pub fn put_back(&mut self, task: Task) {
        if !matches!(task, Task::Over(..) | Task::Due(..)) {
            self.pending.put_back(task);
        }
    }

    /// Puts a task off until `at`, which is no earlier than for the tasks put off before.
    pub fn put_off(&mut self, task: Task, at: Deadline) {
        match task {
            // Due locks and timeouts are found by their time.
            Task::Due(name, slot) => self.db(name.db).scheduled.put_off(slot, at),
            // The other locks of the connection need not wait.
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

    /// This server has become a replica: drops the tasks of a master. Returns the holds that were bound to
    /// connections, grouped by lock.
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

    /// Removes one database or all, and returns the removed state: freeing it can take long.
    pub fn flushed(&mut self, db: Option<i32>) -> Vec<Db> {
        match db {
            Some(db) => vec![std::mem::take(self.db(db))],
            None => std::mem::take(&mut self.dbs),
        }
    }

    /// SWAPDB. The queues stay with the number of their database, as their connections do; the locks move.
    /// Returns the number of held locks that moved.
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
