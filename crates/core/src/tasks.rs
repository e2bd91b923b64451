//! The tasks of the background job. [`Pending`] stores them. It contains no [`Task::Due`] and no
//! [`Task::Over`]: the schedules of the locks and of the waits show which of these are due.

use std::collections::{BTreeSet, HashMap, VecDeque};

use dlock_protocol::{ClientId, Token};

use crate::deliveries::{Delivery, shrink_if_sparse};
use crate::queue::{Name, Outcome, WaiterId, swap_db};
use crate::schedule::Slot;
use crate::step::EndedHolds;

/// The holds that end with a connection, for one database, in key order.
pub type Bindings = BTreeSet<(Box<[u8]>, Token)>;

/// A task of the background job.
#[derive(Debug)]
pub enum Task {
    /// The wait queue of this lock may have to be served.
    Serve(Name<'static>),
    /// The wait queues that began after the queue of this waiter may have to be served, in one database or in
    /// all (`None`). The waiter was the first one in its queue.
    ServeQueues(WaiterId, Option<i32>),
    /// The key of this held lock was deleted, so its wait queue has to be served.
    Vanished(Name<'static>),
    /// The connection to which these holds are bound has closed.
    Disconnected(ClientId, i32, Bindings),
    /// The reply with this grant was not delivered.
    Undelivered(Name<'static>, Token, WaiterId),
    /// Like `Undelivered`, for a connection that closed in the same event-loop turn in which it was to get
    /// its reply. If the server has evicted the connection, the reply counts as sent, because a server sends
    /// all replies before it evicts a connection. `evicted_before` is the server's count of evicted
    /// connections just after this one closed (`None` if unknown). The server counts its eviction only later.
    /// So if the count has changed when the task runs, the task assumes that this connection was evicted.
    Unread {
        delivery: Delivery,
        waiter: WaiterId,
        evicted_before: Option<i64>,
    },
    /// A wait has timed out, or its connection has closed.
    Over(Name<'static>, WaiterId, Outcome),
    /// Many holds of one lock have ended. The job adds them to the statistics, and unbinds them from their
    /// connections.
    EndedHolds(Name<'static>, Box<EndedHolds>),
    /// This lock was created by RESTORE, with the times of another clock.
    Restored(Name<'static>),
    /// A lease or a lock-delay may have expired. The job gets this task again and again until the schedule
    /// has a later time for the lock, or none.
    Due(Name<'static>, Slot),
    GraceOver,
}

impl Task {
    /// The lock that the task may change. Of several locks, the first one. `None` if the task changes none.
    pub fn name(&self) -> Option<Name<'_>> {
        let (db, key) = match self {
            Task::Serve(name)
            | Task::Vanished(name)
            | Task::Undelivered(name, ..)
            | Task::Unread { delivery: Delivery { name, .. }, .. }
            | Task::Over(name, ..)
            | Task::Restored(name)
            | Task::Due(name, _) => (name.db, &*name.key),
            Task::Disconnected(_, db, holds) => (*db, &*holds.first()?.0),
            // A task without a name runs even while the server refuses writes. These tasks write nothing:
            // `ServeQueues` only adds tasks.
            Task::ServeQueues(..) | Task::EndedHolds(..) | Task::GraceOver => return None,
        };
        Some(Name::new(db, key))
    }

    /// SWAPDB: holds move with their database, wait queues stay.
    pub fn swap_holds(&mut self, first: i32, second: i32) {
        let db = match self {
            Task::Undelivered(name, ..)
            | Task::Unread { delivery: Delivery { name, .. }, .. }
            | Task::EndedHolds(name, _)
            | Task::Restored(name)
            | Task::Due(name, _) => &mut name.db,
            Task::Disconnected(_, db, _) => db,
            Task::Serve(_) | Task::ServeQueues(..) | Task::Vanished(_) | Task::Over(..) | Task::GraceOver => {
                return;
            }
        };
        swap_db(db, first, second);
    }
}

/// Keeps the holds on the first lock and returns the others. The job calls this often while the server is out
/// of memory. So the time of a call must not grow with the number of holds on the first lock.
pub fn split_off_other_locks(holds: &mut Bindings) -> Bindings {
    let next = holds.first().and_then(|(first, _)| {
        // The least key that is greater than the first one, with the least token.
        Some(([&**first, b"\0"].concat().into(), Token::new(b"\0")?))
    });
    next.map_or_else(Bindings::new, |next| holds.split_off(&next))
}

/// The tasks, first come first served. A second task to serve the same lock is not added.
#[derive(Debug, Default)]
pub struct Pending {
    tasks: VecDeque<Task>,
    /// Tasks that were put off, each with the time in ms from which it may run, the earliest first.
    later: VecDeque<(u64, Task)>,
    /// The locks with a task to serve them, and whether their keys were deleted.
    to_serve: HashMap<Name<'static>, bool>,
}

impl Pending {
    pub fn push_back(&mut self, task: Task) {
        if self.register(&task) {
            self.tasks.push_back(task);
        }
    }

    /// Takes back a task that cannot be carried out yet, and puts it before the other pending tasks.
    pub fn put_back(&mut self, task: Task) {
        if self.register(&task) {
            self.tasks.push_front(task);
        }
    }

    /// Puts a task off until `millis`, which must not be earlier than for any task that was put off before.
    pub fn put_off(&mut self, task: Task, millis: u64) {
        if self.register(&task) {
            self.later.push_back((millis, task));
        }
    }

    /// Registers the lock of a task that serves its queue. Returns false if the lock has such a task already.
    fn register(&mut self, task: &Task) -> bool {
        let (name, vanished) = match task {
            Task::Serve(name) => (name, false),
            Task::Vanished(name) => (name, true),
            _ => return true,
        };
        match self.to_serve.get_mut(name) {
            Some(before) => {
                *before |= vanished;
                false
            }
            None => self.to_serve.insert(name.clone(), vanished).is_none(),
        }
    }

    /// The next task that may run at this time.
    pub fn next(&mut self, now_millis: u64) -> Option<Task> {
        let task = match self.later.front() {
            Some((at, _)) if *at <= now_millis => self.later.pop_front().map(|(_, task)| task),
            _ => self.tasks.pop_front(),
        }?;
        shrink(&mut self.tasks);
        shrink(&mut self.later);
        let (Task::Serve(name) | Task::Vanished(name)) = task else { return Some(task) };
        let vanished = self.to_serve.remove(&name).unwrap_or(false);
        shrink_if_sparse(&mut self.to_serve);
        Some(if vanished { Task::Vanished(name) } else { Task::Serve(name) })
    }

    /// Time in ms from which the next task may run, 0 for at once. `None` if there is no task.
    pub fn due(&self) -> Option<u64> {
        if self.tasks.is_empty() { self.later.front().map(|(at, _)| *at) } else { Some(0) }
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Task> {
        self.tasks.iter_mut().chain(self.later.iter_mut().map(|(_, task)| task))
    }

    pub fn into_tasks(self) -> impl Iterator<Item = Task> {
        self.tasks.into_iter().chain(self.later.into_iter().map(|(_, task)| task))
    }
}

/// Frees memory after many tasks have left.
fn shrink<T>(tasks: &mut VecDeque<T>) {
    if tasks.capacity() > 1_000 && tasks.len() < tasks.capacity() / 8 {
        tasks.shrink_to(tasks.len() * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(key: &str) -> Name<'static> {
        Name::new(0, key.as_bytes()).to_owned()
    }

    fn serve(key: &str) -> Task {
        Task::Serve(name(key))
    }

    fn shown(task: Option<Task>) -> String {
        match task {
            None => "none".into(),
            Some(task) => {
                let key = task.name().map_or_else(Default::default, |name| name.key.into_owned());
                let kind = format!("{task:?}");
                let kind = kind.split('(').next().unwrap_or_default();
                format!("{kind} {}", String::from_utf8_lossy(&key))
            }
        }
    }

    fn bindings(of: &[(&str, &str)]) -> Bindings {
        of.iter().map(|(key, token)| (key.as_bytes().into(), Token::new(token.as_bytes()).unwrap())).collect()
    }

    #[test]
    fn a_lock_has_one_pending_task_to_serve_its_queue() {
        let mut pending = Pending::default();
        for key in ["a", "b", "a"] {
            pending.push_back(serve(key));
        }
        pending.push_back(Task::Vanished(name("a")));
        assert_eq!(shown(pending.next(0)), "Vanished a");
        assert_eq!(shown(pending.next(0)), "Serve b");
        assert_eq!(shown(pending.next(0)), "none");
        pending.push_back(serve("a"));
        assert_eq!(shown(pending.next(0)), "Serve a", "a task can be added again after it was taken");
    }

    #[test]
    fn a_task_that_was_put_off_comes_first_when_it_is_due() {
        let mut pending = Pending::default();
        pending.put_off(serve("late"), 50);
        assert_eq!(pending.due(), Some(50));
        assert_eq!(shown(pending.next(49)), "none");
        pending.push_back(serve("now"));
        pending.push_back(Task::Vanished(name("late")));
        assert_eq!(pending.due(), Some(0));
        assert_eq!(shown(pending.next(50)), "Vanished late");
        assert_eq!(shown(pending.next(50)), "Serve now");
        assert_eq!(pending.due(), None);
    }

    #[test]
    fn the_holds_on_the_first_lock_are_split_from_the_others() {
        let mut holds = bindings(&[("a", "1"), ("a", "2"), ("a\0", "1"), ("b", "1")]);
        let others = split_off_other_locks(&mut holds);
        assert_eq!(holds, bindings(&[("a", "1"), ("a", "2")]));
        assert_eq!(others, bindings(&[("a\0", "1"), ("b", "1")]));
        assert_eq!(split_off_other_locks(&mut holds), Bindings::new());
        assert_eq!(split_off_other_locks(&mut Bindings::new()), Bindings::new());
    }

    #[test]
    fn holds_move_with_their_database_and_queues_stay() {
        let held = || Task::Disconnected(ClientId(1), 0, bindings(&[("a", "1")]));
        for (mut task, db) in [(held(), 5), (serve("a"), 0)] {
            task.swap_holds(0, 5);
            assert_eq!(task.name().unwrap().db, db);
            task.swap_holds(0, 5);
            assert_eq!(task.name().unwrap().db, 0);
        }
    }
}
