//! The subcommands that read the servers, and `break` (in `inspect`). None of them acquires a lock. This file
//! reads INFO for them, and shows the state of each server.

pub mod beside;
pub mod doctor;
pub mod exporter;
pub mod inspect;
pub mod list;
pub mod log;
pub mod longest_wait;
pub mod metrics;
pub mod status;
pub mod top;

use std::collections::HashMap;
use std::ops::RangeInclusive;

use dlock_client::{Answer, Client, Inspected, Needed};
use serde::Serialize;

use crate::exit::Failure;
use crate::output::{cell, cut, escape_control, table, time};

/// The health of all servers together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    Ok,
    Attention,
    NoQuorum,
}

impl Health {
    pub fn of(servers: &[Inspected<Info>], needed: Needed, missing: &MissingSlots) -> Health {
        let count = |is_good: fn(&Info) -> bool| {
            servers.iter().filter(|seen| seen.answer.found().is_some_and(is_good)).count()
        };
        if missing.number() > 0 {
            Health::NoQuorum
        } else if count(Info::is_well) == servers.len() {
            Health::Ok
        } else if count(Info::can_grant) >= needed.of(servers.len()) {
            Health::Attention
        } else {
            Health::NoQuorum
        }
    }

    pub fn code(self) -> u8 {
        match self {
            Health::Ok => 0,
            Health::Attention => Failure::Attention.code(),
            Health::NoQuorum => Failure::NoQuorum.code(),
        }
    }
}

/// The slots of a cluster that no known master has.
pub struct MissingSlots(Vec<RangeInclusive<u16>>);

/// The number of characters of a list of slots that are shown to people.
const MAX_SLOTS_TEXT: usize = 256;

impl MissingSlots {
    /// Asks the nodes for them. Call this first: it finds the masters that the other questions ask.
    pub async fn ask(client: &Client) -> MissingSlots {
        MissingSlots(client.missing_slots().await)
    }

    pub fn number(&self) -> usize {
        self.0.iter().map(ExactSizeIterator::len).sum()
    }

    /// Such as `5461-10922`.
    pub fn ranges(&self) -> Vec<String> {
        let text = |range: &RangeInclusive<u16>| match (range.start(), range.end()) {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first}-{last}"),
        };
        self.0.iter().map(text).collect()
    }

    /// The ranges for people, such as `0-5460,7000`.
    pub fn text(&self) -> String {
        cut(&self.ranges().join(","), MAX_SLOTS_TEXT)
    }

    /// `None` if no slot is missing.
    pub fn message(&self) -> Option<String> {
        let slots = self.text();
        (self.number() > 0)
            .then(|| format!("no known master has the slots {slots}: the cluster grants nothing in them"))
    }
}

/// The fields of INFO.
#[derive(Debug, Default)]
pub struct Info(HashMap<String, String>);

/// The command for the sections of INFO that the subcommands need.
const INFO: [&str; 6] = ["INFO", "server", "replication", "persistence", "modules", "dlock"];

/// Asks all servers for their INFO.
pub async fn ask_info(client: &Client) -> Vec<Inspected<Info>> {
    client.ask(&INFO).await.into_iter().map(read_info).collect()
}

fn read_info(seen: Inspected<Vec<String>>) -> Inspected<Info> {
    let answer = match seen.answer {
        Answer::Found(texts) => Answer::Found(Info::of(&texts.concat())),
        Answer::Unanswered(why) => Answer::Unanswered(why),
    };
    Inspected { server: seen.server, answer }
}

impl Info {
    fn of(text: &str) -> Info {
        // The line of another module has the same name.
        let lines = text.lines().filter(|line| !line.starts_with("module:") || line.contains("name=dlock,"));
        let fields = lines.filter_map(|line| line.split_once(':'));
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

    /// The version of the module, such as `0.1.0`: the server stores 10000 * major + 100 * minor + patch.
    /// Empty if it does not say.
    pub fn module(&self) -> String {
        let version = self.text("module").split(',').find_map(|part| part.strip_prefix("ver=")?.parse().ok());
        version.map_or_else(String::new, |version: u32| {
            format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
        })
    }

    /// `master` or `replica`.
    pub fn role(&self) -> &str {
        match self.text("role") {
            "slave" => "replica",
            role => role,
        }
    }

    /// The master of this replica, as `host:port`.
    pub fn master(&self) -> String {
        let host = self.text("master_host");
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        format!("{host}:{}", self.text("master_port"))
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

    /// The replicas that are connected to this master.
    fn replicas(&self) -> Vec<Replica> {
        let lines = (0..self.number("connected_slaves")).map(|at| self.text(&format!("slave{at}")));
        lines.filter_map(Replica::of).collect()
    }

    fn waiters(&self) -> u64 {
        self.number("dlock_waiting") + self.number("dlock_queued")
    }
}

/// A replica, as its master reports it.
#[derive(Debug, Serialize)]
struct Replica {
    address: String,
    /// `online`, or a step of its synchronisation.
    state: String,
    /// Seconds since its last message.
    lag_s: u64,
}

impl Replica {
    /// Reads `ip=127.0.0.1,port=6380,state=online,offset=1,lag=0`.
    fn of(line: &str) -> Option<Replica> {
        let field = |name| line.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        let (ip, port) = (field("ip")?, field("port")?);
        let address = if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") };
        Some(Replica {
            address,
            state: field("state")?.to_owned(),
            lag_s: field("lag").and_then(|lag| lag.parse().ok()).unwrap_or(0),
        })
    }

    /// Such as `127.0.0.1:6380`, with the state or the lag if it is not up to date.
    fn text(&self) -> String {
        match (self.state.as_str(), self.lag_s) {
            ("online", 0 | 1) => self.address.clone(),
            ("online", lag) => format!("{} (lag {lag}s)", self.address),
            (state, _) => format!("{} ({state})", self.address),
        }
    }
}

pub fn servers_table(servers: &[Inspected<Info>]) -> String {
    let up = || servers.iter().filter_map(|seen| seen.answer.found());
    let have_replicas = up().any(|info| !info.replicas().is_empty());
    let head = ["SERVER", "VERSION", "ROLE", "GRACE", "MARK", "HELD", "WAITING", "WARNINGS", "REPLICAS"];
    let mut rows = table(&head[..head.len() - usize::from(!have_replicas)]);
    for Inspected { server, answer } in servers {
        let info = match answer {
            Answer::Found(info) => info,
            Answer::Unanswered(why) => {
                rows.add_row([cell(server), escape_control(why)]);
                continue;
            }
        };
        let grace = info.number("dlock_grace_ms_left");
        let replicas: Vec<String> = info.replicas().iter().map(Replica::text).collect();
        let row = [
            cell(server),
            cell(info.version()),
            cell(info.role()),
            if grace == 0 { "none".into() } else { time(grace) },
            cell(info.text("dlock_fence_mark_status")),
            info.number("dlock_held").to_string(),
            info.waiters().to_string(),
            cell(info.text("dlock_warning_words")),
            cell(replicas.join(", ")),
        ];
        rows.add_row(&row[..row.len() - usize::from(!have_replicas)]);
    }
    rows.trim_fmt()
}
