//! Who is next, and who may have what.

use super::*;

/// Whether a request can be granted.
pub(super) enum May {
    Now(Granted),
    Later,
    /// As many hold it as may.
    Full,
    Never(Refusal),
}

impl Page {
    /// Grants to the head of the queue, for as long as it can be granted.
    pub(super) fn serve(&mut self, key: Key) {
        while let Some(waiter) = self.queue(key).first().cloned() {
            if waiter.until.is_some_and(|until| self.is_over(until)) {
                self.marks.push("a wait is over when its turn comes");
                self.leave(&waiter, Told::TimedOut);
                continue;
            }
            let asked = waiter.asked;
            match self.may(&asked) {
                May::Full => {
                    self.marks.push("a waiter for a full lock waits on");
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
                    self.leave(&waiter, Told::Refused(refusal));
                }
                May::Now(granted) => self.hand_off(&waiter, granted),
            }
        }
    }

    pub(super) fn hand_off(&mut self, waiter: &Waiter, granted: Granted) {
        let asked = waiter.asked;
        let fence = match granted {
            Granted::New => self.begin(&asked),
            Granted::Upgrade | Granted::Renewal => self.again(&asked),
        };
        let fence = match fence {
            Err(refusal) => return self.leave(waiter, Told::Refused(refusal)),
            Ok(fence) => fence,
        };
        self.marks.push(match granted {
            Granted::New => "a handoff",
            Granted::Upgrade => "an upgrade that waited",
            // Does not happen, and is not in the list of what does: the grant itself has answered that wait.
            Granted::Renewal => "a wait for what its token holds",
        });
        let hold = self.hold_mut(asked.key, asked.token).expect("it has just been granted");
        if granted == Granted::Upgrade {
            hold.mode = Mode::Exclusive;
        }
        if granted != Granted::Renewal {
            hold.on_the_way = Some((granted, vec![waiter.number]));
        }
        self.leave(waiter, Told::Granted(fence, granted));
        self.answer_others(asked.key, asked.token);
    }

    /// A grant to a token answers each of its waits on that key that asks for no more.
    pub(super) fn answer_others(&mut self, key: Key, token: Token) {
        for waiter in self.waiters.clone() {
            if (waiter.asked.key, waiter.asked.token) != (key, token) {
                continue;
            }
            let late = waiter.until.is_some_and(|until| self.is_over(until));
            if !late && matches!(self.may(&waiter.asked), May::Now(Granted::Renewal)) {
                self.handoff_again(&waiter);
            }
        }
    }

    pub(super) fn handoff_again(&mut self, waiter: &Waiter) {
        self.marks.push("one grant answers two waits of a token");
        let told = match self.again(&waiter.asked) {
            Ok(fence) => {
                let hold = self.hold_mut(waiter.asked.key, waiter.asked.token).expect("it holds");
                if let Some((_, waiters)) = &mut hold.on_the_way {
                    waiters.push(waiter.number);
                }
                Told::Granted(fence, Granted::Renewal)
            }
            Err(refusal) => Told::Refused(refusal),
        };
        self.leave(waiter, told);
    }

    pub(super) fn leave(&mut self, waiter: &Waiter, told: Told) {
        let asked = waiter.asked;
        self.waiters.retain(|other| other.asked.client != asked.client);
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
