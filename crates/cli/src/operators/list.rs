//! `dlock list`: the locks of all servers, with one row for each resource.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;

use dlock_client::{Answer, Client, Inspected, Listed, majority};
use futures_util::{StreamExt, stream};
use serde::Serialize;
use serde_json::{Value, json};

use crate::args::List;
use crate::exit::{Abort, Failure};
use crate::lock_state::{self, Holding, State, display_name};
use crate::output::{cell, escape_json, name_text, print, set_name, table, time, warn};

/// The number of inspections that are under way at the same time.
const MAX_INSPECTIONS: usize = 32;

pub async fn list(args: List) -> Result<u8, Abort> {
    let client = args.servers.observer().await?;
    let pattern = args.pattern.as_ref().map(|pattern| pattern.as_bytes());
    let (mut locks, silent) = find(&client, pattern).await;
    locks = with_holders(&client, locks).await;
    let answered = client.members() - silent.len();
    if args.json {
        let locks: Vec<Value> = locks.iter().map(Lock::json).collect();
        print(&escape_json(&json!({ "locks": locks, "unanswered": silent })))?;
    } else {
        silent.iter().for_each(|silent| warn(format_args!("{}: {}", silent.server, silent.why)));
        // "no locks" would be wrong if no server answered.
        if answered > 0 {
            print(&text(&locks))?;
        }
    }
    Ok(if answered >= majority(client.members()) { 0 } else { Failure::NoQuorum.code() })
}

/// The table of `dlock list`, which `dlock top` shows too.
pub fn text(locks: &[Lock]) -> String {
    let mut rows = table(&["RESOURCE", "MODE", "HOLDER", "FROM", "HELD", "LEASE LEFT", "WAITING"]);
    rows.add_rows(locks.iter().map(Lock::row));
    if locks.is_empty() { "no locks".into() } else { rows.trim_fmt() }
}

/// Asks all servers for the holder of each lock.
pub async fn with_holders(client: &Client, locks: Vec<Lock>) -> Vec<Lock> {
    stream::iter(locks).map(|lock| lock.with_holder(client)).buffered(MAX_INSPECTIONS).collect().await
}

/// A lock, merged from the answers of all servers that list it. An entry of `locks` in the JSON.
#[derive(Debug, Default, Serialize)]
pub struct Lock {
    #[serde(skip)]
    pub name: Vec<u8>,
    /// `None` until [`with_holders`] has inspected the lock.
    state: Option<State>,
    mode: String,
    holders: u64,
    pub waiters: u64,
    pub held_ms: u64,
    pub left_ms: Option<u64>,
    /// The number of servers that list the lock.
    servers: usize,
    holder: Option<Holding>,
}

/// A server that did not answer.
#[derive(Debug, Serialize)]
pub struct Silent {
    pub server: String,
    pub why: String,
}

/// Returns the locks with a matching name, sorted by name, and the servers that did not answer.
pub async fn find(client: &Client, pattern: Option<&[u8]>) -> (Vec<Lock>, Vec<Silent>) {
    merged(client.list(pattern).await)
}

/// Returns the locks that have waiters, sorted by name.
pub async fn find_contended(client: &Client) -> Vec<Lock> {
    merged(client.list_waited().await).0
}

fn merged(answers: Vec<Inspected<Vec<Listed>>>) -> (Vec<Lock>, Vec<Silent>) {
    let (mut locks, mut silent) = (BTreeMap::<Vec<u8>, Lock>::new(), Vec::new());
    for Inspected { server, answer } in answers {
        let listed = match answer {
            Answer::Found(listed) => listed,
            Answer::Unanswered(why) => {
                silent.push(Silent { server: server.to_string(), why: why.to_string() });
                continue;
            }
        };
        for seen in listed {
            let lock = locks.entry(seen.resource).or_default();
            // A server where the lock has no holder lists it as `free`.
            if lock.mode.is_empty() || seen.holders > 0 {
                lock.mode = seen.mode;
            }
            lock.servers += 1;
            lock.holders = lock.holders.max(seen.holders);
            // A waiter is in the queue of one server only, so the sum counts none twice.
            lock.waiters += seen.waiters;
            lock.held_ms = lock.held_ms.max(seen.held_ms);
            lock.left_ms = lock.left_ms.max(seen.left_ms);
        }
    }
    (locks.into_iter().map(|(name, lock)| Lock { name, ..lock }).collect(), silent)
}

impl Lock {
    async fn with_holder(mut self, client: &Client) -> Lock {
        let answers = client.inspect(&self.name).await;
        self.state = Some(State::of(&answers));
        self.holder = lock_state::holder(&answers);
        self
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
            Some(state) => state.word().to_owned(),
        };
        let holder = self.holder.as_ref().map(|holding| &holding.holder);
        let from = holder.map_or("", |holder| &holder.address);
        [
            cell(name_text(&self.name)),
            cell(mode),
            holder.map(display_name).unwrap_or_default(),
            cell(from.rsplit_once(':').map_or(from, |(host, _)| host)),
            time(self.held_ms),
            self.left_ms.map(time).unwrap_or_default(),
            self.waiters.to_string(),
        ]
    }
}
