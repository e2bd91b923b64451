//! `dlock log`: recent incidents on all servers.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use dlock_client::{Answer, Inspected, Logged};
use serde_json::json;

use crate::args::Log;
use crate::exit::{Abort, Failure};
use crate::operators::ClusterMap;
use crate::output::{cell, escape_json, name_text, print, set_name, table, time, warn};

/// The interval at which --follow asks the servers.
const PAUSE: Duration = Duration::from_millis(500);

/// The number of entries that --follow asks for: the maximum of `dlock.log-max-len`, so that a server returns
/// all of its entries.
const FOLLOW_COUNT: u32 = 10_000;

pub type Entry = (Arc<str>, Logged);

pub async fn log(args: Log) -> Result<u8, Abort> {
    let client = args.servers.observer().await?;
    let resource = args.resource.as_ref().map(|resource| resource.as_bytes());
    let mut seen = Seen::default();
    let map = ClusterMap::ask(&client).await;
    let mut fault = map.message();
    fault.iter().for_each(warn);
    let answers = client.log(args.count, resource).await;
    let servers = answers.len();
    let mut entries = seen.take_new(answers);
    if !args.follow {
        entries.reverse();
        show(&entries, args.json)?;
        let answered = servers - seen.silent.len();
        let is_complete = answered >= client.needed().of(servers) && map.is_whole();
        return Ok(if is_complete { 0 } else { Failure::NoQuorum.code() });
    }
    loop {
        show(&entries, args.json)?;
        tokio::time::sleep(PAUSE).await;
        // The masters of a cluster change.
        let now = ClusterMap::ask(&client).await.message();
        if now != fault {
            now.iter().for_each(warn);
            fault = now;
        }
        entries = seen.take_new(client.log(FOLLOW_COUNT, resource).await);
    }
}

/// Returns the `count` newest entries of all servers that answered, newest first.
pub fn newest(answers: Vec<Inspected<Vec<Logged>>>, count: usize) -> Vec<Entry> {
    let entries_of = |inspected: Inspected<Vec<Logged>>| {
        let entries = inspected.answer.found().cloned().unwrap_or_default().into_iter();
        entries.map(move |entry| (inspected.server.clone(), entry))
    };
    let mut entries: Vec<Entry> = answers.into_iter().flat_map(entries_of).collect();
    entries.sort_by_key(|(_, entry)| std::cmp::Reverse(sort_key(entry)));
    entries.truncate(count);
    entries
}

/// What was shown before: entries of the log, and warnings.
#[derive(Default)]
struct Seen {
    /// The [`sort_key`] of the last entry of each server.
    last: HashMap<Arc<str>, (u64, u64)>,
    /// The servers that do not answer, each with the reason that was reported.
    silent: HashMap<Arc<str>, String>,
}

impl Seen {
    /// Returns the entries that were not shown before, oldest first. Warns when a server stops answering, and
    /// when the reason changes.
    fn take_new(&mut self, answers: Vec<Inspected<Vec<Logged>>>) -> Vec<Entry> {
        let mut new = Vec::new();
        for Inspected { server, answer } in answers {
            match answer {
                Answer::Found(entries) => {
                    self.silent.remove(&server);
                    let last = self.last.entry(server.clone()).or_default();
                    let before = *last;
                    for entry in entries.into_iter().rev().filter(|entry| sort_key(entry) > before) {
                        *last = sort_key(&entry).max(*last);
                        new.push((server.clone(), entry));
                    }
                }
                Answer::Unanswered(why) => {
                    let why = why.to_string();
                    if self.silent.get(&server) != Some(&why) {
                        warn(format_args!("{server}: {why}"));
                        self.silent.insert(server, why);
                    }
                }
            }
        }
        new.sort_by_key(|(_, entry)| sort_key(entry));
        new
    }
}

/// The key by which entries are sorted: a later entry of a server has a greater one. The time comes first,
/// because a restarted server numbers its entries from the beginning again.
fn sort_key(entry: &Logged) -> (u64, u64) {
    (entry.time_ms, entry.id)
}

fn show(entries: &[Entry], json: bool) -> Result<(), Abort> {
    if entries.is_empty() {
        return Ok(());
    }
    if json {
        for (server, entry) in entries {
            let mut object = json!(entry);
            set_name(&mut object, &entry.resource);
            object["server"] = json!(server);
            print(&escape_json(&object))?;
        }
        return Ok(());
    }
    Ok(print(&text(entries))?)
}

pub fn text(entries: &[Entry]) -> String {
    let mut rows = table(&["TIME", "SERVER", "WHAT", "RESOURCE", "LABEL", "FROM", "FENCE", "TOOK"]);
    for (server, entry) in entries {
        let took = entry.held_ms.or(entry.waited_ms).map(time).unwrap_or_default();
        let fence = if entry.fence == 0 { String::new() } else { entry.fence.to_string() };
        let [server, what] = [cell(server), cell(&entry.what)];
        let resource = cell(name_text(&entry.resource));
        let [label, from] = [&entry.label, &entry.address].map(cell);
        rows.add_row([date(entry.time_ms), server, what, resource, label, from, fence, took]);
    }
    rows.trim_fmt()
}

/// The time in UTC.
fn date(ms: u64) -> String {
    // Capped at the end of the year 9999, the last that the format can express.
    let time = UNIX_EPOCH + Duration::from_millis(ms.min(253_402_300_799_999));
    humantime::format_rfc3339_seconds(time).to_string()
}
