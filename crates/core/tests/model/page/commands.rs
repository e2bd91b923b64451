//! The commands, and what happens to a server besides them.

use super::queue::May;
use super::*;

impl Page {
    pub fn acquire(&mut self, asked: Request, block: Option<u64>) -> Answer {
        let before = self.told.len();
        let answer = self.turn(asked.key, |page| page.try_acquire(&asked));
        if self.told[before..].iter().any(|(_, told)| matches!(told, Told::Granted(..))) {
            self.marks.push("an acquire lets others in");
        }
        match (answer, block) {
            (Ok(answer), _) => answer,
            (Err(_), None) => {
                self.marks.push("a denial");
                Answer::Null
            }
            (Err(upgrades), Some(ms)) => {
                let until = (ms > 0).then(|| self.in_ms(ms));
                self.wait(Waiter { number: self.last_waiter + 1, asked, upgrades, until })
            }
        }
    }

    /// Err: not now; whether it would wait as a sharer for its upgrade.
    fn try_acquire(&mut self, asked: &Request) -> Result<Answer, bool> {
        if self.in_grace() {
            match self.hold(asked.key, asked.token).map(|hold| (hold.mode, asked.mode)) {
                None => self.marks.push("grace"),
                Some((Mode::Shared, Mode::Exclusive)) => self.marks.push("an upgrade in grace"),
                Some(_) => return self.try_acquire_more(asked),
            }
            return Ok(Answer::Grace);
        }
        self.try_acquire_more(asked)
    }

    fn try_acquire_more(&mut self, asked: &Request) -> Result<Answer, bool> {
        let Some(hold) = self.hold(asked.key, asked.token).cloned() else {
            return match self.may(asked) {
                May::Never(refusal) => {
                    self.marks.push("permits of another number");
                    Ok(Answer::Refused(refusal))
                }
                May::Now(_) if self.queue(asked.key).is_empty() => {
                    self.marks.push("a grant");
                    Ok(self.begin(asked).map_or_else(Answer::Refused, Answer::Fence))
                }
                May::Now(_) => {
                    self.marks.push("a newcomer does not overtake the queue");
                    Err(false)
                }
                May::Full if self.queue(asked.key).is_empty() => {
                    self.marks.push("a lock that as many hold as may");
                    Ok(Answer::Refused(Refusal::TooManyHolders(MOST_HOLDERS as u32)))
                }
                May::Full => {
                    self.marks.push("behind waiters for a full lock");
                    Err(false)
                }
                May::Later => Err(false),
            };
        };
        let downgrade =
            asked.reentry == Reentry::Keep && (hold.mode, asked.mode) == (Mode::Exclusive, Mode::Shared);
        if downgrade && hold.count > 1 {
            self.marks.push("a downgrade of what was entered twice");
            return Ok(Answer::Refused(Refusal::EnteredOften(hold.count)));
        }
        match self.may(asked) {
            May::Never(refusal) => {
                self.marks.push("a holder asks in a mode it cannot have");
                return Ok(Answer::Refused(refusal));
            }
            May::Later | May::Full => {
                if self.holds_of(asked.key).count() == 1 {
                    self.marks.push("a delay keeps an upgrade waiting");
                }
                let queue = self.queue(asked.key);
                if queue.first().is_some_and(|first| first.upgrades && first.asked.token != asked.token) {
                    self.marks.push("two sharers want to be alone");
                    return Ok(Answer::Deadlock);
                }
                return Err(true);
            }
            May::Now(_) => {}
        }
        self.hold_mut(asked.key, asked.token).expect("it holds").on_the_way = None;
        let Ok(fence) = self.again(asked) else {
            self.marks.push("a count is full");
            return Ok(Answer::Refused(Refusal::CountFull));
        };
        if hold.mode == Mode::Exclusive && asked.mode == Mode::Shared && !downgrade {
            self.marks.push("a read inside a write section");
        } else if hold.mode != asked.mode {
            let upgrade = asked.mode == Mode::Exclusive;
            if !upgrade {
                self.heard.push((asked.key, Heard::Downgraded));
            }
            self.marks.push(if upgrade { "an upgrade in place" } else { "a downgrade" });
            let waiting = self.queue(asked.key).len();
            self.hold_mut(asked.key, asked.token).expect("it holds").mode = asked.mode;
            self.answer_others(asked.key, asked.token);
            self.serve(asked.key);
            if !upgrade && self.queue(asked.key).len() < waiting {
                self.marks.push("a downgrade lets sharers in");
            }
        }
        self.marks.push(if self.in_grace() { "a holder asks again in grace" } else { "a holder asks again" });
        Ok(Answer::Fence(fence))
    }

    fn wait(&mut self, waiter: Waiter) -> Answer {
        if self.waiters.len() >= ROOM.0 || self.queue(waiter.asked.key).len() >= ROOM.1 {
            self.marks.push("the queue is full");
            return Answer::QueueFull;
        }
        self.waiters.push(waiter.clone());
        if self.closes_a_cycle(&waiter) {
            let pairs = (0..TOKENS).flat_map(|a| (0..TOKENS).map(move |b| (a, b)));
            self.edges = pairs.filter(|(a, b)| self.waits_for(*a, *b)).collect();
            self.waiters.pop();
            self.marks.push("a deadlock");
            return Answer::Deadlock;
        }
        self.last_waiter = waiter.number;
        self.marks.push(if waiter.upgrades { "an upgrade waits" } else { "a wait" });
        Answer::Waits
    }

    pub fn release(&mut self, key: Key, token: Token, counts: ReleaseCount) -> u64 {
        self.cancel(key, |asked| asked.token == token);
        self.turn(key, |page| {
            let Some(hold) = page.hold_mut(key, token) else { return 0 };
            let left = match counts {
                ReleaseCount::One => hold.count - 1,
                ReleaseCount::All => 0,
                ReleaseCount::Above(n) => hold.count.min(n),
            };
            let ended = hold.count - left;
            hold.count = left;
            if ended > 0 {
                hold.on_the_way = None;
            }
            if left == 0 {
                page.end(End::Released, |hold| hold.key == key && hold.token == token);
            } else {
                page.marks.push("a count is released");
            }
            u64::from(ended)
        })
    }

    pub fn extend(&mut self, key: Key, token: Token, ttl: u64) -> u64 {
        self.turn(key, |page| {
            let end = page.in_ms(ttl);
            let Some(hold) = page.hold_mut(key, token) else { return 0 };
            (hold.end, hold.ttl, hold.on_the_way) = (end, ttl, None);
            page.heard.push((key, Heard::Extended));
            page.marks.push("an extension");
            1
        })
    }

    pub fn confirm(&mut self, key: Key, token: Token, fence: u64, ttl: u64, bound: u64) -> Answer {
        self.turn(key, |page| {
            let end = page.in_ms(ttl);
            let ahead = fence > page.now + bound * 1000;
            let Some(hold) = page.hold_mut(key, token) else { return Answer::Null };
            if hold.fence > fence {
                page.marks.push("a confirm comes too late");
                return Answer::Fence(page.hold(key, token).expect("it holds").fence);
            }
            if hold.fence < fence && ahead {
                page.marks.push("a fence too far ahead");
                return Answer::Ahead;
            }
            (hold.fence, hold.end, hold.ttl, hold.on_the_way) = (fence, end, ttl, None);
            page.last_fence = page.last_fence.max(fence);
            page.heard.push((key, Heard::Extended));
            page.marks.push("a confirm");
            Answer::Fence(fence)
        })
    }

    pub fn break_all(&mut self, key: Key) -> u64 {
        self.turn(key, |page| {
            page.delays.retain(|(of, _)| *of != key);
            page.end(End::Broken, |hold| hold.key == key) as u64
        })
    }

    /// CANCEL, by token or by client.
    pub fn cancel(&mut self, key: Key, whom: impl Fn(&Request) -> bool) -> u64 {
        let here = self.waiters.iter().filter(|waiter| waiter.asked.key == key && whom(&waiter.asked));
        let gone: Vec<Waiter> = here.cloned().collect();
        for waiter in &gone {
            self.marks.push("a cancel");
            self.leave(waiter, Told::Cancelled);
        }
        gone.len() as u64
    }

    /// CANCEL as a command: others may be next now.
    pub fn cancel_command(&mut self, key: Key, whom: impl Fn(&Request) -> bool) -> u64 {
        let gone = self.cancel(key, whom);
        self.turn(key, |_| ());
        gone
    }

    /// The background looks at a key.
    pub fn look_at(&mut self, key: Key) {
        self.turn(key, |_| ());
    }

    /// The background ends a wait that is over.
    pub fn time_out(&mut self, client: Client) {
        let late = |waiter: &&Waiter| {
            waiter.asked.client == client && waiter.until.is_some_and(|until| self.is_over(until))
        };
        if let Some(waiter) = self.waiters.iter().find(late).cloned() {
            self.marks.push("a wait is over");
            self.leave(&waiter, Told::TimedOut);
            self.turn(waiter.asked.key, |_| ());
        }
    }

    pub fn client_gone(&mut self, client: Client) {
        if let Some(waiter) = self.waiters.iter().find(|waiter| waiter.asked.client == client).cloned() {
            self.marks.push("a waiter's connection closes");
            self.leave(&waiter, Told::Cancelled);
            self.turn(waiter.asked.key, |_| ());
        }
        let bound = self.holds.iter().filter(|hold| hold.bond == Bond::To(client));
        let mut bound: Vec<_> = bound.cloned().collect();
        bound.sort_by_key(|hold| (hold.key, hold.token));
        for Hold { key, token, .. } in bound {
            let own = |hold: &Hold| hold.key == key && hold.token == token && hold.bond == Bond::To(client);
            self.turn(key, |page| page.end(End::Disconnected, own));
        }
    }

    /// The key is removed by somebody: the hold ends, the queue is served. The server tells of that, not the
    /// lock.
    pub fn delete(&mut self, key: Key) {
        if self.holds_of(key).next().is_some() && !self.queue(key).is_empty() {
            self.marks.push("a key vanishes under its queue");
        }
        let existed = self.exists(key);
        self.holds.retain(|hold| hold.key != key);
        self.delays.retain(|(of, _)| *of != key);
        self.turn(key, |_| ());
        if existed && !self.exists(key) {
            self.heard.push((key, Heard::Freed));
        }
    }

    /// The waiter has been told, so its token relies on the grant.
    pub fn delivered(&mut self, flight: &Flight) {
        let hold = self.hold_mut(flight.key, flight.token);
        if let Some(hold) = hold
            && hold.on_the_way.as_ref().is_some_and(|(_, waiters)| waiters.contains(&flight.number))
        {
            hold.on_the_way = None;
        }
    }

    /// The grant reached nobody, and goes to the next, unless the token has been told of it by another
    /// connection.
    pub fn undelivered(&mut self, flight: &Flight) {
        let Flight { key, token, number, granted, .. } = *flight;
        self.turn(key, |page| {
            let Some(hold) = page.hold_mut(key, token) else { return };
            let Some((granted, waiters)) = &mut hold.on_the_way else { return };
            let granted = *granted;
            if !waiters.contains(&number) {
                page.marks.push("an undelivered grant that others rely on");
                return;
            }
            waiters.retain(|other| *other != number);
            if !waiters.is_empty() {
                page.marks.push("one of two answers is lost");
                return;
            }
            hold.on_the_way = None;
            match granted {
                Granted::New => {
                    page.end(End::Released, |hold| hold.key == key && hold.token == token);
                    page.marks.push("an undelivered grant");
                }
                Granted::Upgrade => {
                    hold.mode = Mode::Shared;
                    page.heard.push((key, Heard::Downgraded));
                    page.marks.push("an undelivered upgrade");
                }
                Granted::Renewal => unreachable!("it brings nothing that is noted"),
            }
        });
        if granted == Granted::Renewal {
            self.marks.push("an undelivered renewal");
        }
    }

    /// The server has forgotten something.
    pub fn begin_grace(&mut self, ms: u64) {
        self.grants_from = self.grants_from.max(self.in_ms(ms) * 1000);
    }

    /// Queues do not outlive a demotion.
    pub fn demote(&mut self) {
        if !self.waiters.is_empty() {
            self.marks.push("a demotion with waiters");
        }
        self.waiters.clear();
        self.flights.clear();
    }
}
