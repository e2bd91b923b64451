//! ACQUIRE of [`System`], which drives the core as the module does: an attempt, and a wait if the lock is not
//! free.

use super::*;

impl System {
    pub(super) fn acquire(&mut self, asked: &Request, block: Option<u64>, queue: Option<u64>) -> Answer {
        let (who, text) = (token(asked.token), label(asked.label));
        let client = ClientId(asked.client);
        let request = LockRequest {
            mode: asked.mode,
            reentry: asked.reentry,
            ephemeral: asked.ephemeral,
            delay: Delay::from_millis(asked.delay).expect("a possible delay"),
            label: LabelRef::new(&text).expect("a possible label"),
            owner: OwnerIdRef::new(OWNERS[usize::from(asked.owner)].as_bytes()),
            ..LockRequest::new(checked(&who), ttl(asked.ttl))
        };
        let held = self.locks.get(&asked.key).is_some_and(|l| l.at(self.instant()).hold_of(&who).is_some());
        let before = self.outcomes.len();
        let queued = || Queued::new(client, None, None);
        let until = queue.map(|ms| self.instant() + ttl(ms));
        // An ACQUIRE without options may be replicated verbatim, instead of the changed holds.
        let has_no_options = request == LockRequest::new(checked(&who), request.ttl);
        let plain = (has_no_options && block.is_none() && queue.is_none())
            .then(|| Plain::Acquire(checked(&who), request.ttl));
        let acquired = self.turn_of(plain, asked.key, |turn| match until {
            Some(until) => turn.queue(&request, queued(), until),
            None => turn.acquire(&request, client),
        });
        let rank = match acquired {
            Acquired::Held(fence) => {
                // If this turn has served the token as a waiter, `carry_out` has recorded the grant already.
                let is_grant = |(_, outcome): &_| matches!(outcome, WaitOutcome::Granted(..));
                if !held && !self.outcomes[before..].iter().any(is_grant) {
                    assert_eq!(self.waiting.len_of(&name(asked.key)), 0, "no newcomer overtakes the queue");
                    self.record_grant(asked.key, asked.token, fence);
                }
                // The answer reaches the client at once.
                self.record_receipt(asked.key, asked.token, asked.client, asked.mode);
                return Answer::Fence(fence.get());
            }
            // Two sharers that wait for an upgrade would wait for each other.
            Acquired::OtherUpgrades(other) => {
                self.cycle = vec![asked.party(), party_of(&other), asked.party()];
                return Answer::Deadlock;
            }
            Acquired::Refused(refusal) => return Answer::Refused(refusal),
            Acquired::Grace => return Answer::Grace,
            Acquired::NotNow(rank) => rank,
            Acquired::Queued(position) => return self.join_connection(position, &request, client, block),
        };
        if block.is_none() && queue.is_none() {
            return Answer::Null;
        }
        let name = name(asked.key);
        let kind = if queue.is_some() { WaitKind::Queued(queued()) } else { WaitKind::Blocked(client) };
        let limits = Limits { on_the_server: MAX_WAITERS.0, on_a_key: MAX_WAITERS.1, queued: MAX_WAITERS.0 };
        if !self.waiting.has_room(&name, &kind, limits) {
            return Answer::QueueFull;
        }
        let mut search = Search::new(&request, &name, rank, self.instant(), &self.waiting);
        loop {
            match search.run(&self.waiting) {
                Found::Nothing => break,
                Found::Ask(name) => {
                    let lock = self.locks.get(&key_of(&name));
                    search.learn(&name, lock, &self.waiting);
                }
                Found::Cycle(cycle) => {
                    self.cycle = cycle.iter().map(party_of).collect();
                    return Answer::Deadlock;
                }
            }
        }
        let since = self.instant();
        let wait = block.and_then(Wait::from_millis);
        let until = until.or_else(|| wait?.until(since));
        let new_waiter = NewWaiter { name, rank, request, kind, since, until };
        let id = self.waiting.join(new_waiter).expect("room in the queue");
        assert!(self.unanswered.insert(id));
        if queue.is_some() { self.join_connection(id, &request, client, block) } else { Answer::Waits }
    }

    /// Adds a blocked connection beside a queue position, if the request has BLOCK.
    fn join_connection(
        &mut self,
        position: WaiterId,
        request: &LockRequestRef<'_>,
        client: ClientId,
        block: Option<u64>,
    ) -> Answer {
        let Some(wait) = block.and_then(Wait::from_millis) else { return Answer::Queued };
        let since = self.instant();
        let waiter = self.waiting.get(position).expect("the position waits").clone();
        let until = wait.until(since).into_iter().chain(waiter.until).min();
        let (name, rank, kind) = (waiter.name, waiter.rank, WaitKind::Beside(client, position));
        let new_waiter = NewWaiter { name, rank, request: *request, kind, since, until };
        assert!(self.unanswered.insert(self.waiting.join(new_waiter).expect("room in the queue")));
        Answer::Waits
    }
}
