//! `dlock inspect`: the answers of all servers about a lock, and its state over all of them. `dlock break`:
//! shows the same, asks for confirmation, and ends every hold of the lock.

use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Write, stderr, stdin};
use std::os::unix::ffi::OsStrExt;

use comfy_table::Table;
use dlock_client::{Answer, Client, Inspected, Inspection, Waiting};
use serde_json::{Value, json};

use crate::args::{Break, Inspect};
use crate::exit::{Abort, Error, Failure};
use crate::lock_state::{State, closed_ms};
use crate::output::{
    cell, escape_control, escape_json, name_text, print, set_name, short, table, time, warn,
};

/// The number of waiters that are shown per server.
const MAX_WAITERS: u32 = 1000;

pub async fn inspect(args: Inspect) -> Result<u8, Abort> {
    let client = args.servers.client().await?;
    let seen = View::of(&client, &args.resource).await;
    print(&if args.json { escape_json(&seen.json()) } else { seen.text() })?;
    Ok(if seen.state() == State::NoQuorum { Failure::NoQuorum.code() } else { 0 })
}

/// The answers of all servers about a lock: its holders, and its wait queue.
pub struct View {
    resource: OsString,
    masters: Vec<Inspected<Option<Inspection>>>,
    queues: Vec<Inspected<Vec<Waiting>>>,
}

impl View {
    pub async fn of(client: &Client, resource: &OsStr) -> View {
        let queues = client.waiters(resource.as_bytes(), MAX_WAITERS);
        let (masters, queues) = tokio::join!(client.inspect(resource.as_bytes()), queues);
        View { resource: resource.to_owned(), masters, queues }
    }

    pub fn state(&self) -> State {
        State::of(&self.masters)
    }

    fn json(&self) -> Value {
        let masters = self.masters.iter().zip(&self.queues).map(|(seen, queue)| {
            let mut master = json!(seen);
            if let Some(queue) = queue.answer.found() {
                master["queue"] = json!(queue);
            }
            master
        });
        let mut view = json!({ "state": self.state(), "masters": masters.collect::<Vec<_>>() });
        set_name(&mut view, self.resource.as_bytes());
        view
    }

    pub fn text(&self) -> String {
        let name = cell(name_text(self.resource.as_bytes()));
        let mut text = format!("{name} {}\n\n{}", sentence(self.state()), self.holders().trim_fmt());
        if let Some(waiters) = self.waiters() {
            text += &format!("\n\nWaiting:\n\n{}", waiters.trim_fmt());
        }
        text
    }

    fn holders(&self) -> Table {
        let mut table = table(&["SERVER", "MODE", "HOLDER", "FENCE", "LEASE LEFT", "LABEL"]);
        for Inspected { server, answer, .. } in &self.masters {
            let server = cell(server);
            let free = free();
            let lock = match answer {
                Answer::Found(lock) => lock.as_ref().unwrap_or(&free),
                Answer::Unanswered(why) => {
                    table.add_row([server, escape_control(why)]);
                    continue;
                }
            };
            let mode = match (lock.permits, lock.delay_ms) {
                (0, 0) => cell(&lock.mode),
                (0, delay) => format!("delayed {}", time(delay)),
                (permits, _) => format!("{} {permits}", cell(&lock.mode)),
            };
            if lock.holders.is_empty() {
                table.add_row([&server, &mode]);
            }
            for holder in &lock.holders {
                table.add_row([
                    server.clone(),
                    mode.clone(),
                    short(&holder.token),
                    holder.fence.to_string(),
                    time(holder.left_ms),
                    cell(&holder.label),
                ]);
            }
        }
        table
    }

    /// `None` if no client waits.
    fn waiters(&self) -> Option<Table> {
        let mut table = table(&["SERVER", "POSITION", "TOKEN", "MODE", "WAITED", "LABEL"]);
        for Inspected { server, answer, .. } in &self.queues {
            for (index, waiting) in answer.found().into_iter().flatten().enumerate() {
                table.add_row([
                    cell(server),
                    (index + 1).to_string(),
                    short(&waiting.token),
                    cell(&waiting.mode),
                    time(waiting.waited_ms),
                    cell(&waiting.label),
                ]);
            }
        }
        (!table.is_empty()).then_some(table)
    }
}

/// Completes the sentence that begins with the name of the resource.
fn sentence(state: State) -> &'static str {
    match state {
        State::Free => "is free",
        State::Delayed => {
            "is not held, but not granted yet: its last holder vanished (--delay), or closed it (--at-least, --done-for)"
        }
        State::Held => "is held",
        State::Undecided => "is neither held nor free on a majority of the servers",
        State::NoQuorum => "is in an unknown state: too few servers answered",
    }
}

/// The inspection of a lock that no client holds.
fn free() -> Inspection {
    let mut inspection = Inspection::default();
    inspection.mode = "free".into();
    inspection
}

// Break.

pub async fn break_holds(args: Break) -> Result<u8, Abort> {
    let client = args.servers.client().await?;
    let resource = &args.resource;
    if !args.yes && !confirmed(&client, resource).await? {
        return Err(Error::new(Failure::NotAcquired, "no hold was ended").into());
    }
    // The answer to BREAK has the number of holds only.
    let before = client.inspect(resource.as_bytes()).await;
    let broken = client.break_holds(resource.as_bytes()).await;
    for (Inspected { server, answer, .. }, before) in broken.iter().zip(before) {
        let delay = match before.answer {
            Answer::Found(Some(lock)) if lock.delay_ms > 0 => ended_delay(lock.delay_ms),
            _ => String::new(),
        };
        match answer {
            Answer::Found(1) => print(&escape_control(format_args!("{server}: ended 1 hold{delay}")))?,
            Answer::Found(holds) => {
                print(&escape_control(format_args!("{server}: ended {holds} holds{delay}")))?;
            }
            Answer::Unanswered(why) => warn(format_args!("{server}: {why}")),
        }
    }
    let silent = broken.iter().filter(|seen| seen.answer.found().is_none()).count();
    if silent > 0 {
        let message = "the lock was not broken on every server; try again when the others can be reached";
        return Err(Error::new(Failure::NoQuorum, message).into());
    }
    Ok(0)
}

/// Completes the sentence about the holds that were ended.
pub fn ended_delay(ms: u64) -> String {
    format!(", and a delay that had {} left", time(ms))
}

/// Shows the lock and asks for confirmation.
async fn confirmed(client: &Client, resource: &OsStr) -> Result<bool, Error> {
    if !stdin().is_terminal() {
        return Err(Error::usage(
            "cannot ask for confirmation without a terminal; use --yes to break the lock",
        ));
    }
    let view = View::of(client, resource).await;
    let delay = if closed_ms(&view.masters) > 0 { ", and its delay" } else { "" };
    let question =
        format!("{}\n\nEnd every hold of {}{delay}? [y/N] ", view.text(), escape_control(resource.display()));
    let _ = write!(stderr(), "{question}");
    let mut answer = String::new();
    stdin().read_line(&mut answer).map_err(|why| Error::system("standard input", why))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
