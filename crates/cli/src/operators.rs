//! The subcommands that read the servers, and `break` (in `inspect`). None of them acquires a lock. This file
//! has `dlock status`, which shows the state of each server, and reads INFO for the other subcommands.

pub mod doctor;
pub mod exporter;
pub mod inspect;
pub mod list;
pub mod log;
pub mod longest_wait;
pub mod metrics;
pub mod top;

use std::collections::HashMap;

use dlock_client::{Answer, Client, Inspected, majority};
use serde::Serialize;
use serde_json::{Value, json};

use crate::args::Status;
use crate::exit::{Abort, Failure};
use crate::output::{cell, escape_control, escape_json, print, table, time};

pub async fn status(args: Status) -> Result<u8, Abort> {
    let client = args.servers.observer().await?;
    let servers = ask_info(&client).await;
    let health = Health::of(&servers);
    if args.json {
        print(&escape_json(
            &json!({ "status": health, "servers": servers.iter().map(server_json).collect::<Vec<_>>() }),
        ))?;
    } else {
        print(&servers_table(&servers))?;
    }
    Ok(health.code())
}

/// The health of all servers together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    Ok,
    Attention,
    NoQuorum,
}

impl Health {
    pub fn of(servers: &[Inspected<Info>]) -> Health {
        let count = |is_good: fn(&Info) -> bool| {
            servers.iter().filter(|seen| seen.answer.found().is_some_and(is_good)).count()
        };
        if count(Info::is_well) == servers.len() {
            Health::Ok
        } else if count(Info::can_grant) >= majority(servers.len()) {
            Health::Attention
        } else {
            Health::NoQuorum
        }
    }

    fn code(self) -> u8 {
        match self {
            Health::Ok => 0,
            Health::Attention => Failure::Attention.code(),
            Health::NoQuorum => Failure::NoQuorum.code(),
        }
    }
}

/// The fields of INFO.
#[derive(Debug, Default)]
pub struct Info(HashMap<String, String>);

/// The command for the sections of INFO that the subcommands need.
const INFO: [&str; 5] = ["INFO", "server", "replication", "persistence", "dlock"];

/// Asks all servers for their INFO.
pub async fn ask_info(client: &Client) -> Vec<Inspected<Info>> {
    let read = |seen: Inspected<Vec<String>>| {
        let answer = match seen.answer {
            Answer::Found(texts) => Answer::Found(Info::of(&texts.concat())),
            Answer::Unanswered(why) => Answer::Unanswered(why),
        };
        Inspected { server: seen.server, answer }
    };
    client.ask(&INFO).await.into_iter().map(read).collect()
}

impl Info {
    fn of(text: &str) -> Info {
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        Info(fields.map(|(name, value)| (name.to_owned(), value.trim_end().to_owned())).collect())
    }

    /// The value of a field. Empty if the server does not send it.
    pub fn text(&self, field: &str) -> &str {
        self.0.get(field).map_or("", String::as_str)
    }

    /// The value of a field. 0 if the server does not send it.
    pub fn number(&self, field: &str) -> u64 {
        self.text(field).parse().unwrap_or(0)
    }

    /// Such as `redis 7.0.15`.
    pub fn version(&self) -> String {
        match self.text("valkey_version") {
            "" => format!("redis {}", self.text("redis_version")),
            version => format!("valkey {version}"),
        }
    }

    pub fn is_master(&self) -> bool {
        self.text("role") == "master"
    }

    /// The names of the options that the server warns of.
    pub fn warnings(&self) -> impl Iterator<Item = &str> {
        self.text("dlock_warning_words").split(',').filter(|word| !word.is_empty())
    }

    fn can_grant(&self) -> bool {
        self.is_master() && self.number("dlock_grace_ms_left") == 0
    }

    /// Ignores warnings, because they are about the configuration and not about an outage. `doctor` checks
    /// the configuration. The fence mark is a file by which fences rise even after a loss of all data.
    fn is_well(&self) -> bool {
        self.can_grant() && self.text("dlock_fence_mark_status") != "failing"
    }

    fn waiters(&self) -> u64 {
        self.number("dlock_waiting") + self.number("dlock_queued")
    }
}

fn server_json(seen: &Inspected<Info>) -> Value {
    let info = match &seen.answer {
        Answer::Found(info) => info,
        Answer::Unanswered(why) => return json!({ "server": seen.server, "unanswered": why }),
    };
    json!({
        "server": seen.server,
        "version": info.version(),
        "role": info.text("role"),
        "uptime_s": info.number("uptime_in_seconds"),
        "grace_ms_left": info.number("dlock_grace_ms_left"),
        "fence_mark": info.text("dlock_fence_mark_status"),
        "warnings": info.warnings().collect::<Vec<_>>(),
        "held": info.number("dlock_held"),
        "holders": info.number("dlock_holders"),
        "waiters": info.waiters(),
    })
}

pub fn servers_table(servers: &[Inspected<Info>]) -> String {
    let mut rows = table(&["SERVER", "VERSION", "ROLE", "GRACE", "MARK", "HELD", "WAITING", "WARNINGS"]);
    for Inspected { server, answer } in servers {
        let info = match answer {
            Answer::Found(info) => info,
            Answer::Unanswered(why) => {
                rows.add_row([cell(server), escape_control(why)]);
                continue;
            }
        };
        let grace = info.number("dlock_grace_ms_left");
        rows.add_row([
            cell(server),
            cell(info.version()),
            cell(info.text("role")),
            if grace == 0 { "none".into() } else { time(grace) },
            cell(info.text("dlock_fence_mark_status")),
            info.number("dlock_held").to_string(),
            info.waiters().to_string(),
            cell(info.text("dlock_warning_words")),
        ]);
    }
    rows.trim_fmt()
}
