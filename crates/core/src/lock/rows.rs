//! The holds of a lock that has many: rows in deadline order, with an index by token. Each row stores a
//! summary of its holds, so that a query over all holds reads the holds of one row only.

use std::collections::{BTreeMap, VecDeque};

use dlock_protocol::{Deadline, Fence, Instant, Token, steps};
use smallvec::SmallVec;

use super::Hold;

#[derive(Clone, Debug)]
pub(crate) struct Rows {
    /// The deadline of the hold of each token. Deadline and token give the place of a hold in the rows.
    due: BTreeMap<Token, Deadline>,
    /// In the order of deadline and token. No row is empty.
    rows: VecDeque<Row>,
    /// Sum of [`Hold::heap_size`].
    pub(super) heap: usize,
}

#[derive(Clone, Debug)]
struct Row {
    holds: Vec<Hold>,
    greatest_fence: Option<Fence>,
    first_granted: Option<Instant>,
    /// Latest [`Hold::delay_until`]: the end of the pause (lock-delay) that follows if a hold expires.
    last_delay_until: Option<Deadline>,
}

/// Maximum number of holds in a row.
const ROW_LEN: usize = if cfg!(test) { 4 } else { 64 };

impl Row {
    fn new(holds: Vec<Hold>) -> Row {
        let mut row = Row { holds, greatest_fence: None, first_granted: None, last_delay_until: None };
        row.summarize();
        row
    }

    fn summarize(&mut self) {
        self.greatest_fence = self.holds.iter().map(|hold| hold.fence()).max();
        self.first_granted = self.holds.iter().map(Hold::granted).min();
        self.last_delay_until = self.holds.iter().filter_map(Hold::delay_until).max();
    }

    fn add_to_summary(&mut self, hold: &Hold) {
        self.greatest_fence = self.greatest_fence.max(Some(hold.fence()));
        self.first_granted =
            Some(self.first_granted.map_or(hold.granted(), |first| first.min(hold.granted())));
        self.last_delay_until = self.last_delay_until.max(hold.delay_until());
    }

    /// Updates the summary after a hold has left the row. The summary can change only if one of its values
    /// came from this hold.
    fn update_summary_without(&mut self, hold: &Hold) {
        let delay_until = hold.delay_until();
        if self.greatest_fence == Some(hold.fence())
            || self.first_granted == Some(hold.granted())
            || (delay_until.is_some() && self.last_delay_until == delay_until)
        {
            self.summarize();
        }
    }

    fn is_before(&self, due: Deadline, token: &[u8]) -> bool {
        self.holds.last().is_some_and(|last| is_before(last, due, token))
    }

    /// Number of expired holds in the row.
    fn expired(&self, now: Instant) -> usize {
        self.holds.partition_point(|hold| hold.deadline().passed(now))
    }
}

/// Returns true if the hold comes before the place of this deadline and token. Tests count the comparisons
/// ([`steps`]).
fn is_before(hold: &Hold, due: Deadline, token: &[u8]) -> bool {
    steps::add_one();
    (hold.deadline(), hold.token().as_bytes()) < (due, token)
}

impl Rows {
    pub fn new(mut holds: Vec<Hold>) -> Rows {
        holds.sort_unstable_by(|a, b| (a.deadline(), a.token()).cmp(&(b.deadline(), b.token())));
        let due = holds.iter().map(|hold| (hold.token().clone(), hold.deadline())).collect();
        let heap = holds.iter().map(Hold::heap_size).sum();
        let (mut rows, mut rest) = (VecDeque::new(), holds.into_iter());
        loop {
            let row: Vec<Hold> = rest.by_ref().take(ROW_LEN).collect();
            if row.is_empty() {
                return Rows { due, rows, heap };
            }
            rows.push_back(Row::new(row));
        }
    }

    pub fn len(&self) -> usize {
        self.due.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Hold> {
        self.rows.iter().flat_map(|row| &row.holds)
    }

    /// Index of the boundary row: the first one with a hold that has not expired. All holds in earlier rows
    /// have expired, and no hold in a later row has.
    fn first_live(&self, now: Instant) -> usize {
        self.rows.partition_point(|row| row.holds.last().is_some_and(|last| last.deadline().passed(now)))
    }

    /// The holds from the first one that has not expired.
    pub fn live(&self, now: Instant) -> impl Iterator<Item = &Hold> {
        let first = self.first_live(now);
        let skip = self.rows.get(first).map_or(0, |row| row.expired(now));
        self.rows.range(first..).flat_map(|row| &row.holds).skip(skip)
    }

    pub fn count_live(&self, now: Instant) -> usize {
        let first = self.first_live(now);
        let expired = self.rows.get(first).map_or(0, |row| row.expired(now));
        self.rows.range(first..).map(|row| row.holds.len()).sum::<usize>() - expired
    }

    pub fn greatest_fence(&self, now: Instant) -> Option<Fence> {
        let first = self.first_live(now);
        let boundary = self.rows.get(first)?;
        let rest = self.rows.range(first + 1..).filter_map(|row| row.greatest_fence);
        boundary.holds[boundary.expired(now)..].iter().map(|hold| hold.fence()).chain(rest).max()
    }

    pub fn first_granted(&self, now: Instant) -> Option<Instant> {
        let first = self.first_live(now);
        let boundary = self.rows.get(first)?;
        let rest = self.rows.range(first + 1..).filter_map(|row| row.first_granted);
        boundary.holds[boundary.expired(now)..].iter().map(Hold::granted).chain(rest).min()
    }

    /// Latest end of the lock-delays of the expired holds. `None` if none of these holds has a lock-delay.
    pub fn delay_of_expired(&self, now: Instant) -> Option<Deadline> {
        let first = self.first_live(now);
        let earlier = self.rows.range(..first).filter_map(|row| row.last_delay_until);
        let boundary = self.rows.get(first).map_or(&[][..], |row| &row.holds[..row.expired(now)]);
        earlier.chain(boundary.iter().filter_map(Hold::delay_until)).max()
    }

    pub fn first(&self) -> Option<&Hold> {
        self.rows.front()?.holds.first()
    }

    pub fn last(&self) -> Option<&Hold> {
        self.rows.back()?.holds.last()
    }

    /// The row of a hold and its index in the row, or the place at which to insert it.
    fn place(&self, due: Deadline, token: &[u8]) -> (usize, usize) {
        let row = self.rows.partition_point(|row| row.is_before(due, token));
        (row, self.rows.get(row).map_or(0, |row| row.holds.partition_point(|h| is_before(h, due, token))))
    }

    pub fn get(&self, token: &[u8]) -> Option<&Hold> {
        let (row, at) = self.place(*self.due.get(token)?, token);
        self.rows.get(row)?.holds.get(at)
    }

    pub fn change<R>(&mut self, token: &[u8], change: impl FnOnce(&mut Hold) -> R) -> Option<R> {
        let mut hold = self.remove(token)?;
        let answer = change(&mut hold);
        self.insert(hold);
        Some(answer)
    }

    pub fn insert(&mut self, hold: Hold) {
        self.heap += hold.heap_size();
        self.due.insert(hold.token().clone(), hold.deadline());
        let (mut row, mut at) = self.place(hold.deadline(), hold.token().as_bytes());
        if let Some(last) = self.rows.len().checked_sub(1).filter(|last| *last < row) {
            // The hold expires after all others: append it to the last row.
            (row, at) = (last, self.rows[last].holds.len());
        }
        match self.rows.get_mut(row) {
            None => self.rows.push_back(Row::new(Vec::new())),
            Some(full) if full.holds.len() == ROW_LEN => {
                // Most new holds expire after all others. Such a hold begins a new row, and the full row is
                // not split.
                let split_at = if at == ROW_LEN { ROW_LEN } else { ROW_LEN / 2 };
                let rest = full.holds.split_off(split_at);
                full.summarize();
                self.rows.insert(row + 1, Row::new(rest));
                if at >= split_at {
                    (row, at) = (row + 1, at - split_at);
                }
            }
            Some(_) => {}
        }
        let row = &mut self.rows[row];
        row.add_to_summary(&hold);
        row.holds.insert(at, hold);
    }

    pub fn remove(&mut self, token: &[u8]) -> Option<Hold> {
        let due = self.due.remove(token)?;
        let (row, at) = self.place(due, token);
        let in_row = self.rows.get_mut(row)?;
        let hold = in_row.holds.remove(at);
        in_row.update_summary_without(&hold);
        self.merge_short_rows(row);
        self.heap -= hold.heap_size();
        Some(hold)
    }

    /// Removes a row that is empty, or merges it with a neighbour if both are short. Otherwise a few holds
    /// could occupy many rows.
    fn merge_short_rows(&mut self, row: usize) {
        if self.rows[row].holds.is_empty() {
            self.rows.remove(row);
            return;
        }
        for first in [row, row.wrapping_sub(1)] {
            let len = |at: usize| self.rows.get(at).map_or(ROW_LEN, |row| row.holds.len());
            if len(first) + len(first.wrapping_add(1)) <= ROW_LEN / 2
                && let Some(next) = self.rows.remove(first + 1)
            {
                self.rows[first].holds.extend(next.holds);
                self.rows[first].summarize();
            }
        }
    }

    pub fn take_expired(&mut self, now: Instant, max: usize) -> SmallVec<[Hold; 1]> {
        let mut taken = SmallVec::<[Hold; 1]>::new();
        while let Some(row) = self.rows.front_mut() {
            let expired = row.expired(now).min(max - taken.len());
            taken.extend(row.holds.drain(..expired));
            if !row.holds.is_empty() {
                row.summarize();
                break;
            }
            self.rows.pop_front();
        }
        for hold in &taken {
            self.due.remove(hold.token());
            self.heap -= hold.heap_size();
        }
        taken
    }

    /// Removes the holds that expire first.
    pub fn take_first(&mut self, max: usize) -> Vec<Hold> {
        self.take_expired(Instant::from_millis(u64::MAX), max).into_vec()
    }

    /// Bytes on the heap. The size of the index is an estimate.
    pub fn heap_size(&self) -> usize {
        let row = size_of::<Row>() + ROW_LEN * size_of::<Hold>();
        let index = self.len() * size_of::<(Token, Deadline)>() * 3 / 2;
        size_of::<Rows>() + self.rows.len() * row + index + self.heap
    }
}
