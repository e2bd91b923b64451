use dlock_protocol::{LockRequestRef, TokenRef, Ttl};

use super::*;
use crate::{Fences, Newcomer, Owner, Rank, Step, Terms, Turn, WaiterId};

const NOW: Instant = Instant::from_millis(1_000_000);

fn name(db: i32, key: &str) -> Name<'static> {
    Name::new(db, key.as_bytes()).to_owned()
}

fn request(ephemeral: bool) -> LockRequestRef<'static> {
    let (token, ttl) = (TokenRef::new(b"t").unwrap(), Ttl::from_millis(10).unwrap());
    LockRequestRef { ephemeral, ..LockRequestRef::new(token, ttl) }
}

/// Has this lock held for 10 ms, by a connection where one is named.
fn hold(background: &mut Background, name: &Name<'static>, client: Option<ClientId>) -> Slot {
    let (mut lock, mut fences, mut waiting) = (Lock::default(), Fences::default(), Waiting::default());
    let terms = Terms {
        grants_from: Instant::from_micros(0),
        longest_lease: Ttl::MAX,
        max_holders: 9,
        max_grants_per_turn: 9,
    };
    let mut step = Step::default();
    let mut turn = Turn::new(NOW, terms, name, &mut fences, &mut waiting, &mut lock, &mut step);
    turn.acquire(&request(client.is_some()), client.unwrap_or(ClientId(1)));
    step.queue_effects.iter_mut().for_each(|rest| background.account(name, rest));
    background.schedule(&mut lock, name.db, &name.key, 0);
    lock.slot().unwrap()
}

fn join(waiting: &mut Waiting, name: Name<'static>, until: Option<Deadline>) -> WaiterId {
    let (rank, owner) = (Rank::Newcomer, Owner::Client(ClientId(9)));
    waiting.join(Newcomer { name, rank, request: request(false), owner, since: NOW, until }).unwrap()
}

fn next(background: &mut Background, waiting: &mut Waiting, now: Instant) -> Option<Task> {
    background.next_task(waiting, &mut Grace::at_start(None, NOW), now)
}

#[test]
fn however_many_tasks_there_are_of_one_kind_the_others_come_as_well() {
    let (mut background, mut waiting) = (Background::default(), Waiting::default());
    hold(&mut background, &name(1, "late"), None);
    hold(&mut background, &name(0, "due"), None);
    join(&mut waiting, name(0, "q"), Some(NOW.after_millis(1)));
    for key in ["a", "b", "c", "d"] {
        background.note(Task::Serve(name(0, key)));
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
    let over = Instant::from_millis(NOW.millis() + 5);
    let task = background.next_task(&mut waiting, &mut grace, over);
    assert!(matches!(task, Some(Task::GraceOver)));
    background.note(Task::Serve(name(0, "k")));
    assert_eq!(background.next_due(&waiting, &grace), Some(0));
}

#[test]
fn a_closed_connection_ends_its_holds_once() {
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
fn a_flush_forgets_its_database_alone() {
    let (mut background, client) = (Background::default(), ClientId(7));
    for db in [0, 2] {
        hold(&mut background, &name(db, "k"), Some(client));
    }
    let emptied = background.flushed(Some(2));
    let emptied: usize = emptied.iter().map(|db| db.scheduled.held()).sum();
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
fn a_task_that_was_put_off_holds_up_no_other() {
    let (mut background, mut waiting) = (Background::default(), Waiting::default());
    let client = ClientId(7);
    for key in ["a", "b"] {
        hold(&mut background, &name(0, key), Some(client));
    }
    assert!(background.client_gone(client));
    let task = next(&mut background, &mut waiting, NOW).unwrap();
    background.put_off(task, NOW.after_millis(4));
    let Some(Task::Disconnected(_, 0, holds)) = next(&mut background, &mut waiting, NOW) else { panic!() };
    assert_eq!(holds.len(), 1);
    assert_eq!(&*holds.first().unwrap().0, b"b");
    assert!(next(&mut background, &mut waiting, NOW).is_none());
    let later = Instant::from_millis(NOW.millis() + 4);
    let again = next(&mut background, &mut waiting, later).unwrap();
    assert_eq!(again.name(), Some(name(0, "a")));
    background.put_back(again);
    assert_eq!(next(&mut background, &mut waiting, later).unwrap().name(), Some(name(0, "a")));
}

/// However many queues there are, no task walks over all of them, and each comes once.
#[test]
fn the_queues_of_a_database_are_served_some_after_the_other() {
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
            Task::ServeBehind(began, of) => background.serve(&waiting, of, began),
            other => panic!("{other:?}"),
        }
    }
    let expected: Vec<_> = (0..many).map(|n| name(1, &n.to_string())).collect();
    assert_eq!(served, expected);
    background.serve(&waiting, None, WaiterId(0));
    let first: Vec<_> =
        (0..EndedHolds::SLICE).map_while(|_| next(&mut background, &mut waiting, NOW)).collect();
    assert!(first.iter().all(|task| matches!(task, Task::Serve(_))));
    assert!(matches!(next(&mut background, &mut waiting, NOW), Some(Task::ServeBehind(..))));
}
