//! What the background job has to do: pending tasks, the schedule of the locks, and the holds that end with a
//! connection.
//!
//! This state is in memory only. When a lock is loaded, the server schedules the lock again.

use std::collections::HashMap;

use dlock_protocol::{ClientId, Deadline, Instant, Token};

use crate::deliveries::shrink_if_sparse;
use crate::due_locks::DueLocks;
use crate::grace::Grace;
use crate::lock::Lock;
use crate::queue::{Name, WaiterId, Waiting};
use crate::schedule::Slot;
use crate::step::{Binding, EndedHolds, RareEffects};
use crate::tasks::{Bindings, Pending, Task, split_off_other_locks};

#[derive(Default)]
pub struct Background {
    pending: Pending,
    dbs: Vec<Db>,
    /// The kind of work that was tried last: see [`Background::next_task`].
    last_kind: usize,
}

/// The locks of one database.
#[derive(Default)]
pub struct Db {
    /// The locks, sorted by the time at which they are due: when the first of their leases ends, or their
    /// lock-delay does (the pause before the next grant after a hold that expired or lost its connection).
    pub scheduled: DueLocks,
    /// The holds that end with a connection.
    bindings: HashMap<ClientId, Bindings>,
}

impl Background {
    #[inline]
    fn db(&mut self, db: i32) -> &mut Db {
        let at = usize::try_from(db).unwrap_or(0);
        if at >= self.dbs.len() {
            self.make_dbs(at + 1);
        }
        &mut self.dbs[at]
    }

    #[cold]
    fn make_dbs(&mut self, len: usize) {
        self.dbs.resize_with(len, Db::default);
    }

    /// Number of locks that are held, or in a lock-delay.
    pub fn held(&self) -> usize {
        self.dbs.iter().map(|db| db.scheduled.locks()).sum()
    }

    /// Number of holds.
    pub fn holders(&self) -> usize {
        self.dbs.iter().map(|db| db.scheduled.holders()).sum()
    }

    /// Adds a task, unless the task is to serve the queue of a lock that has such a task already.
    pub fn add_task(&mut self, task: Task) {
        self.pending.push_back(task);
    }

    /// Schedules a lock, moves it in the schedule or removes it, depending on its content. Returns true if
    /// the lock is due before `before`, in ms of the server clock. [`Background::next_task`] returns a due
    /// lock again and again until its content changes or its task is put off.
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

    /// The slots of the locks of a database, from slot `from` on: see [`DueLocks::slots`].
    pub fn slots(&self, db: i32, from: u32) -> impl Iterator<Item = (u32, Option<&[u8]>)> {
        let db = usize::try_from(db).ok().and_then(|db| self.dbs.get(db));
        db.into_iter().flat_map(move |db| db.scheduled.slots(from))
    }

    pub fn unschedule(&mut self, slot: Slot, db: i32) {
        self.db(db).scheduled.remove(slot);
    }

    /// Like [`Background::unschedule`], but has no effect if the slot belongs to another key by now.
    pub fn unschedule_if_key_is(&mut self, slot: Slot, name: &Name<'_>) {
        self.db(name.db).scheduled.remove_if_key_is(slot, &name.key);
    }

    /// Adds the tasks that an operation leaves to the background job, and updates the holds that are bound to
    /// connections.
    pub fn account(&mut self, name: &Name<'_>, effects: &mut RareEffects) {
        for binding in &effects.bindings {
            match binding {
                Binding::Begins(client, token) => {
                    let holds = self.db(name.db).bindings.entry(*client).or_default();
                    holds.insert(((*name.key).into(), token.clone()));
                }
                Binding::Ends(client, token) => self.unbind(*client, name, token),
            }
        }
        for ended_holds in effects.ended_holds.drain(..) {
            self.add_task(Task::EndedHolds(name.to_owned(), Box::new(ended_holds)));
        }
        if effects.unserved {
            self.add_task(Task::Serve(name.to_owned()));
        }
    }

    pub fn unbind(&mut self, client: ClientId, name: &Name<'_>, token: &Token) {
        let bindings = &mut self.db(name.db).bindings;
        if let Some(holds) = bindings.get_mut(&client) {
            holds.remove(&((*name.key).into(), token.clone()));
            if holds.is_empty() {
                bindings.remove(&client);
                shrink_if_sparse(bindings);
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

    /// Adds tasks that serve the wait queues of one database, or of all if `db` is `None`. Goes through the
    /// queues in the order in which they began, and starts behind the queue that the waiter `behind` began.
    /// Visits the next [`EndedHolds::SLICE`] queues, also those of other databases; a single
    /// [`Task::ServeQueues`] stands for the rest.
    pub fn serve(&mut self, waiting: &Waiting, db: Option<i32>, behind: WaiterId) {
        let mut last = None;
        for (began, name) in waiting.queues_behind(behind).take(EndedHolds::SLICE) {
            last = Some(began);
            if db.is_none_or(|db| name.db == db) {
                self.add_task(Task::Serve(name.clone()));
            }
        }
        last.into_iter().for_each(|began| self.add_task(Task::ServeQueues(began, db)));
    }

    /// The next task at `now`. Added tasks, waits that are over and due locks take turns, so that no kind of
    /// work delays another.
    pub fn next_task(&mut self, waiting: &mut Waiting, grace: &mut Grace, now: Instant) -> Option<Task> {
        if grace.end_if_over(now) {
            return Some(Task::GraceOver);
        }
        (0..3).find_map(|_| {
            self.last_kind = (self.last_kind + 1) % 3;
            match self.last_kind {
                0 => self.pending.next(now.millis()),
                1 => {
                    let (waiter, outcome) = waiting.next_over(now)?;
                    Some(Task::Over(waiter.name.clone(), waiter.id, outcome))
                }
                _ => self.next_due_lock(now),
            }
        })
    }

    fn next_due_lock(&mut self, now: Instant) -> Option<Task> {
        // Takes the lock that is due first among the locks of all databases, so that many due locks in one
        // database do not delay a lock of another database that was due earlier.
        let firsts = self.dbs.iter().enumerate().filter_map(|(at, db)| Some((at, db.scheduled.first()?)));
        let (db, (_, slot)) =
            firsts.min_by_key(|(_, (due, _))| *due).filter(|(_, (due, _))| due.passed(now))?;
        let key = self.dbs[db].scheduled.key(slot)?;
        Some(Task::Due(Name::new(db as i32, key).to_owned(), slot))
    }

    /// Time of the next task, in ms of the server clock; 0 for at once. `None` if there is no task.
    pub fn next_due(&self, waiting: &Waiting, grace: &Grace) -> Option<u64> {
        let locks = self.dbs.iter().filter_map(|db| db.scheduled.first()).map(|(due, _)| due);
        let first = locks.chain(waiting.next_due()).min().map(|due| due.millis());
        first.into_iter().chain(self.pending.due()).chain(grace.due()).min()
    }

    /// Takes back a task that cannot be carried out yet, and puts it before the other pending tasks. A wait
    /// that is over and a due lock are not pending: [`Background::next_task`] finds them again.
    pub fn put_back(&mut self, task: Task) {
        if !matches!(task, Task::Over(..) | Task::Due(..)) {
            self.pending.put_back(task);
        }
    }

    /// Puts a task off until `at`. Tasks other than [`Task::Due`] are kept in the order of the calls, so for
    /// such a task, `at` must not be earlier than in the previous call.
    pub fn put_off(&mut self, task: Task, at: Deadline) {
        match task {
            // A due lock is not in `pending`, but in the schedule.
            Task::Due(name, slot) => self.db(name.db).scheduled.put_off(slot, at),
            // The caller puts this task off because of its first lock: see [`Task::name`]. The holds on other
            // locks become a task of their own.
            Task::Disconnected(client, db, mut holds) => {
                let elsewhere = split_off_other_locks(&mut holds);
                self.pending.put_off(Task::Disconnected(client, db, holds), at.millis());
                if !elsewhere.is_empty() {
                    self.add_task(Task::Disconnected(client, db, elsewhere));
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

    /// Removes the state of one database, or of all if `db` is `None`. Returns it, because freeing it can
    /// take long.
    pub fn flushed(&mut self, db: Option<i32>) -> Vec<Db> {
        match db {
            Some(db) => vec![std::mem::take(self.db(db))],
            None => std::mem::take(&mut self.dbs),
        }
    }

    /// SWAPDB. The locks move. The queues stay with the number of their database, because the connections
    /// that wait there keep the number that they selected. Returns the number of held locks that moved.
    pub fn swapped(&mut self, waiting: &mut Waiting, first: i32, second: i32) -> usize {
        let one = std::mem::take(self.db(first));
        let held = one.scheduled.locks() + self.db(second).scheduled.locks();
        let other = std::mem::replace(self.db(second), one);
        *self.db(first) = other;
        self.pending.iter_mut().for_each(|task| task.swap_holds(first, second));
        waiting.deliveries.swapped(first, second);
        held
    }
}

#[cfg(test)]
mod tests {
    use dlock_protocol::{LockRequestRef, TokenRef, Ttl};

    use super::*;
    use crate::{Fences, Grants, NewWaiter, Rank, Step, Terms, Turn, WaitKind, WaiterId};

    const NOW: Instant = Instant::from_millis(1_000_000);

    fn name(db: i32, key: &str) -> Name<'static> {
        Name::new(db, key.as_bytes()).to_owned()
    }

    fn request(ephemeral: bool) -> LockRequestRef<'static> {
        let (token, ttl) = (TokenRef::new(b"t").unwrap(), Ttl::from_millis(10).unwrap());
        LockRequestRef { ephemeral, ..LockRequestRef::new(token, ttl) }
    }

    /// Acquires the lock for 10 ms. With a client, the hold is bound to the connection of the client.
    fn hold(background: &mut Background, name: &Name<'static>, client: Option<ClientId>) -> Slot {
        let (mut lock, mut fences, mut waiting) = (Lock::default(), Fences::default(), Waiting::default());
        let terms = Terms {
            grants: Grants::From(Instant::from_micros(0)),
            longest_lease: Ttl::MAX,
            max_holders: 9,
            max_grants_per_turn: 9,
        };
        let mut step = Step::default();
        let mut turn = Turn::new(NOW, terms, name, &mut fences, &mut waiting, &mut lock, &mut step);
        turn.acquire(&request(client.is_some()), client.unwrap_or(ClientId(1)));
        step.rare_effects.iter_mut().for_each(|effects| background.account(name, effects));
        background.schedule(&mut lock, name.db, &name.key, 0);
        lock.slot().unwrap()
    }

    fn join(waiting: &mut Waiting, name: Name<'static>, until: Option<Deadline>) -> WaiterId {
        let (rank, kind) = (Rank::Newcomer, WaitKind::Blocked(ClientId(9)));
        waiting.join(NewWaiter { name, rank, request: request(false), kind, since: NOW, until }).unwrap()
    }

    fn next(background: &mut Background, waiting: &mut Waiting, now: Instant) -> Option<Task> {
        background.next_task(waiting, &mut Grace::at_start(None, NOW), now)
    }

    #[test]
    fn the_kinds_of_tasks_take_turns() {
        let (mut background, mut waiting) = (Background::default(), Waiting::default());
        hold(&mut background, &name(1, "due"), None);
        hold(&mut background, &name(0, "due"), None);
        join(&mut waiting, name(0, "q"), Some(NOW.after_millis(1)));
        for key in ["a", "b", "c", "d"] {
            background.add_task(Task::Serve(name(0, key)));
        }
        let later = Instant::from_millis(NOW.millis() + 10);
        let kinds: Vec<String> = (0..6)
            .map(|_| format!("{:?}", next(&mut background, &mut waiting, later).unwrap()))
            .map(|task| task.split('(').next().unwrap_or_default().to_owned())
            .collect();
        assert_eq!(kinds, ["Over", "Due", "Serve", "Over", "Due", "Serve"]);
    }

    #[test]
    fn nothing_is_due_before_its_time() {
        let (mut background, mut waiting) = (Background::default(), Waiting::default());
        let mut grace = Grace::at_start(None, NOW);
        assert_eq!(background.next_due(&waiting, &grace), None);
        hold(&mut background, &name(3, "k"), None);
        assert_eq!(background.next_due(&waiting, &grace), Some(NOW.millis() + 10));
        assert!(next(&mut background, &mut waiting, NOW).is_none());
        grace.begin(Ttl::from_millis(5).unwrap(), NOW);
        assert_eq!(background.next_due(&waiting, &grace), Some(NOW.millis() + 5));
        let grace_end = Instant::from_millis(NOW.millis() + 5);
        let task = background.next_task(&mut waiting, &mut grace, grace_end);
        assert!(matches!(task, Some(Task::GraceOver)));
        background.add_task(Task::Serve(name(0, "k")));
        assert_eq!(background.next_due(&waiting, &grace), Some(0));
    }

    #[test]
    fn client_gone_is_true_once_for_a_client_with_bound_holds() {
        let mut background = Background::default();
        let client = ClientId(7);
        hold(&mut background, &name(0, "a"), Some(client));
        hold(&mut background, &name(0, "b"), Some(client));
        background.unbind(client, &name(0, "b"), &Token::new(b"t").unwrap());
        assert!(!background.client_gone(ClientId(8)));
        assert!(background.client_gone(client) && !background.client_gone(client));
        let bound = background.demoted();
        assert_eq!(bound, [(name(0, "a"), Token::new(b"t").unwrap())]);
        assert!(next(&mut background, &mut Waiting::default(), NOW).is_none());
    }

    #[test]
    fn a_flush_forgets_the_holds_of_its_database_only() {
        let (mut background, client) = (Background::default(), ClientId(7));
        for db in [0, 2] {
            hold(&mut background, &name(db, "k"), Some(client));
        }
        let emptied = background.flushed(Some(2));
        let emptied: usize = emptied.iter().map(|db| db.scheduled.locks()).sum();
        assert_eq!((emptied, background.held()), (1, 1));
        assert_eq!(background.demoted(), [(name(0, "k"), Token::new(b"t").unwrap())]);
        background.flushed(None);
        assert_eq!((background.held(), background.holders()), (0, 0));
    }

    #[test]
    fn locks_move_with_their_database_and_queues_stay() {
        let (mut background, mut waiting) = (Background::default(), Waiting::default());
        let slot = hold(&mut background, &name(1, "k"), Some(ClientId(7)));
        join(&mut waiting, name(1, "k"), None);
        assert_eq!(background.swapped(&mut waiting, 1, 4), 1);
        background.serve(&waiting, Some(1), WaiterId(0));
        let later = Instant::from_millis(NOW.millis() + 10);
        let tasks = [(); 2].map(|()| next(&mut background, &mut waiting, later));
        assert!(matches!(&tasks[0], Some(Task::Due(due, at)) if *due == name(4, "k") && *at == slot));
        assert!(matches!(&tasks[1], Some(Task::Serve(served)) if *served == name(1, "k")));
        assert_eq!(background.demoted(), [(name(4, "k"), Token::new(b"t").unwrap())]);
        assert_eq!(background.swapped(&mut waiting, 8, 9), 0);
    }

    #[test]
    fn a_task_that_was_put_off_does_not_delay_other_tasks() {
        let (mut background, mut waiting) = (Background::default(), Waiting::default());
        let client = ClientId(7);
        for key in ["a", "b"] {
            hold(&mut background, &name(0, key), Some(client));
        }
        assert!(background.client_gone(client));
        let task = next(&mut background, &mut waiting, NOW).unwrap();
        background.put_off(task, NOW.after_millis(4));
        let Some(Task::Disconnected(_, 0, holds)) = next(&mut background, &mut waiting, NOW) else {
            panic!()
        };
        assert_eq!(holds.len(), 1);
        assert_eq!(&*holds.first().unwrap().0, b"b");
        assert!(next(&mut background, &mut waiting, NOW).is_none());
        let later = Instant::from_millis(NOW.millis() + 4);
        let again = next(&mut background, &mut waiting, later).unwrap();
        assert_eq!(again.name(), Some(name(0, "a")));
        background.put_back(again);
        assert_eq!(next(&mut background, &mut waiting, later).unwrap().name(), Some(name(0, "a")));
    }

    /// The number of queues is unbounded, so no task may visit all of them.
    #[test]
    fn serve_adds_one_task_for_each_queue_slice_by_slice() {
        let (mut background, mut waiting) = (Background::default(), Waiting::default());
        let many = 2 * EndedHolds::SLICE + 3;
        for n in 0..many {
            join(&mut waiting, name(0, &n.to_string()), None);
            join(&mut waiting, name(1, &n.to_string()), None);
        }
        background.serve(&waiting, Some(1), WaiterId(0));
        let mut served = Vec::new();
        while let Some(task) = next(&mut background, &mut waiting, NOW) {
            match task {
                Task::Serve(name) => served.push(name),
                Task::ServeQueues(began, of) => background.serve(&waiting, of, began),
                other => panic!("{other:?}"),
            }
        }
        let expected: Vec<_> = (0..many).map(|n| name(1, &n.to_string())).collect();
        assert_eq!(served, expected);
        background.serve(&waiting, None, WaiterId(0));
        let first: Vec<_> =
            (0..EndedHolds::SLICE).map_while(|_| next(&mut background, &mut waiting, NOW)).collect();
        assert!(first.iter().all(|task| matches!(task, Task::Serve(_))));
        assert!(matches!(next(&mut background, &mut waiting, NOW), Some(Task::ServeQueues(..))));
    }
}
