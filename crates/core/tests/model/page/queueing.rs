//! QUEUE positions, and grants that may not have been received.

use super::*;

impl Page {
    /// ACQUIRE with QUEUE.
    pub fn queue_up(&mut self, asked: Request, ms: u64, block: Option<u64>) -> Answer {
        if let Some(waiter) = self.position(&asked) {
            if self.is_over(waiter.until.expect("a position has a timeout")) {
                self.leave_all(&waiter, Told::TimedOut);
            } else if waiter.asked.mode != asked.mode {
                self.marks.push("a position is given up for another mode");
                self.leave_all(&waiter, Told::Left);
            }
        }
        let upgrades = match self.turn(asked.key, |page| page.try_acquire(&asked)) {
            Ok(Answer::Grace | Answer::Refused(Refusal::OtherPermits(_)))
                if self.position(&asked).is_some() =>
            {
                false
            }
            Ok(answer) => return answer,
            Err(upgrades) => upgrades,
        };
        let until = self.in_ms(ms);
        let number = if let Some(Waiter { number, .. }) = self.position(&asked) {
            self.marks.push("a position is kept");
            let kept =
                self.waiters.iter_mut().find(|waiter| waiter.number == number).expect("the position is kept");
            (kept.asked, kept.until) = (asked, Some(until));
            number
        } else {
            let number = self.last_waiter + 1;
            let answer =
                self.wait(Waiter { number, asked, upgrades, until: Some(until), by: WaitsBy::Position });
            if answer != Answer::Waits {
                return answer;
            }
            number
        };
        let Some(ms) = block else { return Answer::Queued };
        self.marks.push("a connection waits beside a position");
        self.last_waiter += 1;
        let until = if ms == 0 { until } else { until.min(self.in_ms(ms)) };
        let (number, by) = (self.last_waiter, WaitsBy::Both(number));
        self.waiters.push(Waiter { number, asked, upgrades, until: Some(until), by });
        Answer::Waits
    }

    fn position(&self, asked: &Request) -> Option<Waiter> {
        let own = |waiter: &&Waiter| {
            (waiter.asked.key, waiter.asked.token, waiter.by) == (asked.key, asked.token, WaitsBy::Position)
        };
        self.waiters.iter().find(own).cloned()
    }

    /// The waiter has received the grant.
    pub fn delivered(&mut self, flight: &Flight) {
        let hold = self.hold_mut(flight.key, flight.token);
        if let Some(hold) = hold
            && hold.on_the_way.as_ref().is_some_and(|doubt| doubt.told.contains(&flight.number))
        {
            hold.on_the_way = None;
        }
    }

    /// The reply was lost.
    pub fn undelivered(&mut self, flight: &Flight) {
        self.look_at(flight.key);
        self.lost(flight.key, flight.token, flight.number);
        if flight.granted == Granted::Renewal {
            self.marks.push("an undelivered renewal");
        }
    }

    /// The user of a queued waiter has lost the right to the lock.
    pub fn forbidden(&mut self, key: Key, token: Token) {
        self.look_at(key);
        let doubt = self.hold(key, token).and_then(|hold| hold.on_the_way.as_ref());
        let Some((number, ..)) = doubt.and_then(|doubt| doubt.unclaimed) else { return self.look_at(key) };
        self.marks.push("a grant is forbidden to its user");
        self.lost(key, token, number);
    }

    /// Takes the grant back and serves the next waiter, unless the token has received it on another
    /// connection or can still claim it.
    fn lost(&mut self, key: Key, token: Token, number: u64) {
        self.turn(key, |page| {
            let (now, over) = (page.in_ms(0), page.now / 1000);
            let Some(hold) = page.hold_mut(key, token) else { return };
            let Some(doubt) = &mut hold.on_the_way else { return };
            let is_claimable = doubt.unclaimed.is_some_and(|(of, ..)| of == number);
            if !doubt.told.contains(&number) && !is_claimable && doubt.unclaimed.is_none() {
                page.marks.push("an undelivered grant that others rely on");
                return;
            }
            doubt.told.retain(|other| *other != number);
            doubt.unclaimed = doubt.unclaimed.filter(|(of, ..)| *of != number);
            if !doubt.told.is_empty() {
                page.marks.push("one of two answers is lost");
                return;
            }
            let granted = doubt.granted;
            if let Some((_, until, delay)) = &mut doubt.unclaimed {
                if granted == Granted::Upgrade {
                    return;
                }
                if *until > over {
                    *delay = hold.delay.max(*delay);
                    hold.delay = 0;
                    if *until < hold.end {
                        (hold.end, hold.ttl) = (*until, (*until - now).max(1));
                    }
                    page.marks.push("an undelivered grant may be claimed");
                    return;
                }
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
    }
}
