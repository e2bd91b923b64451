//! Many holds: rows in deadline order, with an index by token. Each row stores its greatest fence, first
//! grant and longest lock-delay, so that a query over all holds reads rows only.

use std::collections::{BTreeMap, VecDeque};

use dlock_protocol::{Deadline, Fence, Instant, Token, steps};
use smallvec::SmallVec;

use super::Hold;

#[derive(Clone, Debug)]
pub(crate) struct Rows {
    /// The deadline of each token's hold, which gives its place in the rows.
    due: BTreeMap<Token, Deadline>,
    /// In the order of deadline and token. No row is empty.
    rows: VecDeque<Row>,
    /// Sum of [`Hold::heap_size`].
    pub(super) heap: usize,
}

#[derive(Clone, Debug)]
struct Row {
    holds: Vec<Hold>,
    fence: Option<Fence>,
    granted: Option<Instant>,
    delay_until: Option<Deadline>,
}

/// Maximum number of holds in a row.
const ROW: usize = if cfg!(test) { 4 } else { 64 };

impl Row {
    fn new(holds: Vec<Hold>) -> Row {
        let mut row = Row { holds, fence: None, granted: None, delay_until: None };
        row.sum_up();
        row
    }

    fn sum_up(&mut self) {
        self.fence = self.holds.iter().map(|hold| hold.fence()).max();
        self.granted = self.holds.iter().map(Hold::granted).min();
        self.delay_until = self.holds.iter().filter_map(Hold::delay_until).max();
    }

    fn joined(&mut self, hold: &Hold) {
        self.fence = self.fence.max(Some(hold.fence()));
        self.granted = Some(self.granted.map_or(hold.granted(), |first| first.min(hold.granted())));
        self.delay_until = self.delay_until.max(hold.delay_until());
    }

    /// Updates the figures after a hold has left. They can change only if the hold had one of these values.
    fn left(&mut self, hold: &Hold) {
        let delay_until = hold.delay_until();
        if self.fence == Some(hold.fence())
            || self.granted == Some(hold.granted())
            || (delay_until.is_some() && self.delay_until == delay_until)
        {
            self.sum_up();
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
            let row: Vec<Hold> = rest.by_ref().take(ROW).collect();
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

    /// Index of the first row with a hold that has not expired.
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

    pub fn fence(&self, now: Instant) -> Option<Fence> {
        let first = self.first_live(now);
        let partly = self.rows.get(first)?;
        let rest = self.rows.range(first + 1..).filter_map(|row| row.fence);
        partly.holds[partly.expired(now)..].iter().map(|hold| hold.fence()).chain(rest).max()
    }

    /// Time of the first grant of the holds that have not expired.
    pub fn granted(&self, now: Instant) -> Option<Instant> {
        let first = self.first_live(now);
        let partly = self.rows.get(first)?;
        let rest = self.rows.range(first + 1..).filter_map(|row| row.granted);
        partly.holds[partly.expired(now)..].iter().map(Hold::granted).chain(rest).min()
    }

    pub fn delay_of_expired(&self, now: Instant) -> Option<Deadline> {
        let first = self.first_live(now);
        let whole = self.rows.range(..first).filter_map(|row| row.delay_until);
        let partly = self.rows.get(first).map_or(&[][..], |row| &row.holds[..row.expired(now)]);
        whole.chain(partly.iter().filter_map(Hold::delay_until)).max()
    }

    pub fn first(&self) -> Option<&Hold> {
        self.rows.front()?.holds.first()
    }

    pub fn last(&self) -> Option<&Hold> {
        self.rows.back()?.holds.last()
    }

    /// The row of a hold and its index there, or the place where it belongs.
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
            // A hold that expires after all others joins the last row.
            (row, at) = (last, self.rows[last].holds.len());
        }
        match self.rows.get_mut(row) {
            None => self.rows.push_back(Row::new(Vec::new())),
            Some(full) if full.holds.len() == ROW => {
                // Most new holds expire after all others, and so fill one row after another.
                let half = if at == ROW { ROW } else { ROW / 2 };
                let rest = full.holds.split_off(half);
                full.sum_up();
                self.rows.insert(row + 1, Row::new(rest));
                if at >= half {
                    (row, at) = (row + 1, at - half);
                }
            }
            Some(_) => {}
        }
        let row = &mut self.rows[row];
        row.joined(&hold);
        row.holds.insert(at, hold);
    }

    pub fn remove(&mut self, token: &[u8]) -> Option<Hold> {
        let due = self.due.remove(token)?;
        let (row, at) = self.place(due, token);
        let in_row = self.rows.get_mut(row)?;
        let hold = in_row.holds.remove(at);
        in_row.left(&hold);
        self.close_up(row);
        self.heap -= hold.heap_size();
        Some(hold)
    }

    /// Joins short rows, so that few holds never take many rows.
    fn close_up(&mut self, row: usize) {
        if self.rows[row].holds.is_empty() {
            self.rows.remove(row);
            return;
        }
        for first in [row, row.wrapping_sub(1)] {
            let len = |at: usize| self.rows.get(at).map_or(ROW, |row| row.holds.len());
            if len(first) + len(first.wrapping_add(1)) <= ROW / 2
                && let Some(next) = self.rows.remove(first + 1)
            {
                self.rows[first].holds.extend(next.holds);
                self.rows[first].sum_up();
            }
        }
    }

    pub fn take_expired(&mut self, now: Instant, most: usize) -> SmallVec<[Hold; 1]> {
        let mut taken = SmallVec::<[Hold; 1]>::new();
        while let Some(row) = self.rows.front_mut() {
            let expired = row.expired(now).min(most - taken.len());
            taken.extend(row.holds.drain(..expired));
            if !row.holds.is_empty() {
                row.sum_up();
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
    pub fn take_first(&mut self, most: usize) -> Vec<Hold> {
        self.take_expired(Instant::from_millis(u64::MAX), most).into_vec()
    }

    /// Bytes on the heap. The size of the index is an estimate.
    pub fn heap_size(&self) -> usize {
        let row = size_of::<Row>() + ROW * size_of::<Hold>();
        let index = self.len() * size_of::<(Token, Deadline)>() * 3 / 2;
        size_of::<Rows>() + self.rows.len() * row + index + self.heap
    }
}
