//! The commands of the reference model, except ACQUIRE with QUEUE. `marks` records the situations that
//! occurred.

use super::queue::Decision;
use super::*;

impl Model {
    pub fn acquire(&mut self, request: Request, block: Option<u64>) -> Answer {
        let before = self.outcomes.len();
        let answer = self.turn(request.key, |model| model.try_acquire(&request));
        if self.outcomes[before..].iter().any(|(_, outcome)| matches!(outcome, WaitOutcome::Granted(..))) {
            self.marks.push("an ACQUIRE lets waiters in");
        }
        match (answer, block) {
            (Ok(answer), _) => answer,
            (Err(_), None) => {
                self.marks.push("an ACQUIRE that does not wait is denied");
                Answer::Null
            }
            (Err(upgrades), Some(ms)) => {
                let until = (ms > 0).then(|| self.in_ms(ms));
                let (number, by) = (self.last_waiter + 1, WaitsBy::Connection);
                self.wait(Waiter { number, request, upgrades, until, by })
            }
        }
    }

    /// Returns `Err` if the lock cannot be granted now. The error is true if the request is an upgrade by a
    /// sharer.
    pub(super) fn try_acquire(&mut self, request: &Request) -> Result<Answer, bool> {
        if self.in_grace() {
            match self.hold(request.key, request.token).map(|hold| (hold.mode, request.mode)) {
                None => self.marks.push("grace"),
                Some((Mode::Shared, Mode::Exclusive)) => self.marks.push("an upgrade in grace"),
                Some(_) => return self.try_acquire_regardless_of_grace(request),
            }
            return Ok(Answer::Grace);
        }
        self.try_acquire_regardless_of_grace(request)
    }

    fn try_acquire_regardless_of_grace(&mut self, request: &Request) -> Result<Answer, bool> {
        let Some(hold) = self.hold(request.key, request.token).cloned() else {
            return match self.decide(request) {
                Decision::Never(refusal) => Ok(Answer::Refused(refusal)),
                Decision::Now(_) if self.queue(request.key).is_empty() => {
                    self.marks.push("a grant");
                    Ok(self.grant(request).map_or_else(Answer::Refused, Answer::Fence))
                }
                Decision::Now(_) => {
                    self.marks.push("a newcomer does not overtake the queue");
                    Err(false)
                }
                Decision::Full if self.queue(request.key).is_empty() => {
                    self.marks.push("a full lock refuses a newcomer");
                    Ok(Answer::Refused(Refusal::TooManyHolders(MAX_HOLDERS as u32)))
                }
                Decision::Full => {
                    self.marks.push("a newcomer waits behind the queue of a full lock");
                    Err(false)
                }
                Decision::Later => Err(false),
            };
        };
        let downgrade =
            request.reentry == Reentry::Keep && (hold.mode, request.mode) == (Mode::Exclusive, Mode::Shared);
        if downgrade && hold.count > 1 {
            self.marks.push("a downgrade of a hold with a count above 1");
            return Ok(Answer::Refused(Refusal::CountAboveOne(hold.count)));
        }
        match self.decide(request) {
            Decision::Never(refusal) => {
                self.marks.push("a holder asks for an impossible mode");
                return Ok(Answer::Refused(refusal));
            }
            Decision::Later | Decision::Full => {
                if self.holds_of(request.key).count() == 1 {
                    self.marks.push("a delay keeps an upgrade waiting");
                }
                let queue = self.queue(request.key);
                if queue.first().is_some_and(|first| first.upgrades && first.request.token != request.token) {
                    self.marks.push("two sharers ask for an upgrade");
                    return Ok(Answer::Deadlock);
                }
                return Err(true);
            }
            Decision::Now(_) => {}
        }
        let mut renewal = *request;
        if self.claim_grant(request.key, request.token) {
            self.marks.push("a queued waiter claims its grant");
            // The grant and its claim are one acquisition, so REENTRANT does not raise the count.
            if request.reentry == Reentry::OneMore {
                renewal.reentry = Reentry::Keep;
            }
        }
        let Ok(fence) = self.reacquire(&renewal) else {
            self.marks.push("the count of a hold is full");
            return Ok(Answer::Refused(Refusal::CountFull));
        };
        if hold.mode == Mode::Exclusive && request.mode == Mode::Shared && !downgrade {
            self.marks.push("an exclusive holder asks for a shared lock");
        } else if !hold.mode.is_like(request.mode) {
            let upgrade = request.mode == Mode::Exclusive;
            if !upgrade {
                self.events.push((request.key, KeyEvent::Downgraded));
            }
            self.marks.push(if upgrade { "an upgrade in place" } else { "a downgrade" });
            let waiting = self.queue(request.key).len();
            self.hold_mut(request.key, request.token).expect("a hold").mode = request.mode;
            self.answer_others(request.key, request.token);
            self.serve(request.key);
            if !upgrade && self.queue(request.key).len() < waiting {
                self.marks.push("a downgrade lets sharers in");
            }
        }
        self.marks.push(if self.in_grace() { "a holder asks again in grace" } else { "a holder asks again" });
        Ok(Answer::Fence(fence))
    }

    /// Records that the client knows of its hold. Returns true if this request claims the grant of a
    /// QUEUE position. The claim also gives the hold the DELAY of the position.
    fn claim_grant(&mut self, key: Key, token: Token) -> bool {
        let Some(hold) = self.hold_mut(key, token) else { return false };
        let unclaimed = hold.unconfirmed.take().and_then(|grant| grant.unclaimed);
        if let Some((_, _, delay)) = unclaimed
            && delay > 0
        {
            hold.delay = delay;
        }
        unclaimed.is_some()
    }

    pub(super) fn wait(&mut self, waiter: Waiter) -> Answer {
        let same_kind = |other: &&Waiter| (other.by == WaitsBy::Position) == (waiter.by == WaitsBy::Position);
        let same_kind_waiters = self.waiters.iter().filter(same_kind).count();
        let max = if waiter.by == WaitsBy::Position { MAX_WAITERS.0 } else { MAX_CONNECTIONS };
        if same_kind_waiters >= max || self.queue(waiter.request.key).len() >= MAX_WAITERS.1 {
            self.marks.push("the queue is full");
            return Answer::QueueFull;
        }
        self.waiters.push(waiter.clone());
        if self.closes_a_cycle(&waiter) {
            // A party is a node of the wait-for graph: a token, or above 100 an owner.
            let start = waiter.request.party();
            // The tests compare the cycle that the core reports with these edges.
            self.edges = self.edges();
            if self.edges.contains(&(start, start)) {
                self.marks.push("an owner waits for itself");
            }
            if start > 100 {
                self.marks.push("a deadlock of a waiter with an owner");
            }
            self.waiters.pop();
            self.marks.push("a deadlock");
            return Answer::Deadlock;
        }
        self.last_waiter = waiter.number;
        self.marks.push(if waiter.upgrades { "an upgrade waits" } else { "a wait" });
        Answer::Waits
    }

    pub fn release(&mut self, key: Key, token: Token, counts: ReleaseCount, delay: u64) -> u64 {
        self.cancel(key, |waiter| waiter.request.token == token, WaitOutcome::Left);
        self.turn(key, |model| {
            let Some(hold) = model.hold_mut(key, token) else { return 0 };
            let left = match counts {
                ReleaseCount::One => hold.count - 1,
                ReleaseCount::All => 0,
                ReleaseCount::Above(n) => hold.count.min(n),
            };
            let ended = hold.count - left;
            hold.count = left;
            if ended > 0 {
                model.claim_grant(key, token);
            }
            if left == 0 {
                model.end_holds(End::Released, |hold| hold.key == key && hold.token == token);
                if delay > 0 {
                    model.delays.push((key, model.in_ms(delay)));
                    model.marks.push("a release with a delay");
                }
            } else {
                model.marks.push("a RELEASE lowers the count of a hold");
            }
            u64::from(ended)
        })
    }

    pub fn extend(&mut self, key: Key, token: Token, ttl: u64) -> u64 {
        self.turn(key, |model| {
            let end = model.in_ms(ttl);
            let Some(hold) = model.hold_mut(key, token) else { return 0 };
            (hold.end, hold.ttl) = (end, ttl);
            model.claim_grant(key, token);
            model.events.push((key, KeyEvent::Extended));
            model.marks.push("an extension");
            1
        })
    }

    pub fn confirm(&mut self, key: Key, token: Token, fence: u64, ttl: u64, bound: u64) -> Answer {
        self.turn(key, |model| {
            let end = model.in_ms(ttl);
            let ahead = fence > model.now + bound * 1000;
            let Some(hold) = model.hold_mut(key, token) else { return Answer::Null };
            if hold.fence > fence {
                model.marks.push("a confirm comes too late");
                return Answer::Fence(model.hold(key, token).expect("a hold").fence);
            }
            if hold.fence < fence && ahead {
                model.marks.push("a fence too far ahead");
                return Answer::Ahead;
            }
            (hold.fence, hold.end, hold.ttl) = (fence, end, ttl);
            model.claim_grant(key, token);
            model.last_fence = model.last_fence.max(fence);
            model.events.push((key, KeyEvent::Extended));
            model.marks.push("a confirm");
            Answer::Fence(fence)
        })
    }

    pub fn break_all(&mut self, key: Key) -> u64 {
        self.turn(key, |model| {
            model.delays.retain(|(of, _)| *of != key);
            model.end_holds(End::Broken, |hold| hold.key == key) as u64
        })
    }

    /// Removes waiters from the queue. With a QUEUE position, also ends the waits of its connections (BLOCK).
    fn cancel(&mut self, key: Key, is_cancelled: impl Fn(&Waiter) -> bool, outcome: WaitOutcome) -> u64 {
        let mut gone = self.queue(key);
        gone.retain(is_cancelled);
        gone.sort_by_key(|waiter| waiter.number);
        for waiter in &gone {
            self.marks.push("a cancel");
            self.leave_all(waiter, outcome);
        }
        gone.len() as u64
    }

    /// CANCEL by token. Serves the queue, because the head may have changed.
    pub fn cancel_token(&mut self, key: Key, token: Token) -> u64 {
        let gone = self.cancel(key, |waiter| waiter.request.token == token, WaitOutcome::Cancelled);
        self.turn(key, |_| ());
        gone
    }

    /// CANCEL by client. If the client waits by QUEUE with BLOCK, removes its QUEUE position.
    pub fn cancel_client(&mut self, key: Key, client: Client) -> u64 {
        let number = self.blocked(client).map(|waiter| match waiter.by {
            WaitsBy::BlockAndQueue(position) => position,
            _ => waiter.number,
        });
        let gone = self.cancel(key, |waiter| Some(waiter.number) == number, WaitOutcome::Cancelled);
        self.turn(key, |_| ());
        gone
    }

    /// Returns the waiter with which the client's connection is blocked.
    pub(super) fn blocked(&self, client: Client) -> Option<Waiter> {
        let is_blocked = |waiter: &&Waiter| waiter.request.client == client && waiter.by != WaitsBy::Position;
        self.waiters.iter().find(is_blocked).cloned()
    }
}
