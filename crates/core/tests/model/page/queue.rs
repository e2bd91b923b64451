//! The wait queue of the model: which request can be granted, and which is next.

use super::*;

/// Whether a request can be granted.
pub(super) enum May {
    Now(Granted),
    Later,
    /// The key has the maximum number of holders.
    Full,
    Never(Refusal),
}

impl Page {
    /// Grants the lock to the head of the queue, as long as that is possible.
    pub(super) fn serve(&mut self, key: Key) {
        while let Some(waiter) = self.queue(key).first().cloned() {
            let asked = waiter.asked;
            let is_over = waiter.until.is_some_and(|until| self.is_over(until));
            let may = self.may(&asked);
            if !self.is_lost(&waiter) && !is_over && matches!(may, May::Never(_) | May::Now(_)) {
                if self.may_serve == 0 && self.holds_of(key).next().is_some() {
                    self.marks.push("a waiter that could be granted waits for the next turn");
                    return;
                }
                self.may_serve = self.may_serve.saturating_sub(1);
            }
            if self.is_lost(&waiter) {
                self.leave_all(&waiter, Told::Cancelled);
                continue;
            }
            if is_over {
                self.marks.push("a wait has timed out when its turn comes");
                self.leave_all(&waiter, Told::TimedOut);
                continue;
            }
            match may {
                May::Full => {
                    self.marks.push("a waiter for a full lock keeps waiting");
                    return;
                }
                May::Later => {
                    if self.in_grace() && self.holds_of(key).next().is_none() {
                        self.marks.push("grace keeps a waiter out");
                    }
                    if self.delayed(key) && self.holds_of(key).next().is_none() {
                        self.marks.push("a delay keeps a waiter out");
                    }
                    return;
                }
                May::Never(refusal) => {
                    self.marks.push("a waiter is refused when its turn comes");
                    self.leave_all(&waiter, Told::Refused(refusal));
                }
                May::Now(granted) => self.hand_off(&waiter, granted),
            }
        }
    }

    /// Returns whether the position ends because its connection is closing.
    pub(super) fn is_lost(&self, waiter: &Waiter) -> bool {
        waiter.by == WaitsBy::Position && waiter.asked.ephemeral && self.closed == Some(waiter.asked.client)
    }

    fn beside(&self, waiter: &Waiter) -> Vec<Waiter> {
        let beside = |other: &&Waiter| other.by == WaitsBy::Both(waiter.number);
        self.waiters.iter().filter(beside).cloned().collect()
    }

    pub(super) fn hand_off(&mut self, waiter: &Waiter, granted: Granted) {
        let mut asked = waiter.asked;
        let mut kept_back = 0;
        let mut beside = self.beside(waiter);
        beside.retain(|other| !other.until.is_some_and(|until| self.is_over(until)));
        let alone = waiter.by == WaitsBy::Position && beside.is_empty();
        if let (true, Granted::New, Some(until)) = (alone, granted, waiter.until) {
            // The waiter may be dead: its lease must not last longer than its position would have.
            asked.ttl = asked.ttl.min(((until * 1000 - self.now) / 1000).max(1));
            kept_back = std::mem::take(&mut asked.delay);
        }
        let fence = match granted {
            Granted::New => self.begin(&asked),
            Granted::Upgrade | Granted::Renewal => self.again(&asked),
        };
        let fence = match fence {
            Err(refusal) => return self.leave_all(waiter, Told::Refused(refusal)),
            Ok(fence) => fence,
        };
        self.marks.push(match granted {
            Granted::New if alone => "a handoff to a queued waiter",
            Granted::New => "a handoff",
            Granted::Upgrade => "an upgrade that waited",
            Granted::Renewal => "one grant answers two waits of a token",
        });
        let number = waiter.number;
        let unclaimed = waiter.until.filter(|_| waiter.by == WaitsBy::Position);
        let unclaimed = unclaimed.map(|until| (number, until, kept_back));
        let hold = self.hold_mut(asked.key, asked.token).expect("the lock has just been granted");
        if granted == Granted::Upgrade {
            hold.mode = Mode::Exclusive;
        }
        if granted != Granted::Renewal {
            hold.on_the_way = Some(UnconfirmedGrant { granted, told: vec![], unclaimed: None });
        }
        if let Some(doubt) = &mut hold.on_the_way {
            if waiter.by == WaitsBy::Position {
                doubt.unclaimed = unclaimed;
            } else {
                doubt.told.push(number);
            }
            doubt.told.extend(beside.iter().map(|other| other.number));
        }
        self.leave_all(waiter, Told::Granted(fence, granted));
        if granted != Granted::Renewal {
            self.answer_others(asked.key, asked.token);
        }
    }

    /// A grant to a token also answers its other waits on that key that ask for no more.
    pub(super) fn answer_others(&mut self, key: Key, token: Token) {
        for waiter in self.waiters.clone() {
            if (waiter.asked.key, waiter.asked.token) != (key, token) || matches!(waiter.by, WaitsBy::Both(_))
            {
                continue;
            }
            let late = waiter.until.is_some_and(|until| self.is_over(until)) || self.is_lost(&waiter);
            if !late && matches!(self.may(&waiter.asked), May::Now(Granted::Renewal)) {
                self.hand_off(&waiter, Granted::Renewal);
            }
        }
    }

    /// Ends the wait of a waiter, and of the connections that wait together with it.
    pub(super) fn leave_all(&mut self, waiter: &Waiter, told: Told) {
        let beside = self.beside(waiter);
        self.leave(waiter, told);
        for other in &beside {
            let late = matches!(told, Told::Granted(..) | Told::Refused(_))
                && other.until.is_some_and(|until| self.is_over(until));
            self.leave(other, if late { Told::TimedOut } else { told });
        }
    }

    fn leave(&mut self, waiter: &Waiter, told: Told) {
        let asked = waiter.asked;
        self.waiters.retain(|other| other.number != waiter.number);
        if waiter.by == WaitsBy::Position {
            return self.told.push((owner(asked.token), told));
        }
        self.told.push((asked.client, told));
        if let Told::Granted(fence, granted) = told {
            self.flights.push(Flight {
                number: waiter.number,
                client: asked.client,
                key: asked.key,
                token: asked.token,
                fence,
                granted,
            });
        }
    }

    pub(super) fn may(&self, asked: &Request) -> May {
        let others: Vec<Mode> =
            self.holds_of(asked.key).filter(|hold| hold.token != asked.token).map(|hold| hold.mode).collect();
        let delayed = self.delayed(asked.key);
        match (self.hold(asked.key, asked.token).map(|hold| hold.mode), asked.mode) {
            (Some(Mode::Permits(n)), Mode::Permits(asked)) if n != asked => {
                May::Never(Refusal::OtherPermits(n.get()))
            }
            (Some(has), asked) if has == asked => May::Now(Granted::Renewal),
            (Some(Mode::Permits(_)), _) | (Some(_), Mode::Permits(_)) => May::Never(Refusal::OtherMode),
            (Some(Mode::Exclusive), _) => May::Now(Granted::Renewal),
            (Some(_), _) if others.is_empty() && !delayed && !self.in_grace() => May::Now(Granted::Upgrade),
            (Some(_), _) => May::Later,
            (None, _) if self.in_grace() => May::Later,
            (None, Mode::Permits(asked)) => {
                let size = others.iter().find_map(|mode| match mode {
                    Mode::Permits(n) => Some(*n),
                    _ => None,
                });
                match size {
                    Some(n) if n != asked => May::Never(Refusal::OtherPermits(n.get())),
                    Some(n) if others.len() < n.get() as usize && !delayed => self.one_more(others.len()),
                    None if others.is_empty() && !delayed => May::Now(Granted::New),
                    _ => May::Later,
                }
            }
            (None, asked) => {
                let fits = others.is_empty()
                    || asked == Mode::Shared && others.iter().all(|mode| *mode == Mode::Shared);
                if fits && !delayed { self.one_more(others.len()) } else { May::Later }
            }
        }
    }

    fn one_more(&self, holders: usize) -> May {
        if holders < MOST_HOLDERS { May::Now(Granted::New) } else { May::Full }
    }
}
