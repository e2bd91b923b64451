//! Who waits for which owner, and who of them may be stuck elsewhere.

use std::collections::BTreeSet;

use dlock_protocol::{OwnerId, OwnerIdRef};

use super::{Name, Waiter, WaiterId, Waiting, Waits};

/// Those that have an owner, in the order of their owners: one and all within it are two ranges.
#[derive(Clone, Default)]
pub(super) struct Owners(BTreeSet<(OwnerId, WaiterId)>);

impl Owners {
    /// Those of exactly this owner.
    fn of<'a>(&'a self, owner: &OwnerId) -> impl Iterator<Item = WaiterId> + use<'a> {
        let [first, last] = [0, u64::MAX].map(|id| (owner.clone(), WaiterId(id)));
        self.0.range(first..=last).map(|(_, id)| *id)
    }

    /// Those within this owner, and not its own.
    fn inside<'a>(&'a self, owner: &OwnerId) -> impl Iterator<Item = WaiterId> + use<'a> {
        let bound = |next: u8| OwnerId::new(&[owner.as_bytes(), &[next]].concat());
        // An owner of the greatest length has none within it.
        let range = bound(OwnerId::WITHIN).zip(bound(OwnerId::WITHIN + 1));
        let range = range.map(|(from, to)| self.0.range((from, WaiterId(0))..(to, WaiterId(0))));
        range.into_iter().flatten().map(|(_, id)| *id)
    }
}

impl Waiting {
    /// What exactly this owner waits for.
    pub(crate) fn of_owner<'a>(&'a self, owner: &OwnerId) -> impl Iterator<Item = &'a Waiter> + use<'a> {
        self.by_owner.of(owner).filter_map(|id| self.get(id))
    }

    /// What those within this owner wait for.
    pub(crate) fn inside_owner<'a>(&'a self, owner: &OwnerId) -> impl Iterator<Item = &'a Waiter> + use<'a> {
        self.by_owner.inside(owner).filter_map(|id| self.get(id))
    }

    /// Those in a queue whose parties wait elsewhere too, or twice here.
    pub(crate) fn also_elsewhere<'a>(
        &'a self,
        name: &Name<'a>,
    ) -> impl Iterator<Item = &'a Waiter> + use<'a> {
        let positions = self.queues.get(name).into_iter().flat_map(|queue| &queue.also_elsewhere);
        positions.filter_map(|(_, id)| self.get(*id))
    }

    /// It makes those around it, and the first of its own, wait more than once.
    pub(super) fn owner_joins(&mut self, waiter: &Waiter) {
        let Some(owner) = &waiter.request.owner else { return };
        for around in owner.around().chain([owner.clone()]) {
            let first = self.by_owner.of(&around).next();
            if let Some(first) = first {
                self.mark(first, true);
            }
        }
        let more = self.by_owner.of(owner).chain(self.by_owner.inside(owner)).next().is_some();
        if more && let Some(queue) = self.queues.get_mut(&waiter.name) {
            queue.also_elsewhere.insert(waiter.position());
        }
        self.by_owner.0.insert((owner.clone(), waiter.id));
    }

    /// It is out of its queue.
    pub(super) fn owner_leaves(&mut self, waiter: &Waiter) {
        let Some(owner) = &waiter.request.owner else { return };
        self.by_owner.0.remove(&(owner.clone(), waiter.id));
        for around in owner.around().chain([owner.clone()]) {
            let mut own = self.by_owner.of(&around);
            let (last, other) = (own.next(), own.next());
            let other = other.or_else(|| self.by_owner.inside(&around).next());
            drop(own);
            if let Some(last) = last.filter(|_| other.is_none()) {
                self.mark(last, false);
            }
        }
    }

    /// A position has another owner from now on.
    pub(super) fn change_owner(&mut self, id: WaiterId, owner: Option<OwnerIdRef<'_>>) {
        let Some(mut waiter) = self.waiters.remove(&id) else { return };
        if let Some(queue) = self.queues.get_mut(&waiter.name) {
            queue.also_elsewhere.remove(&waiter.position());
        }
        self.owner_leaves(&waiter);
        waiter.request.owner = owner.map(OwnerIdRef::to_owned);
        self.owner_joins(&waiter);
        let often = matches!(self.by_token.get(&waiter.request.token), Some(Waits::Often(_)));
        let alone = waiter.request.owner.is_none() && often;
        self.waiters.insert(id, waiter);
        if alone {
            self.mark(id, true);
        }
    }

    /// Notes whether its party waits more than once.
    fn mark(&mut self, id: WaiterId, more: bool) {
        let Some(waiter) = self.waiters.get(&id) else { return };
        let Some(queue) = self.queues.get_mut(&waiter.name) else { return };
        match more {
            true => queue.also_elsewhere.insert(waiter.position()),
            false => queue.also_elsewhere.remove(&waiter.position()),
        };
    }
}

#[cfg(test)]
mod tests {
    use dlock_protocol::{ClientId, Instant, LockRequestRef, TokenRef, Ttl};
    use proptest::prelude::*;

    use super::*;
    use crate::queue::{Newcomer, Owner, Queued, Rank};

    const KEYS: [&[u8]; 2] = [b"k", b"l"];
    const OWNERS: [&str; 6] = ["", "o", "o/p", "o/p/q", "o!", "r"];

    fn request(owner: usize, token: u8) -> (Vec<u8>, Option<OwnerId>) {
        (vec![b'a' + token], OwnerId::new(OWNERS[owner].as_bytes()))
    }

    /// Who waits for more than one thing, said again: by its owner or one within it, or by its token.
    fn waits_more_than_once(all: &[&Waiter], waiter: &Waiter) -> bool {
        let same = |other: &&&Waiter| match (&waiter.request.owner, &other.request.owner) {
            (Some(owner), Some(other)) => other.is_within(owner),
            (Some(_), None) => false,
            (None, _) => other.request.token == waiter.request.token,
        };
        all.iter().filter(same).count() > 1
    }

    #[derive(Clone, Debug)]
    enum Do {
        Join(usize, usize, u8),
        Leave(usize),
        Keep(usize, usize),
    }

    fn any_do() -> impl Strategy<Value = Do> {
        prop_oneof![
            4 => (0..2usize, 0..6usize, 0..3u8).prop_map(|(key, owner, token)| Do::Join(key, owner, token)),
            2 => any::<usize>().prop_map(Do::Leave),
            2 => (any::<usize>(), 0..6usize).prop_map(|(which, owner)| Do::Keep(which, owner)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]
        /// A wait that is looked at needlessly costs a step; one that is not looked at hides a deadlock.
        #[test]
        fn nobody_is_missed_who_waits_more_than_once(moves in prop::collection::vec(any_do(), 1..40)) {
            let (mut waiting, mut ids, now) = (Waiting::default(), Vec::new(), Instant::from_millis(0));
            let queued = || Queued::new(ClientId(1), None, None, false);
            for step in moves {
                match step {
                    Do::Join(key, owner, token) => {
                        let (token, owner) = request(owner, token);
                        let request = LockRequestRef {
                            owner: owner.as_ref().map(OwnerId::borrowed),
                            ..LockRequestRef::new(TokenRef::new(&token).unwrap(), Ttl::MAX)
                        };
                        let (name, rank) = (Name::new(0, KEYS[key]), Rank::Newcomer);
                        let owner = Owner::Token(queued());
                        ids.extend(waiting.join(Newcomer { name, rank, request, owner, since: now, until: None }));
                    }
                    Do::Leave(which) if !ids.is_empty() => {
                        waiting.leave(ids.swap_remove(which % ids.len())).unwrap();
                    }
                    Do::Keep(which, owner) if !ids.is_empty() => {
                        let id = ids[which % ids.len()];
                        let (_, owner) = request(owner, 0);
                        let asked = waiting.get(id).unwrap().request.clone();
                        let asked = LockRequestRef { owner: owner.as_ref().map(OwnerId::borrowed), ..asked.borrowed() };
                        waiting.keep(id, &asked, queued(), now.after_millis(1));
                    }
                    Do::Leave(_) | Do::Keep(..) => {}
                }
                let all: Vec<&Waiter> = ids.iter().filter_map(|id| waiting.get(*id)).collect();
                for waiter in &all {
                    let marked = waiting.also_elsewhere(&waiter.name).any(|other| other.id == waiter.id);
                    let more = waits_more_than_once(&all, waiter);
                    prop_assert!(marked || !more, "{waiter:?} of {all:?}");
                    if let Some(owner) = &waiter.request.owner {
                        prop_assert_eq!(marked, more, "{:?} of {:?}", waiter, all);
                        let of = waiting.of_owner(owner).chain(waiting.inside_owner(owner)).count();
                        let within = |w: &&&Waiter| w.request.owner.as_ref().is_some_and(|o| o.is_within(owner));
                        prop_assert_eq!(of, all.iter().filter(within).count());
                    }
                }
            }
        }
    }
}
