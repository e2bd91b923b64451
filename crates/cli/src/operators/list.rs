//! `dlock list`: the locks of all servers, with one row for each resource. Rows are printed as the servers
//! list the locks, so that the first row comes at once and the memory does not grow with the locks.

use std::collections::HashMap;
use std::io::{IsTerminal, stderr, stdout};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use comfy_table::{ColumnConstraint, Width};
use dlock_client::{
    Answer, Client, Holder, Inspected, Inspection, Instant, Listed, Needed, NodeState, Walk, now,
};
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use serde::Serialize;
use serde_json::{Value, json};

use crate::args::List;
use crate::exit::{Abort, Failure};
use crate::lock_state::{self, Holding, State, display_name};
use crate::operators::ClusterMap;
use crate::output::{
    CLEAR_LINE, NotPrinted, cell, escape_json, name_text, print, print_later, set_name, table,
    table_without_head, time, warn,
};

/// The number of inspections that are under way at the same time.
const MAX_INSPECTIONS: usize = 32;

/// Number of rows that are printed together, in columns of the same widths.
const PART: usize = 250;

/// The time after which fewer rows are printed.
const PART_LIMIT: Duration = Duration::from_millis(200);

/// The interval at which the number of locks so far is shown.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

pub async fn list(args: List) -> Result<u8, Abort> {
    let client = args.servers.observer().await?;
    let pattern = args.pattern.as_ref().map(|pattern| pattern.as_bytes());
    let map = ClusterMap::ask(&client).await;
    let mut walks = Walks::new(&client, pattern, false);
    let mut printer = Printer::new(args.json);
    while let Some(locks) = walks.next().await {
        printer.add(with_holders(&client, locks, Lock::is_ambiguous).await)?;
    }
    printer.end()?;
    for (server, why) in &walks.silent {
        warn(format_args!("{server}: {why}"));
    }
    map.message().iter().for_each(warn);
    let (servers, answered) = (walks.walks.len(), walks.walks.len() - walks.silent.len());
    // "no locks" would be wrong if no server answered, or if a part of a cluster is unknown.
    if printer.printed == 0 && answered > 0 && map.is_whole() && !args.json {
        print("no locks")?;
    }
    Ok(if answered >= walks.needed.of(servers) && map.is_whole() { 0 } else { Failure::NoQuorum.code() })
}

const HEAD: [&str; 7] = ["RESOURCE", "MODE", "HOLDER", "FROM", "HELD", "LEASE LEFT", "WAITING"];

/// The table of `dlock list`, which `dlock top` shows too.
pub fn text(locks: &[Lock]) -> String {
    let mut rows = table(&HEAD);
    rows.add_rows(locks.iter().map(Lock::row));
    if locks.is_empty() { "no locks".into() } else { rows.trim_fmt() }
}

/// Prints rows, or lines of JSON, in parts.
struct Printer {
    json: bool,
    /// Locks that are not printed yet.
    waiting: Vec<Lock>,
    /// The last time at which none were waiting.
    printed_at: Instant,
    printed: usize,
    /// The width of each column so far.
    widths: [u16; HEAD.len()],
    /// The last time at which the progress was shown. `None` if it is not shown: the rows themselves are
    /// progress on a terminal.
    shown_at: Option<Instant>,
}

impl Printer {
    fn new(json: bool) -> Printer {
        let shows_progress = stderr().is_terminal() && !stdout().is_terminal();
        let shown_at = shows_progress.then(now);
        Printer {
            json,
            waiting: Vec::new(),
            printed_at: now(),
            printed: 0,
            widths: [0; HEAD.len()],
            shown_at,
        }
    }

    fn add(&mut self, locks: Vec<Lock>) -> Result<(), NotPrinted> {
        self.waiting.extend(locks);
        let is_due = now().saturating_since(self.printed_at) >= PART_LIMIT;
        if self.waiting.len() >= PART || is_due { self.print() } else { Ok(()) }
    }

    fn print(&mut self) -> Result<(), NotPrinted> {
        self.printed_at = now();
        let mut locks = std::mem::take(&mut self.waiting);
        if locks.is_empty() {
            return Ok(());
        }
        locks.sort_by(|one, other| one.name.cmp(&other.name));
        if self.json {
            let lines: Vec<String> = locks.iter().map(|lock| escape_json(&lock.json())).collect();
            print(&lines.join("\n"))?;
        } else {
            print(&self.rows(&locks))?;
        }
        self.printed += locks.len();
        if let Some(shown_at) = &mut self.shown_at
            && now().saturating_since(*shown_at) >= PROGRESS_INTERVAL
        {
            *shown_at = now();
            let line = format!("{CLEAR_LINE}{} locks", self.printed);
            print_later(|| line);
        }
        Ok(())
    }

    /// The rows of the next part, in columns that are at least as wide as before.
    fn rows(&mut self, locks: &[Lock]) -> String {
        let mut rows = if self.printed == 0 { table(&HEAD) } else { table_without_head() };
        rows.add_rows(locks.iter().map(Lock::row));
        for (width, needed) in self.widths.iter_mut().zip(rows.column_max_content_widths()) {
            *width = needed.max(*width);
        }
        for (column, width) in rows.column_iter_mut().zip(self.widths) {
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(width + 2)));
        }
        rows.trim_fmt()
    }

    fn end(&mut self) -> Result<(), NotPrinted> {
        self.print()?;
        if self.shown_at.is_some() {
            print_later(|| CLEAR_LINE.into());
        }
        Ok(())
    }
}

/// Inspects those locks that `must_inspect`, on all servers.
pub async fn with_holders(client: &Client, locks: Vec<Lock>, must_inspect: fn(&Lock) -> bool) -> Vec<Lock> {
    let inspected = stream::iter(locks)
        .map(async |lock| if must_inspect(&lock) { lock.inspected(client).await } else { lock });
    inspected.buffered(MAX_INSPECTIONS).collect().await
}

/// The walks over the locks of all servers, side by side. Each lock is returned once all servers that still
/// list their locks have listed it.
pub struct Walks {
    walks: Vec<Walk>,
    needed: Needed,
    is_over: Vec<bool>,
    /// The servers that did not answer, each with the reason.
    pub silent: Vec<(String, NodeState)>,
    /// Locks that another server may still list, with what each server has listed.
    seen: HashMap<Vec<u8>, Vec<Option<Listed>>>,
}

impl Walks {
    /// Makes the walks over the locks that match a pattern, or only those with waiters.
    pub fn new(client: &Client, pattern: Option<&[u8]>, only_waited_for: bool) -> Walks {
        let walks = client.walk(pattern, only_waited_for);
        let is_over = vec![false; walks.len()];
        Walks { walks, needed: client.needed(), is_over, silent: Vec::new(), seen: HashMap::new() }
    }

    /// Sends one request to each server, and returns the locks that are complete. They may be
    /// none although others follow. `None` means that the walks have ended.
    pub async fn next(&mut self) -> Option<Vec<Lock>> {
        if self.is_over.iter().all(|over| *over) {
            return None;
        }
        let active = self.walks.iter_mut().zip(&self.is_over).map(async |(walk, over)| match over {
            true => Ok(None),
            false => walk.next().await,
        });
        let answers = join_all(active).await;
        let (servers, mut has_ended) = (self.walks.len(), false);
        let mut listed = Vec::new();
        for (at, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(None) if self.is_over[at] => {}
                Ok(Some(locks)) => listed.extend(locks.into_iter().map(|lock| (at, lock))),
                Ok(None) => (self.is_over[at], has_ended) = (true, true),
                Err(why) => {
                    (self.is_over[at], has_ended) = (true, true);
                    self.silent.push((self.walks[at].server().to_string(), why));
                }
            }
        }
        let mut changed = Vec::new();
        for (at, lock) in listed {
            let answers = self.seen.entry(lock.resource.clone()).or_insert_with(|| vec![None; servers]);
            changed.push(lock.resource.clone());
            answers[at] = Some(lock);
        }
        if has_ended {
            changed = self.seen.keys().cloned().collect();
        }
        Some(changed.into_iter().filter_map(|name| self.take_complete(name)).collect())
    }

    fn take_complete(&mut self, name: Vec<u8>) -> Option<Lock> {
        let answers = self.seen.get(&name)?;
        // In a cluster, the other masters have other locks.
        let is_sharded = self.needed == Needed::Every;
        let is_complete = answers.iter().zip(&self.is_over).all(|(answer, over)| answer.is_some() || *over);
        let answers = if is_complete || is_sharded { self.seen.remove(&name)? } else { return None };
        if is_sharded {
            let answers = answers.into_iter().filter(Option::is_some).collect();
            return Some(Lock::of(name, answers, |_| false));
        }
        let unanswered =
            |at: usize| self.silent.iter().any(|(server, _)| **server == **self.walks[at].server());
        Some(Lock::of(name, answers, unanswered))
    }
}

/// A lock, merged from the answers of all servers that list it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Lock {
    #[serde(skip)]
    pub name: Vec<u8>,
    state: Option<State>,
    mode: String,
    holders: u64,
    pub waiters: u64,
    pub held_ms: u64,
    pub left_ms: Option<u64>,
    /// Time for which no client is granted the lock, although none holds it.
    delay_ms: u64,
    /// The number of servers that list the lock.
    servers: usize,
    holder: Option<FirstHolder>,
}

/// The holder of a lock, or the first of several.
#[derive(Debug, Clone, Serialize)]
struct FirstHolder {
    label: String,
    address: String,
    /// `None` if no majority has the same fence.
    fence: Option<u64>,
    /// Its beginning.
    token: String,
}

impl From<Holding> for FirstHolder {
    fn from(Holding { holder, fence }: Holding) -> FirstHolder {
        FirstHolder { label: holder.label, address: holder.address, fence, token: holder.token }
    }
}

/// Returns the locks that have waiters, sorted by name.
pub async fn find_contended(client: &Client) -> Vec<Lock> {
    let mut walks = Walks::new(client, None, true);
    let mut locks = Vec::new();
    while let Some(found) = walks.next().await {
        locks.extend(found);
    }
    locks.sort_by(|one, other| one.name.cmp(&other.name));
    locks
}

impl Lock {
    /// Merges what each server has listed; `None` stands for a server that does not list the lock.
    fn of(name: Vec<u8>, listed: Vec<Option<Listed>>, unanswered: impl Fn(usize) -> bool) -> Lock {
        let mut lock = Lock { name, servers: listed.iter().flatten().count(), ..Lock::default() };
        for seen in listed.iter().flatten() {
            lock.add(&seen.mode, seen.holders, seen.waiters, seen.held_ms, seen.left_ms);
            lock.delay_ms = lock.delay_ms.max(seen.delay_ms);
        }
        let inspected = listed.into_iter().enumerate().map(|(at, seen)| {
            let answer = match seen {
                None if unanswered(at) => Answer::Unanswered(NodeState::Slow),
                seen => Answer::Found(seen.map(inspection)),
            };
            Inspected::new("", answer)
        });
        lock.set_state(&inspected.collect::<Vec<_>>());
        lock
    }

    /// Returns false for a lock that no client holds or waits for, and that is in no delay.
    pub fn exists(&self) -> bool {
        self.servers > 0
    }

    /// Returns true if servers may have listed different holders of this lock.
    fn is_ambiguous(&self) -> bool {
        self.servers > 1 && self.holders > 1
    }

    /// Returns the lock as all servers see it now.
    async fn inspected(self, client: &Client) -> Lock {
        let answers = client.inspect(&self.name).await;
        let mut lock = Lock { name: self.name, ..Lock::default() };
        for seen in answers.iter().filter_map(|seen| seen.answer.found()?.as_ref()) {
            lock.servers += 1;
            let holders = || seen.holders.iter();
            let held_ms = holders().map(|holder| holder.held_ms).max().unwrap_or(0);
            let left_ms = holders().map(|holder| holder.left_ms).max();
            lock.add(&seen.mode, seen.holders.len() as u64, seen.waiters, held_ms, left_ms);
            lock.delay_ms = lock.delay_ms.max(seen.delay_ms);
        }
        lock.set_state(&answers);
        lock
    }

    /// Adds what one server reports.
    fn add(&mut self, mode: &str, holders: u64, waiters: u64, held_ms: u64, left_ms: Option<u64>) {
        // A server where the lock has no holder lists it as `free`.
        if self.mode.is_empty() || holders > 0 {
            self.mode = mode.to_owned();
        }
        self.holders = self.holders.max(holders);
        // A waiter is in the queue of one server only, so the sum counts none twice.
        self.waiters += waiters;
        self.held_ms = self.held_ms.max(held_ms);
        self.left_ms = self.left_ms.max(left_ms);
    }

    fn set_state(&mut self, answers: &[Inspected<Option<Inspection>>]) {
        self.state = Some(State::of(answers));
        self.holder = lock_state::holder(answers).map(FirstHolder::from);
    }

    fn json(&self) -> Value {
        let mut lock = json!(self);
        set_name(&mut lock, &self.name);
        lock
    }

    fn row(&self) -> [String; 7] {
        let mode = match self.state {
            Some(State::Held) | None if self.holders > 1 => format!("{} ({})", self.mode, self.holders),
            Some(State::Held) | None => self.mode.clone(),
            Some(State::Delayed) => format!("delayed {}", time(self.delay_ms)),
            Some(state) => state.word().to_owned(),
        };
        let holder = self.holder.as_ref();
        let from = holder.map_or("", |holder| &holder.address);
        [
            cell(name_text(&self.name)),
            cell(mode),
            holder.map(|holder| display_name(&holder.label, &holder.token)).unwrap_or_default(),
            cell(from.rsplit_once(':').map_or(from, |(host, _)| host)),
            time(self.held_ms),
            self.left_ms.filter(|_| self.holders > 0).map(time).unwrap_or_default(),
            self.waiters.to_string(),
        ]
    }
}

/// A listed lock as INSPECT would show it, with the first of its holders.
fn inspection(listed: Listed) -> Inspection {
    let mut inspection = Inspection::default();
    if listed.holders > 0 {
        let mut holder = Holder::default();
        (holder.token, holder.fence) = (listed.token, listed.fence);
        (holder.label, holder.address) = (listed.label, listed.address);
        inspection.holders.push(holder);
    }
    (inspection.mode, inspection.waiters, inspection.delay_ms) =
        (listed.mode, listed.waiters, listed.delay_ms);
    inspection
}
