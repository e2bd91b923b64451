//! The checker of recorded histories. It finds replies that a correct server cannot have given.
//!
//! A history is data, without a server or a clock. Its times are measured by the clients: a request is sent
//! *before* the server reads it, and its reply arrives *after* the server decided. The checker assumes
//! no more about the time of the decision, so it reports no false fault, even on a slow machine.

use std::collections::{BTreeMap, HashMap};

/// Microseconds since the start of the run.
pub type At = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Exclusive,
    Shared,
    Permits(usize),
}

/// One acquisition. Each has its own token.
#[derive(Clone, Debug)]
pub struct Hold {
    pub key: String,
    pub token: String,
    pub mode: Mode,
    /// Time just before ACQUIRE was sent.
    pub asked: At,
    /// `None` if the request was refused or never answered.
    pub grant: Option<Grant>,
    /// Arrival of a reply that shows that the token holds nothing: a refusal, or the reply to RELEASE.
    pub ended: Option<At>,
}

#[derive(Clone, Copy, Debug)]
pub struct Grant {
    pub fence: i64,
    /// Time just after the reply arrived.
    pub at: At,
    /// Time until which the client relies on the grant: the end of its lease, counted from before the request
    /// was sent, or the time just before it sent RELEASE.
    pub until: At,
}

/// The holders and waiters of a key, as the server reported them between `asked` and `answered`.
#[derive(Clone, Debug)]
pub struct Report {
    pub key: String,
    pub asked: At,
    pub answered: At,
    /// Tokens and fences of the holders.
    pub holders: Vec<(String, i64)>,
    /// Tokens of the waiters, the head of the queue first.
    pub queue: Vec<String>,
    /// True if the server would not have granted the lock at that time even if it was free: because of a
    /// DELAY of the lock, a grace period, or a pause of the server.
    pub grants_paused: bool,
}

/// A BREAK, which ended all holds of a key. Times are those of the request and of its reply.
#[derive(Clone, Debug)]
pub struct Break {
    pub key: String,
    pub asked: At,
    pub answered: At,
}

#[derive(Default)]
pub struct History {
    pub holds: Vec<Hold>,
    pub reports: Vec<Report>,
    pub breaks: Vec<Break>,
}

impl History {
    /// Checks that no two clients relied on incompatible holds at the same time. Also checks that no more
    /// clients relied on permits of a key at the same time than the key has.
    pub fn exclusion(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (key, mut holds) in self.relied_on() {
            holds.sort_by_key(|(from, ..)| *from);
            let mut current: Vec<(At, At, &Hold)> = Vec::new();
            for (from, until, hold) in holds {
                current.retain(|(_, until, _)| *until > from);
                for (_, _, other) in current.iter().filter(|(_, _, other)| excludes(other.mode, hold.mode)) {
                    faults.push(format!(
                        "{key}: both {} and {} relied on incompatible holds at {from}",
                        show(other),
                        show(hold)
                    ));
                }
                current.push((from, until, hold));
                if let Mode::Permits(permits) = hold.mode
                    && current.len() > permits
                {
                    let all: Vec<String> = current.iter().map(|(.., hold)| show(hold)).collect();
                    faults.push(format!(
                        "{key}: {} clients relied on {permits} permits at {from}: {all:?}",
                        current.len()
                    ));
                }
            }
        }
        faults
    }

    /// Returns, by key, the intervals in which clients relied on their granted holds. An interval ends when a
    /// BREAK is sent, unless the BREAK was answered before the hold was requested.
    fn relied_on(&self) -> BTreeMap<&str, Vec<(At, At, &Hold)>> {
        let mut by_key: BTreeMap<&str, Vec<(At, At, &Hold)>> = BTreeMap::new();
        for hold in &self.holds {
            let Some(grant) = hold.grant else { continue };
            let broken = self.breaks.iter().filter(|b| b.key == hold.key && b.answered > hold.asked);
            let until = broken.map(|b| b.asked).chain([grant.until]).min().unwrap_or(grant.until);
            if grant.at < until {
                by_key.entry(&hold.key).or_default().push((grant.at, until, hold));
            }
        }
        by_key
    }

    /// Checks that fences differ. A grant that was requested after the reply to another grant must have the
    /// greater fence.
    pub fn fences(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let granted = || self.holds.iter().filter_map(|hold| Some((hold, hold.grant?)));
        let mut by_fence: HashMap<i64, &Hold> = HashMap::new();
        for (hold, grant) in granted() {
            if let Some(other) = by_fence.insert(grant.fence, hold) {
                faults.push(format!("{} and {} have the same fence", show(other), show(hold)));
            }
        }
        let mut answered: Vec<_> = granted().collect();
        answered.sort_by_key(|(_, grant)| grant.at);
        let mut asked: Vec<_> = granted().collect();
        asked.sort_by_key(|(hold, _)| hold.asked);
        // For each request, finds the highest fence among the grants that were answered before it was sent.
        let (mut next, mut highest): (usize, Option<(&Hold, Grant)>) = (0, None);
        for (hold, grant) in asked {
            while let Some((earlier, known)) = answered.get(next).filter(|(_, known)| known.at < hold.asked) {
                if highest.is_none_or(|(_, high)| known.fence > high.fence) {
                    highest = Some((earlier, *known));
                }
                next += 1;
            }
            if let Some((earlier, _)) = highest.filter(|(_, high)| high.fence > grant.fence) {
                faults.push(format!("{} has a lower fence than the earlier {}", show(hold), show(earlier)));
            }
        }
        faults
    }

    /// Checks the reported holders: each was requested, none had ended, and none is missing.
    pub fn reported_holders(&self) -> Vec<String> {
        self.wrong_holders().into_iter().chain(self.reappeared()).chain(self.lost()).collect()
    }

    /// Returns reported holders that never asked for the lock or have another fence than granted, and reports
    /// with too many holders.
    pub fn wrong_holders(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let by_token = self.by_token();
        for report in &self.reports {
            for (token, fence) in &report.holders {
                let Some(hold) = by_token.get(token.as_str()).filter(|hold| hold.key == report.key) else {
                    faults.push(format!("{}: {token} is reported as a holder and never asked", report.key));
                    continue;
                };
                if hold.grant.is_some_and(|grant| grant.fence != *fence) {
                    faults.push(format!("{}: {} is reported with the fence {fence}", report.key, show(hold)));
                }
                let max_holders = match hold.mode {
                    Mode::Exclusive => 1,
                    Mode::Permits(permits) => permits,
                    Mode::Shared => usize::MAX,
                };
                if report.holders.len() > max_holders {
                    faults.push(format!(
                        "{}: {} holders are reported, at most {max_holders} are allowed",
                        report.key,
                        report.holders.len()
                    ));
                }
            }
        }
        faults
    }

    /// Returns holds that were reported after their end was acknowledged.
    pub fn reappeared(&self) -> Vec<String> {
        let by_token = self.by_token();
        let seen = self
            .reports
            .iter()
            .flat_map(|report| report.holders.iter().map(move |(token, _)| (report, token)));
        let faults = seen.filter_map(|(report, token)| {
            let hold = by_token.get(token.as_str())?;
            (hold.ended? < report.asked)
                .then(|| format!("{} is reported after its end, at {}", show(hold), report.answered))
        });
        faults.collect()
    }

    /// Returns holds that are missing from a report, although a client relied on them during the whole
    /// report: from before it was requested until after it arrived.
    pub fn lost(&self) -> Vec<String> {
        let relied_on = self.relied_on();
        let mut faults = Vec::new();
        for report in &self.reports {
            let holds = relied_on.get(report.key.as_str()).into_iter().flatten();
            let throughout =
                holds.filter(|(from, until, _)| *from < report.asked && *until > report.answered);
            for (_, _, hold) in throughout {
                if !report.holders.iter().any(|(token, _)| *token == hold.token) {
                    faults.push(format!("{} is missing from the report at {}", show(hold), report.answered));
                }
            }
        }
        faults
    }

    /// Checks that waiters were granted in the order of the queue, and before clients that asked later. Also
    /// checks that no client waited for a free lock.
    pub fn queue(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let by_token = self.by_token();
        let mut granted: HashMap<&str, Vec<&Hold>> = HashMap::new();
        for hold in self.holds.iter().filter(|hold| hold.grant.is_some()) {
            granted.entry(&hold.key).or_default().push(hold);
        }
        let fence = |hold: &Hold| hold.grant.map_or(0, |grant| grant.fence);
        for holds in granted.values_mut() {
            holds.sort_by_key(|hold| hold.asked);
        }
        for report in &self.reports {
            if report.holders.is_empty() && !report.queue.is_empty() && !report.grants_paused {
                faults.push(format!(
                    "{}: the lock is free at {}, but {:?} wait",
                    report.key, report.answered, report.queue
                ));
            }
            let queue = report.queue.iter().filter_map(|token| by_token.get(token.as_str()));
            let queue: Vec<&&Hold> = queue.filter(|hold| hold.grant.is_some()).collect();
            for pair in queue.windows(2).filter(|pair| fence(pair[0]) > fence(pair[1])) {
                faults.push(format!(
                    "{} waited behind {} and was granted before it",
                    show(pair[1]),
                    show(pair[0])
                ));
            }
            let Some(last_granted) = queue.iter().max_by_key(|hold| fence(hold)) else { continue };
            let holds = granted.get(report.key.as_str()).map(Vec::as_slice).unwrap_or_default();
            let later = &holds[holds.partition_point(|hold| hold.asked <= report.answered)..];
            for hold in later.iter().filter(|hold| fence(hold) < fence(last_granted)) {
                faults.push(format!(
                    "{} asked later than {} and was granted before it",
                    show(hold),
                    show(last_granted)
                ));
            }
        }
        faults
    }

    fn by_token(&self) -> HashMap<&str, &Hold> {
        self.holds.iter().map(|hold| (hold.token.as_str(), hold)).collect()
    }
}

fn excludes(one: Mode, other: Mode) -> bool {
    match (one, other) {
        (Mode::Shared, Mode::Shared) => false,
        // `exclusion` counts the permits.
        (Mode::Permits(_), Mode::Permits(_)) => false,
        _ => true,
    }
}

fn show(hold: &Hold) -> String {
    let Hold { key, token, mode, asked, .. } = hold;
    match hold.grant {
        Some(Grant { fence, at, until }) => {
            format!("{token} on {key} ({mode:?}, fence {fence}, asked {asked}, granted {at}, until {until})")
        }
        None => format!("{token} on {key} ({mode:?}, asked {asked})"),
    }
}
