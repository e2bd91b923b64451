//! `dlock list`: the locks of all servers, a row for each resource.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;

use dlock_client::{Answer, Client, Holder, Inspected, Inspection, Listed};
use futures_util::{StreamExt, stream};
use serde::{Serialize, Serializer};
use serde_json::json;

use crate::args::List;
use crate::exit::{Failure, complain};
use crate::hold::print;
use crate::inspect::State;
use crate::lock::Abort;
use crate::shown;
use crate::table::{cell, short, table, time};

/// How many inspections are under way at a time.
const AT_A_TIME: usize = 32;

pub async fn list(args: List) -> Result<u8, Abort> {
    let client = args.servers.observer().await?;
    let pattern = args.pattern.as_ref().map(|pattern| pattern.as_bytes());
    let (mut locks, silent) = find(&client, pattern).await;
    locks = with_holders(&client, locks).await;
    let answered = client.members() - silent.len();
    if args.json {
        print(&shown::json(&json!({ "locks": locks, "unanswered": silent })))?;
    } else {
        silent.iter().for_each(|silent| complain(format_args!("{}: {}", silent.server, silent.why)));
        // Of those who do not answer nothing is known, not even that.
        if answered > 0 {
            print(&text(&locks))?;
        }
    }
    Ok(if answered > client.members() / 2 { 0 } else { Failure::NoQuorum.code() })
}

pub fn text(locks: &[Lock]) -> String {
    let mut rows = table(&["RESOURCE", "MODE", "HOLDER", "FROM", "HELD", "LEASE LEFT", "WAITING"]);
    rows.add_rows(locks.iter().map(Lock::row));
    if locks.is_empty() { "no locks".into() } else { rows.trim_fmt() }
}

/// Asks who holds them.
pub async fn with_holders(client: &Client, locks: Vec<Lock>) -> Vec<Lock> {
    stream::iter(locks).map(|lock| lock.with_holder(client)).buffered(AT_A_TIME).collect().await
}

/// A lock, over all servers that know it.
#[derive(Debug, Default, Serialize)]
pub struct Lock {
    #[serde(skip)]
    pub name: Vec<u8>,
    pub resource: String,
    /// Unknown before its holder was asked for.
    state: Option<State>,
    mode: String,
    holders: u64,
    pub waiters: u64,
    pub held_ms: u64,
    pub left_ms: Option<u64>,
    servers: usize,
    holder: Option<Holding>,
}

/// A server without an answer.
#[derive(Debug, Serialize)]
pub struct Silent {
    pub server: String,
    pub why: String,
}

/// The locks that match, by name, and the servers that did not answer.
pub async fn find(client: &Client, pattern: Option<&[u8]>) -> (Vec<Lock>, Vec<Silent>) {
    merged(client.list(pattern).await)
}

/// Those that somebody waits for.
pub async fn find_waited(client: &Client) -> Vec<Lock> {
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
            if lock.mode.is_empty() || seen.holders > 0 {
                lock.mode = seen.mode;
            }
            lock.servers += 1;
            lock.holders = lock.holders.max(seen.holders);
            // Everybody waits in the queue of one server.
            lock.waiters += seen.waiters;
            lock.held_ms = lock.held_ms.max(seen.held_ms);
            lock.left_ms = lock.left_ms.max(seen.left_ms);
        }
    }
    let named = |(name, lock): (Vec<u8>, Lock)| {
        let resource = String::from_utf8_lossy(&name).into_owned();
        Lock { name, resource, ..lock }
    };
    (locks.into_iter().map(named).collect(), silent)
}

impl Lock {
    async fn with_holder(mut self, client: &Client) -> Lock {
        let masters = client.inspect(&self.name).await;
        self.state = Some(State::of(&masters));
        self.holder = holder(&masters);
        self
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
            cell(&self.resource),
            cell(mode),
            holder.map(who).unwrap_or_default(),
            cell(from.rsplit_once(':').map_or(from, |(host, _)| host)),
            time(self.held_ms),
            self.left_ms.map(time).unwrap_or_default(),
            self.waiters.to_string(),
        ]
    }
}

/// A holder, over all servers.
#[derive(Debug, Clone)]
pub struct Holding {
    /// As one of them knows it. Its token is shortened, as it is for all eyes here.
    pub holder: Holder,
    /// The fence that a majority has. Without one each server has its own, and none of them means anything.
    pub fence: Option<u64>,
}

impl Serialize for Holding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut holding = json!(self.holder);
        holding["fence"] = json!(self.fence);
        holding.serialize(serializer)
    }
}

/// The holder that most servers have.
pub fn holder(masters: &[Inspected<Option<Inspection>>]) -> Option<Holding> {
    let locks = masters.iter().filter_map(|seen| seen.answer.found()?.as_ref());
    let all: Vec<&Holder> = locks.flat_map(|lock| &lock.holders).collect();
    let having = |fence: Option<u64>, holder: &Holder| {
        let is_same =
            |other: &&&Holder| other.token == holder.token && fence.is_none_or(|it| it == other.fence);
        all.iter().filter(is_same).count()
    };
    let first = *all.iter().rev().max_by_key(|holder| having(None, holder))?;
    let fences = all.iter().filter(|other| other.token == first.token).map(|other| other.fence);
    let fence = fences.max_by_key(|fence| having(Some(*fence), first));
    let fence = fence.filter(|fence| having(Some(*fence), first) > masters.len() / 2);
    let mut holder = first.clone();
    holder.token = short(&first.token);
    Some(Holding { holder, fence })
}

/// How people call a holder.
pub fn who(holder: &Holder) -> String {
    if holder.label.is_empty() { short(&holder.token) } else { cell(&holder.label) }
}
