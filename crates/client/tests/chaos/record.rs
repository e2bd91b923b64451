//! What the clients of a run relied on and what they wrote, and whether it may have been so. No server, no
//! clock.
//!
//! A hold is relied on from when its client had it in hand until its validity ended, by the client's own
//! account, or until the client let go of it. All of that is on one clock of one machine.

use std::collections::{BTreeMap, HashMap};

use dlock_testkit::history::{At, History, Hold};

/// An append, in the order in which the store took them.
#[derive(Clone, Debug)]
pub struct Write {
    pub resource: String,
    pub fence: i64,
    /// The name of the hold under which it was made.
    pub hold: String,
    pub accepted: bool,
    /// `DLOCK.FENCED` accepted it too.
    pub passed: bool,
}

#[derive(Default)]
pub struct Record {
    pub holds: Vec<Hold>,
    pub writes: Vec<Write>,
}

impl Record {
    /// Everything that may not have been.
    pub fn wrong(&self) -> Vec<String> {
        [self.two_at_once(), self.out_of_order(), self.stale(), self.gate()].concat()
    }

    /// Two valid holds of one resource.
    pub fn two_at_once(&self) -> Vec<String> {
        History { holds: self.holds.clone(), ..History::default() }.exclusion()
    }

    /// A fence that is not greater than that of the acquisition before.
    fn out_of_order(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (resource, holds) in self.in_order() {
            for pair in holds.windows(2).filter(|pair| fence(pair[0]) >= fence(pair[1])) {
                wrong.push(format!("{resource}: fence order: {:?} and then {:?}", pair[0], pair[1]));
            }
        }
        wrong
    }

    /// A write that was accepted although a later holder had written, or by a hold that nobody had with that
    /// fence.
    fn stale(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let places: HashMap<(&str, i64), usize> = (self.in_order().into_values())
            .flat_map(|holds| holds.into_iter().enumerate())
            .map(|(place, hold)| ((hold.token.as_str(), fence(hold)), place))
            .collect();
        let mut latest: HashMap<&str, usize> = HashMap::new();
        for write in self.writes.iter().filter(|write| write.accepted) {
            let Some(&place) = places.get(&(write.hold.as_str(), write.fence)) else {
                wrong.push(format!("nobody had the hold of {write:?}"));
                continue;
            };
            let latest = latest.entry(&write.resource).or_default();
            if place < *latest {
                wrong.push(format!("stale and accepted: {write:?}"));
            }
            *latest = place.max(*latest);
        }
        wrong
    }

    /// A write that was accepted by the store and refused by the gate, or the reverse.
    fn gate(&self) -> Vec<String> {
        let differ = self.writes.iter().filter(|write| write.accepted != write.passed);
        differ.map(|write| format!("the gate differs from the store: {write:?}")).collect()
    }

    /// The holds of each resource in the order of their acquisition. Who had one in hand only after its end
    /// had it by the end at the latest.
    fn in_order(&self) -> BTreeMap<&str, Vec<&Hold>> {
        let mut by_resource: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
        for hold in self.holds.iter().filter(|hold| hold.grant.is_some()) {
            by_resource.entry(&hold.key).or_default().push(hold);
        }
        for holds in by_resource.values_mut() {
            holds.sort_by_key(|hold| begun(hold));
        }
        by_resource
    }
}

fn begun(hold: &Hold) -> At {
    hold.grant.map_or(0, |grant| grant.at.min(grant.until))
}

fn fence(hold: &Hold) -> i64 {
    hold.grant.map_or(0, |grant| grant.fence)
}
