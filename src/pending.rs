//! What the background job has to look at, besides what is found by its time.

use std::collections::{BTreeSet, HashMap, VecDeque};

use dlock_core::schedule::Slot;
use dlock_core::{ClientId, Departed, Name, Token, WaiterId, give_back};

use crate::deliveries::Delivery;

/// What ends with a connection, in the order of the resources.
pub type Bindings = BTreeSet<(Name<'static>, Token)>;

/// Something for the background job.
pub enum Task {
    /// The wait queue of this resource may have to be served.
    Serve(Name<'static>),
    /// This resource was held when its key was taken away.
    Vanished(Name<'static>),
    /// A connection closed to which these holds are bound.
    Disconnected(ClientId, Bindings),
    /// A grant reached nobody.
    Undelivered(Name<'static>, Token, WaiterId),
    /// So did this one, unless more connections have been evicted than these.
    Unread {
        delivery: Delivery,
        waiter: WaiterId,
        evicted: Option<i64>,
    },
    /// This waiter's time is over.
    TimedOut(Name<'static>, WaiterId),
    /// A crowd has left a lock: its holds are still in the books.
    Departed(Name<'static>, Box<Departed>),
    /// A lease or a lock-delay may be over.
    Due(Name<'static>, Slot),
    GraceOver,
}

impl Task {
    /// The resource, if it is about one; of several the first.
    pub fn name(&self) -> Option<&Name<'static>> {
        match self {
            Task::Serve(name)
            | Task::Vanished(name)
            | Task::Undelivered(name, ..)
            | Task::TimedOut(name, _)
            | Task::Due(name, _) => Some(name),
            Task::Disconnected(_, holds) => holds.first().map(|(name, _)| name),
            Task::Unread { delivery, .. } => Some(&delivery.name),
            // Books are kept whatever the server says to writes.
            Task::Departed(..) | Task::GraceOver => None,
        }
    }

    /// Renames the resources of holds: they move with their database, where a wait queue stays.
    pub fn rename_holds(&mut self, rename: impl Fn(&mut Name<'static>)) {
        match self {
            Task::Undelivered(name, ..) | Task::Departed(name, _) | Task::Due(name, _) => rename(name),
            Task::Unread { delivery, .. } => rename(&mut delivery.name),
            Task::Disconnected(_, holds) => rename_all(holds, rename),
            Task::Serve(_) | Task::Vanished(_) | Task::TimedOut(..) | Task::GraceOver => {}
        }
    }
}

pub fn rename_all(holds: &mut Bindings, rename: impl Fn(&mut Name<'static>)) {
    let renamed = std::mem::take(holds).into_iter().map(|(mut name, token)| {
        rename(&mut name);
        (name, token)
    });
    *holds = renamed.collect();
}

/// Leaves the holds on the first resource and answers the others. The crowd on one resource is not looked at one by one:
/// while the server has no memory this is done again and again.
pub fn split_off_other_resources(holds: &mut Bindings) -> Bindings {
    let next = holds.first().and_then(|(first, _)| {
        // No name and no token is smaller that comes behind those of the first.
        let key = [&*first.key, b"\0"].concat().into();
        Some((Name { db: first.db, key }, Token::new(b"\0")?))
    });
    next.map_or_else(Bindings::new, |next| holds.split_off(&next))
}

/// The tasks, first come first served. To look at a resource once is enough, however often that was asked for.
#[derive(Default)]
pub struct Pending {
    tasks: VecDeque<Task>,
    /// What has to be looked at again, each from its millisecond on, the first first.
    later: VecDeque<(u64, Task)>,
    /// The resources that are to be served, now or later, and whether their keys were taken away.
    to_serve: HashMap<Name<'static>, bool>,
}

impl Pending {
    pub fn push_back(&mut self, task: Task) {
        if self.is_new(&task) {
            self.tasks.push_back(task);
        }
    }

    /// What cannot be carried out yet is the next one again.
    pub fn put_back(&mut self, task: Task) {
        if self.is_new(&task) {
            self.tasks.push_front(task);
        }
    }

    /// Looks at it again at `millis`, which is no earlier than for what was put off before.
    pub fn put_off(&mut self, task: Task, millis: u64) {
        if self.is_new(&task) {
            self.later.push_back((millis, task));
        }
    }

    fn is_new(&mut self, task: &Task) -> bool {
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

    /// The next one, of those that may be looked at by now.
    pub fn next(&mut self, now_millis: u64) -> Option<Task> {
        let task = match self.later.front() {
            Some((at, _)) if *at <= now_millis => self.later.pop_front().map(|(_, task)| task),
            _ => self.tasks.pop_front(),
        }?;
        shrink(&mut self.tasks);
        shrink(&mut self.later);
        let (Task::Serve(name) | Task::Vanished(name)) = task else { return Some(task) };
        let vanished = self.to_serve.remove(&name).unwrap_or(false);
        give_back(&mut self.to_serve);
        Some(if vanished { Task::Vanished(name) } else { Task::Serve(name) })
    }

    /// The millisecond at which there will be one; None for never.
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

/// Gives the memory of a crowd back.
fn shrink<T>(tasks: &mut VecDeque<T>) {
    if tasks.capacity() > 1_000 && tasks.len() < tasks.capacity() / 8 {
        tasks.shrink_to(tasks.len() * 2);
    }
}
