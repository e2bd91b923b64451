//! The simulation: an event queue in virtual time, members with one lock each, and the tasks of clients.
//! Each task makes attempts to acquire the lock, one after the other.

use dlock_quorum::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// One millisecond of virtual time, which is counted in µs.
const MS: u64 = 1_000;
/// The length of a run.
const LENGTH: u64 = 60_000 * MS;
/// The time that a message takes in one direction.
const LATENCY: u64 = MS / 2;
/// How long a task waits for an answer.
const NODE_TIMEOUT: u64 = 250 * MS;
/// How long a task holds the lock.
const HOLD: u64 = 3 * MS;

/// The competing clients, and the faults.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub clients: usize,
    /// The number of tasks of each client. They share its [`Contention`].
    pub tasks: usize,
    pub members: u8,
    pub faults: Vec<Fault>,
    /// The members that have a hold from the start, which is never released.
    pub stale_holds: Vec<u8>,
}

/// A fault of the link between a client and a member.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// The client; `None` means every client.
    pub client: Option<usize>,
    pub member: u8,
    pub link: Link,
}

/// A link between a client and a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    Up,
    /// The member refuses connections.
    Refused,
    /// Requests do not arrive, and get no answer.
    Silent,
    /// Requests arrive, and answers do not.
    AnswersLost,
}

pub struct Simulation {
    scenario: Scenario,
    now: u64,
    /// The coming events, by their time and then by the order in which they were scheduled.
    events: BTreeMap<(u64, u64), Event>,
    events_scheduled: u64,
    random: u64,
    members: Vec<Lock>,
    clients: Vec<Client>,
    tasks: Vec<Task>,
    /// The task that has acquired the lock.
    holder: Option<usize>,
}

/// The lock at one member.
#[derive(Default)]
struct Lock {
    /// The holder, and since when.
    holder: Option<(Token, u64)>,
    queue: Vec<Token>,
    fence: u64,
}

/// A task and the number of its round: each round has a token of its own.
type Token = (usize, u64);

#[derive(Default)]
struct Client {
    contention: Contention,
    /// The members that did not answer. The client does not ask them again.
    missing: BTreeSet<u8>,
}

struct Task {
    attempt: Option<Attempt>,
    round: u64,
    /// The requests of the round that have no answer yet.
    unanswered: Vec<Outgoing>,
    /// The members to which the round has sent a request.
    asked: BTreeSet<u8>,
    /// Watches the queue in which the task waits. Set by the first check of that queue.
    watch: Option<QueueWatch>,
    /// How often the task has acquired the lock.
    acquired: u64,
}

/// An event. `ComparesHolders` reads the holders at a member, and compares them with those of an earlier
/// reading, `before`. In the first reading, `before` is `None`.
enum Event {
    Begin(usize),
    Arrives { token: Token, to: u8, what: Request },
    Answered { token: Token, from: u8, what: Request, vote: Vote },
    PauseEnds(Token),
    ChecksQueue { token: Token, queue: u8 },
    ComparesHolders { token: Token, queue: u8, before: Option<Vec<Holder>> },
    Releases(usize),
}

impl Simulation {
    pub fn new(scenario: Scenario, seed: u64) -> Simulation {
        let members = (0..scenario.members).map(|member| Lock {
            // A token of a task that does not exist.
            holder: scenario.stale_holds.contains(&member).then_some(((usize::MAX, 0), 0)),
            ..Lock::default()
        });
        let tasks = (0..scenario.clients * scenario.tasks).map(|_| Task {
            attempt: None,
            round: 0,
            unanswered: Vec::new(),
            asked: BTreeSet::new(),
            watch: None,
            acquired: 0,
        });
        let mut simulation = Simulation {
            now: 0,
            events: BTreeMap::new(),
            events_scheduled: 0,
            random: seed,
            members: members.collect(),
            clients: (0..scenario.clients).map(|_| Client::default()).collect(),
            tasks: tasks.collect(),
            holder: None,
            scenario,
        };
        for task in 0..simulation.tasks.len() {
            let when = simulation.random_up_to(10 * MS);
            simulation.schedule(when, Event::Begin(task));
        }
        simulation
    }

    /// Runs to the end. Returns how often each task acquired the lock.
    pub fn run(mut self) -> Vec<u64> {
        while let Some(((when, _), event)) = self.events.pop_first() {
            if when > LENGTH {
                break;
            }
            self.now = when;
            self.process(event);
        }
        self.tasks.iter().map(|task| task.acquired).collect()
    }

    fn process(&mut self, event: Event) {
        match event {
            Event::Begin(task) => {
                let client = self.client_of(task);
                let (seed, order) = (self.random_number(), self.order(client));
                let contention = self.clients[client].contention;
                let attempt = Attempt::new(self.options(), seed, &contention, &order, self.instant());
                self.tasks[task].attempt = Some(attempt);
                self.begin_round(task);
            }
            Event::Arrives { token, to, what } => self.arrives(token, to, what),
            Event::Answered { token, from, what, vote } => self.answered(token, from, what, vote),
            Event::PauseEnds(token) if self.is_current(token) => {
                let now = self.instant();
                let step = self.attempt(token.0).timed_out(now);
                self.carry_out(token.0, step);
            }
            Event::ChecksQueue { token, queue } if self.is_waiting(token, queue) => {
                self.check_queue(token, queue)
            }
            Event::ComparesHolders { token, queue, before } => self.compare_holders(token, queue, before),
            Event::Releases(task) => {
                assert_eq!(self.holder.take(), Some(task), "at most one task holds the lock");
                self.release_round(task);
                let pause = self.random_up_to(MS);
                self.schedule(pause, Event::Begin(task));
            }
            Event::PauseEnds(_) | Event::ChecksQueue { .. } => {}
        }
    }

    fn begin_round(&mut self, task: usize) {
        let now = self.instant();
        self.tasks[task].round += 1;
        self.tasks[task].asked.clear();
        let step = self.attempt(task).begin_round(now);
        self.carry_out(task, step);
    }

    fn carry_out(&mut self, task: usize, step: Step) {
        let token = (task, self.tasks[task].round);
        for send in step.sends {
            // `release_round` sends the releases instead, and only to members that were asked.
            if send.what != Request::Release {
                self.send(token, send);
            }
        }
        if let Some(queue) = step.moves_to {
            self.leave_other_queues(self.client_of(task), queue);
        }
        match step.next {
            Next::Wait => {
                if let Some(end) = self.attempt(task).timeout() {
                    let pause = end.saturating_since(self.instant()).as_micros() as u64 + 1;
                    self.schedule(pause, Event::PauseEnds(token));
                }
            }
            Next::BeginRound => self.begin_round(task),
            Next::Review { needs_holders } => {
                self.release_round(task);
                let client = self.client_of(task);
                let (now, order, holders) = (self.instant(), self.order(client), self.holders(client));
                let mut contention = self.clients[client].contention;
                let holders = needs_holders.then_some(&holders);
                let step = self.attempt(task).review(&mut contention, &order, holders, now);
                self.clients[client].contention = contention;
                self.carry_out(task, step);
            }
            Next::Acquired(acquired) => {
                assert!(acquired.valid_until > self.instant());
                assert_eq!(self.holder.replace(task), None, "at most one task holds the lock");
                self.tasks[task].acquired += 1;
                self.choose_next_queue(task);
                self.schedule(HOLD, Event::Releases(task));
            }
            Next::Failed(reason) => panic!("an attempt that never times out failed: {reason:?}"),
        }
    }

    /// Chooses the queue for the client's next waits, after an attempt has acquired the lock.
    fn choose_next_queue(&mut self, task: usize) {
        let token = (task, self.tasks[task].round);
        match self.attempt(task).next_queue() {
            NextQueue::First => {}
            NextQueue::MoveTo(queue) => self.move_to_queue(self.client_of(task), queue),
            NextQueue::LookForOthersAt(queue) => self.begin_looking_for_others(token, queue),
        }
    }

    fn move_to_queue(&mut self, client: usize, queue: Member) {
        let (order, now) = (self.order(client), self.instant());
        if self.clients[client].contention.move_to(queue, &order, now) {
            self.leave_other_queues(client, queue);
        }
    }

    /// Reads the holders at a member twice. The member refused the client, although a majority granted it the
    /// lock. A holder in both readings that has no majority and is not stale shows that other clients wait in
    /// the member's queue.
    fn begin_looking_for_others(&mut self, token: Token, queue: Member) {
        let (client, now) = (self.client_of(token.0), self.instant());
        if self.clients[client].contention.begin_looking_for_others(now) {
            self.schedule(MS, Event::ComparesHolders { token, queue: queue.0, before: None });
        }
    }

    fn compare_holders(&mut self, token: Token, queue: u8, before: Option<Vec<Holder>>) {
        let (client, own) = (self.client_of(token.0), token_text(token));
        let partial = self.holders(client).partial_holders(self.quorum(), Member(queue), &own);
        let Some(before) = before else {
            return self.schedule(MS, Event::ComparesHolders { token, queue, before: Some(partial) });
        };
        match OtherHolds::compare(&before, &partial) {
            OtherHolds::None => self.clients[client].contention.allow_looking_again(),
            OtherHolds::Stale => {}
            OtherHolds::Young => self.move_to_queue(client, Member(queue)),
        }
    }

    /// Ends the waits of a client in other queues than `queue`.
    fn leave_other_queues(&mut self, client: usize, queue: Member) {
        for task in 0..self.tasks.len() {
            let waits_elsewhere = |send: &&Outgoing| send.what == Request::Wait && send.to != queue;
            if self.client_of(task) == client
                && let Some(wait) = self.tasks[task].unanswered.iter().find(waits_elsewhere)
            {
                let (token, from) = ((task, self.tasks[task].round), wait.to.0);
                let vote = Vote::Refused(Refusal::Taken);
                self.schedule(0, Event::Answered { token, from, what: Request::Wait, vote });
            }
        }
    }

    fn send(&mut self, token: Token, Outgoing { to, what }: Outgoing) {
        let client = self.client_of(token.0);
        if !matches!(what, Request::Leave | Request::Release) {
            self.tasks[token.0].unanswered.push(Outgoing { to, what });
        }
        let is_missing = self.clients[client].missing.contains(&to.0);
        let link = self.link(client, to.0);
        if is_missing || link == Link::Refused {
            let vote = Vote::Failed(Failure::Down("refused".into()));
            return self.schedule(MS / 10, Event::Answered { token, from: to.0, what, vote });
        }
        self.tasks[token.0].asked.insert(to.0);
        if link != Link::Silent {
            self.schedule(LATENCY, Event::Arrives { token, to: to.0, what });
        }
        if link != Link::Up {
            self.schedule(NODE_TIMEOUT, Event::Answered { token, from: to.0, what, vote: Vote::Unknown });
        } else if what == Request::Wait {
            self.tasks[token.0].watch = None;
            let pause = self.random_check_pause();
            self.schedule(pause, Event::ChecksQueue { token, queue: to.0 });
        }
    }

    /// Sends a RELEASE to every member that the round has asked.
    fn release_round(&mut self, task: usize) {
        let token = (task, self.tasks[task].round);
        self.tasks[task].unanswered.clear();
        for to in std::mem::take(&mut self.tasks[task].asked) {
            if self.link(self.client_of(task), to) != Link::Silent {
                self.schedule(LATENCY, Event::Arrives { token, to, what: Request::Release });
            }
        }
    }

    fn arrives(&mut self, token: Token, to: u8, what: Request) {
        let now = self.now;
        let lock = &mut self.members[usize::from(to)];
        let vote = match what {
            Request::Acquire | Request::Wait => match lock.holder {
                Some((holder, _)) if holder != token => {
                    if what == Request::Wait && !lock.queue.contains(&token) {
                        lock.queue.push(token);
                    }
                    if what == Request::Wait {
                        return;
                    }
                    Vote::Refused(Refusal::Taken)
                }
                _ => {
                    lock.fence += 1;
                    lock.holder.get_or_insert((token, now));
                    Vote::Granted(Fence::from_outside(lock.fence).unwrap())
                }
            },
            Request::HasWaiters if lock.queue.is_empty() => Vote::Refused(Refusal::NotHeld),
            Request::HasWaiters => Vote::Refused(Refusal::Taken),
            Request::Release | Request::Leave => return self.release(token, to, what),
            Request::Confirm { .. } | Request::Extend | Request::Restore => unreachable!("not sent"),
        };
        self.answer(token, to, what, vote);
    }

    /// Ends the wait of the token. A RELEASE also ends its hold, and passes the lock to the queue.
    fn release(&mut self, token: Token, from: u8, what: Request) {
        let now = self.now;
        let lock = &mut self.members[usize::from(from)];
        lock.queue.retain(|waiter| *waiter != token);
        if what == Request::Release && lock.holder.is_some_and(|(holder, _)| holder == token) {
            lock.holder = None;
            if !lock.queue.is_empty() {
                let head = lock.queue.remove(0);
                (lock.holder, lock.fence) = (Some((head, now)), lock.fence + 1);
                let vote = Vote::Granted(Fence::from_outside(lock.fence).unwrap());
                self.answer(head, from, Request::Wait, vote);
            }
        }
    }

    fn answer(&mut self, token: Token, from: u8, what: Request, vote: Vote) {
        if self.link(self.client_of(token.0), from) == Link::Up {
            self.schedule(LATENCY, Event::Answered { token, from, what, vote });
        }
    }

    fn answered(&mut self, token: Token, from: u8, what: Request, vote: Vote) {
        let (task, client, now) = (token.0, self.client_of(token.0), self.instant());
        let asked = Outgoing { to: Member(from), what };
        let index = self.tasks[task].unanswered.iter().position(|request| *request == asked);
        let Some(index) = index.filter(|_| self.is_current(token)) else { return };
        self.tasks[task].unanswered.swap_remove(index);
        if matches!(vote, Vote::Failed(_) | Vote::Unknown) {
            self.clients[client].missing.insert(from);
        }
        if self.holder == Some(task) {
            if self.attempt(task).must_look_for_others(Member(from), &vote) {
                self.begin_looking_for_others(token, Member(from));
            }
            return;
        }
        let step = match what {
            Request::Wait => self.attempt(task).waited(Member(from), vote.map(|_| ()), now),
            what => self.attempt(task).answered(Member(from), what, vote, now),
        };
        self.carry_out(task, step);
    }

    /// Checks whether the queue can move. It cannot while the holder at its member has no majority. The task
    /// then leaves the queue, as if the member had refused.
    fn check_queue(&mut self, token: Token, queue: u8) {
        let (task, quorum) = (token.0, self.quorum());
        let holders = self.holders(self.client_of(task));
        let stay = self.attempt(task).stay();
        let watch = self.tasks[task].watch.get_or_insert(QueueWatch::new(quorum, Member(queue), stay));
        if watch.must_leave(&holders) {
            let vote = Vote::Refused(Refusal::Taken);
            return self.answered(token, queue, Request::Wait, vote);
        }
        let pause = self.random_check_pause();
        self.schedule(pause, Event::ChecksQueue { token, queue });
    }

    /// Returns the holders at the members that the client can reach.
    fn holders(&self, client: usize) -> Holders {
        let seen = self.members.iter().zip(0..).map(|(lock, member)| {
            let is_up = self.link(client, member) == Link::Up;
            is_up.then(|| {
                let holder = lock.holder.map(|(token, since)| Holder {
                    token: token_text(token),
                    age: Duration::from_micros(self.now - since),
                });
                holder.into_iter().collect()
            })
        });
        Holders { by_member: seen.collect(), closed: 0 }
    }

    fn order(&self, client: usize) -> QueueOrder {
        QueueOrder::new((0..self.scenario.members).map(|member| Place {
            member: Member(member),
            is_missing: self.clients[client].missing.contains(&member),
            run_id: Some(member.to_string().into()),
            address: "member".into(),
        }))
    }

    fn options(&self) -> AttemptOptions {
        let lease = Lease::new(Duration::from_secs(30)).unwrap();
        let plan = Plan { quorum: self.quorum(), lease, fenced: false, retries: 3 };
        let first_pause = Duration::from_millis(50);
        AttemptOptions { plan, first_pause, deadline: Deadline::Never, one_round: false, adopts: false }
    }

    fn quorum(&self) -> Quorum {
        Quorum::new(self.scenario.members).unwrap()
    }

    fn link(&self, client: usize, member: u8) -> Link {
        let affects = |fault: &&Fault| fault.member == member && fault.client.is_none_or(|one| one == client);
        self.scenario.faults.iter().find(affects).map_or(Link::Up, |fault| fault.link)
    }

    fn client_of(&self, task: usize) -> usize {
        task % self.scenario.clients
    }

    fn attempt(&mut self, task: usize) -> &mut Attempt {
        self.tasks[task].attempt.as_mut().expect("the task has begun")
    }

    fn is_current(&self, token: Token) -> bool {
        self.tasks[token.0].round == token.1
    }

    fn is_waiting(&self, token: Token, queue: u8) -> bool {
        let wait = Outgoing { to: Member(queue), what: Request::Wait };
        self.is_current(token) && self.tasks[token.0].unanswered.contains(&wait)
    }

    fn schedule(&mut self, pause: u64, event: Event) {
        self.events_scheduled += 1;
        self.events.insert((self.now + pause, self.events_scheduled), event);
    }

    fn random_check_pause(&mut self) -> u64 {
        NODE_TIMEOUT / 8 + self.random_up_to(1_000 * MS)
    }

    fn random_up_to(&mut self, longest: u64) -> u64 {
        self.random_number() % (longest + 1)
    }

    fn random_number(&mut self) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.random >> 20
    }

    fn instant(&self) -> Instant {
        Instant::since_boot(Duration::from_micros(self.now))
    }
}

fn token_text((task, round): Token) -> String {
    format!("{task}/{round}")
}
