//! The record of a run: the holds that clients relied on, the writes, and the check of both. A client relies
//! on a hold from the arrival of its grant until it releases the hold, or until the validity that it has
//! computed ends. All times are on the machine's boot-time clock, which no fault changes.

use std::collections::{BTreeMap, HashMap};

use dlock_testkit::history::{At, History, Hold};

/// A write, as the store has seen it.
#[derive(Clone, Debug)]
pub struct Write {
    pub resource: String,
    pub fence: i64,
    /// The hold under which the client wrote: its `token` in [`Record::holds`].
    pub hold: String,
    /// True if the store accepted the write.
    pub accepted: bool,
    /// True if `DLOCK.FENCED` accepted the write.
    pub passed: bool,
}

#[derive(Default)]
pub struct Record {
    pub holds: Vec<Hold>,
    pub writes: Vec<Write>,
}

impl Record {
    /// Returns all violations.
    pub fn violations(&self) -> Vec<String> {
        [self.two_at_once(), self.out_of_order(), self.stale(), self.disagreements()].concat()
    }

    /// Returns pairs of holds of one resource that were valid at the same time.
    pub fn two_at_once(&self) -> Vec<String> {
        History { holds: self.holds.clone(), ..History::default() }.exclusion()
    }

    /// Returns pairs of consecutive holds of a resource in which the later fence is not the greater one.
    fn out_of_order(&self) -> Vec<String> {
        let mut violations = Vec::new();
        for (resource, holds) in self.in_order() {
            for pair in holds.windows(2).filter(|pair| fence(pair[0]) >= fence(pair[1])) {
                violations.push(format!("{resource}: fence order: {:?} and then {:?}", pair[0], pair[1]));
            }
        }
        violations
    }

    /// Returns accepted writes that follow a write of a later holder, and accepted writes whose hold and
    /// fence are not in the record.
    fn stale(&self) -> Vec<String> {
        let mut violations = Vec::new();
        let places: HashMap<(&str, i64), usize> = (self.in_order().into_values())
            .flat_map(|holds| holds.into_iter().enumerate())
            .map(|(place, hold)| ((hold.token.as_str(), fence(hold)), place))
            .collect();
        let mut latest: HashMap<&str, usize> = HashMap::new();
        for write in self.writes.iter().filter(|write| write.accepted) {
            let Some(&place) = places.get(&(write.hold.as_str(), write.fence)) else {
                violations.push(format!("no client had the hold of {write:?}"));
                continue;
            };
            let latest = latest.entry(&write.resource).or_default();
            if place < *latest {
                violations.push(format!("stale and accepted: {write:?}"));
            }
            *latest = place.max(*latest);
        }
        violations
    }

    /// Returns writes on which the store and `DLOCK.FENCED` disagree.
    fn disagreements(&self) -> Vec<String> {
        let differ = self.writes.iter().filter(|write| write.accepted != write.passed);
        differ.map(|write| format!("DLOCK.FENCED differs from the store: {write:?}")).collect()
    }

    /// Returns the holds of each resource, sorted by the arrival of the grant. If the validity of a hold
    /// ended before the grant arrived, the end of the validity counts instead.
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
