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

use dlock_client::{Answer, Client, ClusterState, Inspected, Needed, NodeState};
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
    pub fn of(servers: &[Inspected<Info>], needed: Needed, map: &ClusterMap) -> Health {
        let count = |is_good: fn(&Info) -> bool| {
            servers.iter().filter(|seen| seen.answer.found().is_some_and(is_good)).count()
        };
        if !map.is_whole() {
            Health::NoQuorum
        } else if count(Info::is_well) == servers.len() && map.state.strangers.is_empty() {
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

/// The state of a cluster by its nodes' answers. Outside a cluster it is whole, and has no slots.
pub struct ClusterMap {
    state: ClusterState,
    /// Why no node has shown a map.
    error: Option<NodeState>,
}

/// The number of characters of a list of slots that are shown to people.
const MAX_SLOTS_TEXT: usize = 256;

impl ClusterMap {
    /// Asks the nodes. Call this first: it finds the masters that the other questions ask.
    pub async fn ask(client: &Client) -> ClusterMap {
        match client.cluster().await {
            Ok(state) => ClusterMap { state, error: None },
            Err(why) => ClusterMap { state: ClusterState::default(), error: Some(why) },
        }
    }

    /// Returns the slots of the master at this address, such as `5461-10922`.
    fn slots(&self, server: &str) -> Vec<String> {
        self.state.slots.get(server).map_or_else(Vec::new, |slots| range_texts(slots))
    }

    /// Returns true if masters for all slots are known.
    pub fn is_whole(&self) -> bool {
        self.error.is_none() && self.state.missing_slots.is_empty()
    }

    /// Returns the number of slots that no known master has.
    pub fn missing_count(&self) -> usize {
        self.state.missing_slots.iter().map(ExactSizeIterator::len).sum()
    }

    /// Returns the slots that no known master has, such as `5461-10922`.
    pub fn missing(&self) -> Vec<String> {
        range_texts(&self.state.missing_slots)
    }

    /// Returns the missing slots for people, such as `0-5460,7000`.
    pub fn missing_text(&self) -> String {
        cut(&self.missing().join(","), MAX_SLOTS_TEXT)
    }

    /// Returns the fault of the cluster. `None` if there is none.
    pub fn message(&self) -> Option<String> {
        if let Some(why) = &self.error {
            return Some(format!("the map of the cluster is unknown: {why}"));
        }
        if self.missing_count() > 0 {
            let slots = self.missing_text();
            return Some(format!(
                "no known master has the slots {slots}: the cluster grants nothing in them"
            ));
        }
        self.strangers_message()
    }

    /// Names the nodes of the address that are in another cluster.
    fn strangers_message(&self) -> Option<String> {
        let strangers = &self.state.strangers;
        (!strangers.is_empty()).then(|| {
            format!(
                "the address names nodes of several clusters, and each of them could grant the same lock: {} is not in \
                 the cluster of the others",
                strangers.join(", ")
            )
        })
    }
}

/// Formats ranges of slots, such as `5461-10922`.
fn range_texts(slots: &[RangeInclusive<u16>]) -> Vec<String> {
    let text = |range: &RangeInclusive<u16>| match (range.start(), range.end()) {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    };
    slots.iter().map(text).collect()
}

/// Returns why servers cannot be used, for people: the servers that do not answer, the replicas that were
/// named as masters, and the fault of a cluster.
pub fn faults(servers: &[Inspected<Info>], map: &ClusterMap) -> Vec<String> {
    let fault = |seen: &Inspected<Info>| match &seen.answer {
        Answer::Unanswered(why) => Some(format!("{}: {why}", seen.server)),
        Answer::Found(info) if !info.is_master() => {
            Some(format!("{}: is a replica: write the address of its master, {}", seen.server, info.master()))
        }
        Answer::Found(info) => info.refusal().map(|word| format!("{}: grants no locks: {word}", seen.server)),
    };
    servers.iter().filter_map(fault).chain(map.message()).collect()
}

/// The fields of INFO.
#[derive(Debug, Default)]
pub struct Info(HashMap<String, String>);

/// The command for the sections of INFO that the subcommands need.
const INFO: [&str; 7] = ["INFO", "server", "replication", "persistence", "memory", "modules", "dlock"];

/// The command for the options that decide whether a server refuses writes, if INFO leaves it open.
const WRITE_OPTIONS: [&str; 5] =
    ["CONFIG", "GET", "min-replicas-to-write", "stop-writes-on-bgsave-error", "save"];

/// Asks all servers for their INFO, and for further options if INFO does not show whether a server refuses.
pub async fn ask_info(client: &Client) -> Vec<Inspected<Info>> {
    let mut servers: Vec<Inspected<Info>> = client.ask(&INFO).await.into_iter().map(read_info).collect();
    if servers.iter().filter_map(|seen| seen.answer.found()).any(Info::may_refuse) {
        let options = client.ask(&WRITE_OPTIONS).await;
        for Inspected { server, answer } in &mut servers {
            let of_server = options.iter().find(|seen| seen.server == *server);
            if let (Answer::Found(info), Some(Answer::Found(texts))) =
                (answer, of_server.map(|seen| &seen.answer))
            {
                info.0.extend(texts.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())));
            }
        }
    }
    servers
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

    /// The master of this replica, as `host:port`. Empty for a master.
    pub fn master(&self) -> String {
        if self.is_master() {
            return String::new();
        }
        let host = self.text("master_host");
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        format!("{host}:{}", self.text("master_port"))
    }

    pub fn is_master(&self) -> bool {
        self.text("role") == "master"
    }

    pub fn has_replicas(&self) -> bool {
        self.number("connected_slaves") > 0
    }

    /// The names of the options that the server warns of.
    pub fn warnings(&self) -> impl Iterator<Item = &str> {
        self.text("dlock_warning_words").split(',').filter(|word| !word.is_empty())
    }

    fn can_grant(&self) -> bool {
        self.is_master() && self.number("dlock_grace_ms_left") == 0 && self.refusal().is_none()
    }

    /// The first word of the error with which this master refuses to grant locks now.
    pub fn refusal(&self) -> Option<&'static str> {
        let memory = self.number("used_memory").saturating_sub(self.number("mem_not_counted_for_evict"));
        let limit = self.number("maxmemory");
        if !self.is_master() {
            return None;
        }
        if limit > 0 && memory > limit && self.text("maxmemory_policy") == "noeviction" {
            return Some("OOM");
        }
        let stops = self.text("stop-writes-on-bgsave-error") == "yes" && !self.text("save").is_empty();
        if self.text("aof_last_write_status") == "err" || (self.failed_to_save() && stops) {
            return Some("MISCONF");
        }
        // At least one replica is required if INFO has this field at all.
        let good = self.text("min_slaves_good_slaves").parse::<u64>().ok()?;
        (good < self.number("min-replicas-to-write").max(1)).then_some("NOREPLICAS")
    }

    /// True if the options decide whether the server refuses writes.
    fn may_refuse(&self) -> bool {
        self.failed_to_save() || !self.text("min_slaves_good_slaves").is_empty()
    }

    fn failed_to_save(&self) -> bool {
        self.text("rdb_last_bgsave_status") == "err"
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

/// The table of the masters. `map`: shows their slots.
pub fn servers_table(servers: &[Inspected<Info>], map: Option<&ClusterMap>) -> String {
    let up = || servers.iter().filter_map(|seen| seen.answer.found());
    let have_replicas = up().any(|info| !info.replicas().is_empty());
    let have_slots = map.is_some_and(|map| servers.iter().any(|seen| !map.slots(&seen.server).is_empty()));
    let mut head = vec!["SERVER", "VERSION", "ROLE", "GRACE", "MARK", "HELD", "WAITING", "WARNINGS"];
    head.extend(have_slots.then_some("SLOTS"));
    head.extend(have_replicas.then_some("REPLICAS"));
    let mut rows = table(&head);
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
        let role = info.refusal().map(|word| format!("{} ({word})", info.role()));
        let mut row = vec![
            cell(server),
            cell(info.version()),
            cell(role.as_deref().unwrap_or(info.role())),
            if grace == 0 { "none".into() } else { time(grace) },
            cell(info.text("dlock_fence_mark_status")),
            info.number("dlock_held").to_string(),
            info.waiters().to_string(),
            cell(info.text("dlock_warning_words")),
        ];
        row.extend(map.filter(|_| have_slots).map(|map| cell(map.slots(server).join(","))));
        row.extend(have_replicas.then(|| cell(replicas.join(", "))));
        rows.add_row(row);
    }
    rows.trim_fmt()
}
