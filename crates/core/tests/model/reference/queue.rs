//! The wait queue of the model: which request can be granted, and which is next. `marks` names the situations
//! that occur, so that the random runs can check that they reach each of them.

use super::*;

/// Whether a request can be granted.
pub(super) enum Decision {
    Now(Granted),
    Later,
    /// The key has the maximum number of holders.
    Full,
    Never(Refusal),
}

impl Model {
    /// Grants the lock to one head of the queue after the other, as long as that is possible.
    pub(super) fn serve(&mut self, key: Key) {
        while let Some(waiter) = self.queue(key).first().cloned() {
            if self.is_closing(&waiter) {
                self.leave_all(&waiter, WaitOutcome::Cancelled);
                continue;
            }
            if self.has_timed_out(&waiter) {
                self.marks.push("a wait has timed out at the head of the queue");
                self.leave_all(&waiter, WaitOutcome::TimedOut);
                continue;
            }
            let decision = self.decide(&waiter.request);
            if matches!(decision, Decision::Never(_) | Decision::Now(_)) {
                // `grants_left` limits the waiters that one operation serves. The head of the queue of a free
                // lock is served beyond that limit: otherwise a newcomer could acquire the lock before it.
                if self.grants_left == 0 && self.holds_of(key).next().is_some() {
                    self.marks.push("a waiter that could be granted waits for the next turn");
                    return;
                }
                self.grants_left = self.grants_left.saturating_sub(1);
            }
            match decision {
                Decision::Full => {
                    self.marks.push("a waiter for a full lock keeps waiting");
                    return;
                }
                Decision::Later => {
                    if self.in_grace() && self.holds_of(key).next().is_none() {
                        self.marks.push("grace keeps a waiter out");
                    }
                    if self.delayed(key) && self.holds_of(key).next().is_none() {
                        self.marks.push("a delay keeps a waiter out");
                    }
                    return;
                }
                Decision::Never(refusal) => {
                    self.marks.push("a waiter is refused at the head of the queue");
                    self.leave_all(&waiter, WaitOutcome::Refused(refusal));
                }
                Decision::Now(granted) => self.hand_off(&waiter, granted),
            }
        }
    }

    /// Returns whether the waiter is a position (a wait by QUEUE) with EPHEMERAL, and its connection is
    /// closing. The wait ends with that connection.
    pub(super) fn is_closing(&self, waiter: &Waiter) -> bool {
        let Request { ephemeral, client, .. } = waiter.request;
        waiter.by == WaitsBy::Position && ephemeral && self.closed == Some(client)
    }

    /// Returns the connections that wait together with a position.
    fn connections_with(&self, waiter: &Waiter) -> Vec<Waiter> {
        let waits_with = |other: &&Waiter| other.by == WaitsBy::BlockAndQueue(waiter.number);
        self.waiters.iter().filter(waits_with).cloned().collect()
    }

    pub(super) fn hand_off(&mut self, waiter: &Waiter, granted: Granted) {
        let mut request = waiter.request;
        // A grant to a position is unclaimed until a command with its token arrives. The hold gets this delay
        // then.
        let mut delay_after_claim = 0;
        let mut connections = self.connections_with(waiter);
        connections.retain(|other| !self.has_timed_out(other));
        let without_connection = waiter.by == WaitsBy::Position && connections.is_empty();
        if let (true, Granted::New, Some(until)) = (without_connection, granted, waiter.until) {
            // The waiter has no connection, which would show that it is alive. So its lease ends when its
            // position would have ended, or before.
            request.ttl = request.ttl.min(((until * 1000 - self.now) / 1000).max(1));
            delay_after_claim = std::mem::take(&mut request.delay);
        }
        let fence = match granted {
            Granted::New => self.grant(&request),
            Granted::Upgrade | Granted::Renewal => self.reacquire(&request),
        };
        let fence = match fence {
            Err(refusal) => return self.leave_all(waiter, WaitOutcome::Refused(refusal)),
            Ok(fence) => fence,
        };
        self.marks.push(match granted {
            Granted::New if without_connection => "a handoff to a queued waiter",
            Granted::New => "a handoff",
            Granted::Upgrade => "an upgrade that waited",
            Granted::Renewal => "one grant answers two waits of a token",
        });
        let number = waiter.number;
        let position_end = waiter.until.filter(|_| waiter.by == WaitsBy::Position);
        let unclaimed = position_end.map(|until| (number, until, delay_after_claim));
        let hold = self.hold_mut(request.key, request.token).expect("the lock has just been granted");
        if granted == Granted::Upgrade {
            hold.mode = Mode::Exclusive;
        }
        // Unconfirmed until a waiter is known to have received the grant.
        if granted != Granted::Renewal {
            hold.unconfirmed = Some(UnconfirmedGrant { granted, sent_to: vec![], unclaimed: None });
        }
        if let Some(unconfirmed) = &mut hold.unconfirmed {
            if waiter.by == WaitsBy::Position {
                unconfirmed.unclaimed = unclaimed;
            } else {
                unconfirmed.sent_to.push(number);
            }
            unconfirmed.sent_to.extend(connections.iter().map(|other| other.number));
        }
        self.leave_all(waiter, WaitOutcome::Granted(fence, granted));
        if granted != Granted::Renewal {
            self.answer_others(request.key, request.token);
        }
    }

    /// Answers the other waiters of a token that was granted the lock, if the new hold satisfies their
    /// requests.
    pub(super) fn answer_others(&mut self, key: Key, token: Token) {
        for waiter in self.waiters.clone() {
            let is_of_token = (waiter.request.key, waiter.request.token) == (key, token);
            if !is_of_token || matches!(waiter.by, WaitsBy::BlockAndQueue(_)) {
                continue;
            }
            let ends = self.has_timed_out(&waiter) || self.is_closing(&waiter);
            if !ends && matches!(self.decide(&waiter.request), Decision::Now(Granted::Renewal)) {
                self.hand_off(&waiter, Granted::Renewal);
            }
        }
    }

    /// Ends the wait of a waiter, and of the connections that wait together with it.
    pub(super) fn leave_all(&mut self, waiter: &Waiter, outcome: WaitOutcome) {
        let connections = self.connections_with(waiter);
        self.leave(waiter, outcome);
        for other in &connections {
            let is_late = matches!(outcome, WaitOutcome::Granted(..) | WaitOutcome::Refused(_))
                && self.has_timed_out(other);
            self.leave(other, if is_late { WaitOutcome::TimedOut } else { outcome });
        }
    }

    fn leave(&mut self, waiter: &Waiter, outcome: WaitOutcome) {
        let request = waiter.request;
        self.waiters.retain(|other| other.number != waiter.number);
        if waiter.by == WaitsBy::Position {
            return self.outcomes.push((client_of_queued_wait(request.token), outcome));
        }
        self.outcomes.push((request.client, outcome));
        if let WaitOutcome::Granted(fence, granted) = outcome {
            self.sent_grants.push(SentGrant {
                number: waiter.number,
                client: request.client,
                key: request.key,
                token: request.token,
                fence,
                granted,
            });
        }
    }

    pub(super) fn decide(&self, request: &Request) -> Decision {
        let others = self.holds_of(request.key).filter(|hold| hold.token != request.token);
        let others: Vec<Mode> = others.map(|hold| hold.mode).collect();
        let delayed = self.delayed(request.key);
        match (self.hold(request.key, request.token).map(|hold| hold.mode), request.mode) {
            (Some(Mode::Permits(_)), Mode::Permits(_)) => Decision::Now(Granted::Renewal),
            (Some(has), wanted) if has == wanted => Decision::Now(Granted::Renewal),
            (Some(Mode::Permits(_)), _) | (Some(_), Mode::Permits(_)) => Decision::Never(Refusal::OtherMode),
            (Some(Mode::Exclusive), _) => Decision::Now(Granted::Renewal),
            (Some(_), _) if others.is_empty() && !delayed && !self.in_grace() => {
                Decision::Now(Granted::Upgrade)
            }
            (Some(_), _) => Decision::Later,
            (None, _) if self.in_grace() => Decision::Later,
            (None, Mode::Permits(wanted)) => {
                let fits = others.len() < wanted.get() as usize
                    && others.iter().all(|mode| matches!(mode, Mode::Permits(_)));
                if fits && !delayed { self.grant_if_room(others.len()) } else { Decision::Later }
            }
            (None, wanted) => {
                let fits = others.is_empty()
                    || wanted == Mode::Shared && others.iter().all(|mode| *mode == Mode::Shared);
                if fits && !delayed { self.grant_if_room(others.len()) } else { Decision::Later }
            }
        }
    }

    fn grant_if_room(&self, holders: usize) -> Decision {
        if holders < MAX_HOLDERS { Decision::Now(Granted::New) } else { Decision::Full }
    }
}
