//! QUEUE positions, and grants that may not have been received. `marks` names the situations that occur.

use super::*;

impl Model {
    /// ACQUIRE with QUEUE.
    pub fn acquire_with_queue(&mut self, request: Request, ms: u64, block: Option<u64>) -> Answer {
        let until = self.in_ms(ms);
        let mut before = None;
        if let Some(waiter) = self.position(request.key, request.token) {
            if self.has_passed(waiter.until.expect("a position has a timeout")) {
                self.leave_all(&waiter, WaitOutcome::TimedOut);
            } else if !waiter.request.mode.is_like(request.mode) {
                self.marks.push("a position is given up for another mode");
                self.leave_all(&waiter, WaitOutcome::Left);
            } else {
                let kept = self.waiters.iter_mut().find(|other| other.number == waiter.number);
                let kept = kept.expect("the position is kept");
                before = Some(kept.clone());
                (kept.request, kept.until) = (request, Some(until));
            }
        }
        let upgrades = match self.turn(request.key, |model| model.try_acquire(&request)) {
            // A newcomer is refused in a grace period. A waiter with a position keeps it.
            Ok(Answer::Grace) if self.position(request.key, request.token).is_some() => false,
            Ok(answer) => return answer,
            Err(upgrades) => upgrades,
        };
        let number = if let Some(Waiter { number, .. }) = self.position(request.key, request.token) {
            self.marks.push("a position is kept");
            if block.is_some() && !self.has_room_beside(number) {
                self.marks.push("a position is kept, and has no room for a connection");
                let kept = self.waiters.iter_mut().find(|other| other.number == number);
                let (Some(kept), Some(before)) = (kept, before) else { unreachable!("it was kept") };
                *kept = before;
                return Answer::QueueFull;
            }
            number
        } else {
            let number = self.last_waiter + 1;
            if block.is_some() && !self.has_room_beside(number) {
                self.marks.push("a position has no room for a connection");
                return Answer::QueueFull;
            }
            let answer =
                self.wait(Waiter { number, request, upgrades, until: Some(until), by: WaitsBy::Position });
            if answer != Answer::Waits {
                return answer;
            }
            number
        };
        let Some(ms) = block else { return Answer::Queued };
        self.marks.push("a connection waits with a position");
        self.last_waiter += 1;
        let until = if ms == 0 { until } else { until.min(self.in_ms(ms)) };
        let (number, by) = (self.last_waiter, WaitsBy::BlockAndQueue(number));
        self.waiters.push(Waiter { number, request, upgrades, until: Some(until), by });
        Answer::Waits
    }

    /// Whether another connection may wait together with the position of this number.
    fn has_room_beside(&self, number: u64) -> bool {
        let beside = self.waiters.iter().filter(|other| other.by == WaitsBy::BlockAndQueue(number)).count();
        let connections = self.waiters.iter().filter(|other| other.by != WaitsBy::Position).count();
        connections < MAX_CONNECTIONS && beside < MAX_WAITERS.1
    }

    pub(super) fn position(&self, key: Key, token: Token) -> Option<Waiter> {
        let own = (key, token, WaitsBy::Position);
        self.waiters
            .iter()
            .find(|waiter| (waiter.request.key, waiter.request.token, waiter.by) == own)
            .cloned()
    }

    /// The client has received the grant.
    pub fn delivered(&mut self, sent: &SentGrant) {
        let hold = self.hold_mut(sent.key, sent.token);
        if let Some(hold) = hold
            && hold.unconfirmed.as_ref().is_some_and(|grant| grant.sent_to.contains(&sent.number))
        {
            hold.unconfirmed = None;
        }
    }

    /// The reply with the grant is lost.
    pub fn undelivered(&mut self, sent: &SentGrant) {
        self.run_job(sent.key);
        self.lost(sent.key, sent.token, sent.number);
        if sent.granted == Granted::Renewal {
            self.marks.push("an undelivered renewal");
        }
    }

    /// The user of a queued waiter has lost the right to the granted lock.
    pub fn rights_lost(&mut self, key: Key, token: Token) {
        self.run_job(key);
        // The core runs a second operation on the key even if there is no unclaimed grant to take back.
        let grant = self.hold(key, token).and_then(|hold| hold.unconfirmed.as_ref());
        let Some((number, ..)) = grant.and_then(|grant| grant.unclaimed) else { return self.run_job(key) };
        self.marks.push("a user loses the right to a granted lock");
        self.lost(key, token, number);
    }

    /// Revokes the grant and serves the next waiter, unless the token has received the grant on another
    /// connection or can still claim it.
    fn lost(&mut self, key: Key, token: Token, number: u64) {
        self.turn(key, |model| {
            // A deadline in ms has passed if it is at most `now_rounded_down`, as in `has_passed`.
            let (now, now_rounded_down) = (model.in_ms(0), model.now / 1000);
            let Some(hold) = model.hold_mut(key, token) else { return };
            let Some(unconfirmed) = &mut hold.unconfirmed else { return };
            if !unconfirmed.sent_to.contains(&number) && unconfirmed.unclaimed.is_none() {
                model.marks.push("a grant lost on one connection was received on another");
                return;
            }
            unconfirmed.sent_to.retain(|other| *other != number);
            unconfirmed.unclaimed = unconfirmed.unclaimed.filter(|(of, ..)| *of != number);
            if !unconfirmed.sent_to.is_empty() {
                model.marks.push("one of two answers is lost");
                return;
            }
            let granted = unconfirmed.granted;
            if let Some((_, until, delay)) = &mut unconfirmed.unclaimed {
                if granted == Granted::Upgrade {
                    return;
                }
                if *until > now_rounded_down {
                    *delay = hold.delay.max(*delay);
                    hold.delay = 0;
                    if *until < hold.end {
                        (hold.end, hold.ttl) = (*until, (*until - now).max(1));
                    }
                    model.marks.push("an undelivered grant can still be claimed");
                    return;
                }
            }
            hold.unconfirmed = None;
            match granted {
                Granted::New => {
                    model.end_holds(End::Released, |hold| hold.key == key && hold.token == token);
                    model.marks.push("an undelivered grant");
                }
                Granted::Upgrade => {
                    hold.mode = Mode::Shared;
                    model.events.push((key, KeyEvent::Downgraded));
                    model.marks.push("an undelivered upgrade");
                }
                Granted::Renewal => unreachable!("a renewal is never unconfirmed"),
            }
        });
    }
}
