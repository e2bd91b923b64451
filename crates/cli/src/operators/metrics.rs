//! `dlock metrics`: the fields of the servers' INFO, in the text format of Prometheus.
//!
//! Names, kinds and help texts come from the table in docs/info.md, which tests compare with a running
//! server.

use std::collections::BTreeMap;
use std::fmt::Write;

use dlock_client::{Client, Inspected};

use crate::args::Metrics;
use crate::exit::{Abort, Failure};
use crate::operators::beside::{Beside, lag};
use crate::operators::{self, ClusterMap, Health, Info, list, longest_wait};
use crate::output::{cut, escape_control, name_text, print, warn};

/// The number of characters of a resource's name that are shown. A name may have megabytes.
const MAX_NAME: usize = 256;

const INFO: &str = include_str!("../../../../docs/info.md");

pub async fn metrics(args: Metrics) -> Result<u8, Abort> {
    let client = args.servers.observer().await?;
    let (text, faults) = collect(&client, args.resources.into()).await;
    print(text.trim_end())?;
    faults.iter().for_each(warn);
    Ok(if text.contains("\ndlock_quorum 1\n") { 0 } else { Failure::NoQuorum.code() })
}

/// Asks the servers and returns all metrics, and why servers cannot be used. At most `max_resources`
/// resources, those with the most waiters, have metrics of their own.
pub async fn collect(client: &Client, max_resources: usize) -> (String, Vec<String>) {
    let map = ClusterMap::ask(client).await;
    let servers = operators::ask_info(client).await;
    let mut text = Text(String::new());
    let bit = |yes: bool| f64::from(u8::from(yes));

    let what = "1 if a majority of the servers can grant locks, of a cluster all masters, with all slots";
    text.family("dlock_quorum", "gauge", what);
    text.sample("dlock_quorum", &[], bit(Health::of(&servers, client.needed(), &map) != Health::NoQuorum));
    text.family("dlock_missing_slots", "gauge", "Slots of a cluster that no known master has");
    if map.missing_count() > 0 {
        text.sample("dlock_missing_slots", &[("slots", &map.missing_text())], map.missing_count() as f64);
    }
    text.family("dlock_up", "gauge", "1 if the server answers");
    for seen in &servers {
        text.sample("dlock_up", &[("server", &seen.server)], bit(seen.answer.found().is_some()));
    }
    let up: Vec<(&str, &Info)> = servers.iter().filter_map(answered).collect();
    text.family("dlock_server_info", "gauge", "The version of the server and its role");
    for (server, info) in &up {
        let labels = [("server", *server), ("version", &info.version()), ("role", info.text("role"))];
        text.sample("dlock_server_info", &labels, 1.0);
    }
    text.family("dlock_refusal", "gauge", "The error with which the server refuses to grant locks");
    for (server, info) in &up {
        if let Some(word) = info.refusal() {
            text.sample("dlock_refusal", &[("server", server), ("error", word)], 1.0);
        }
    }
    text.beside(&Beside::ask(client).await, &servers);
    text.family("dlock_warning", "gauge", "Options that endanger locks");
    for (server, info) in &up {
        for option in info.warnings() {
            text.sample("dlock_warning", &[("server", server), ("option", option)], 1.0);
        }
    }
    for (field, kind, what) in documented() {
        text.field(&up, field, kind, what);
    }
    if max_resources > 0 {
        text.hottest(client, max_resources).await;
        text.family(
            "dlock_longest_wait_lock_seconds",
            "gauge",
            "The longest wait now, with its lock and holder",
        );
        if let Some(longest) = longest_wait::find(client, &servers).await {
            let labels = [("resource", &*longest.lock()), ("holder", &*longest.holder())];
            text.sample("dlock_longest_wait_lock_seconds", &labels, longest.ms as f64 / 1000.0);
        }
    }
    (text.0, operators::faults(&servers, &map))
}

fn answered(seen: &Inspected<Info>) -> Option<(&str, &Info)> {
    Some((&*seen.server, seen.answer.found()?))
}

/// The fields of INFO in docs/info.md: name without `dlock_`, kind, description.
fn documented() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let rows = INFO.lines().filter_map(|line| line.strip_prefix("| `dlock_"));
    let cells = rows.filter_map(|row| {
        let mut cells = row.split(" | ");
        Some((cells.next()?, cells.next()?, cells.next()?.trim_end_matches(" |")))
    });
    // A row can describe several fields.
    cells.flat_map(|(names, kind, what)| {
        let names = names.split("` `dlock_").map(|name| name.trim_end_matches('`'));
        names.map(move |name| (name, kind, what))
    })
}

/// Metrics in the text format, one family after the other.
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let help = help.replace('`', "");
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    /// Appends the replicas and the sentinels.
    fn beside(&mut self, beside: &Beside, masters: &[Inspected<Info>]) {
        let bit = |yes: bool| f64::from(u8::from(yes));
        let replicas =
            || beside.replicas.iter().filter_map(|seen| Some((&*seen.server, seen.answer.found()?)));
        self.family("dlock_replica_up", "gauge", "1 if the replica answers");
        for seen in &beside.replicas {
            self.sample("dlock_replica_up", &[("server", &seen.server)], bit(seen.answer.found().is_some()));
        }
        self.family("dlock_replica_info", "gauge", "The replica's role, its master, and its module");
        for (server, info) in replicas() {
            let (master, module) = (info.master(), info.module());
            let labels = [
                ("server", server),
                ("role", info.text("role")),
                ("master", &master),
                ("link", info.text("master_link_status")),
                ("module", &module),
            ];
            self.sample("dlock_replica_info", &labels, 1.0);
        }
        self.family(
            "dlock_replica_lag_seconds",
            "gauge",
            "seconds since the replica's last message to its master",
        );
        for (server, _) in replicas() {
            if let Some(lag) = lag(server, masters) {
                self.sample("dlock_replica_lag_seconds", &[("server", server)], lag as f64);
            }
        }
        self.family("dlock_sentinel_up", "gauge", "1 if the sentinel answers, with the master that it names");
        for seen in &beside.sentinels {
            let master = seen.answer.found().map_or("", |says| &says.master);
            let labels = [("server", &*seen.server), ("master", master)];
            self.sample("dlock_sentinel_up", &labels, bit(seen.answer.found().is_some()));
        }
    }

    /// Appends a field of INFO, with a sample for each server. As Prometheus asks, the names of counters end
    /// with _total, and times are in seconds.
    fn field(&mut self, up: &[(&str, &Info)], field: &str, kind: &str, what: &str) {
        let (in_ms, info_name) = (field.contains("_ms"), format!("dlock_{field}"));
        let name = info_name.replace("_ms", "_seconds");
        // The description of a time begins with its unit.
        let what = what.strip_prefix("ms ").map_or(what.to_owned(), |what| format!("seconds {what}"));
        match kind {
            "counter" | "gauge" => {
                let name = if kind == "counter" { format!("{name}_total") } else { name };
                self.family(&name, kind, &what);
                for (server, info) in up {
                    let value = info.number(&info_name) as f64 / if in_ms { 1000.0 } else { 1.0 };
                    self.sample(&name, &[("server", server)], value);
                }
            }
            "histogram" => {
                self.family(&name, kind, &what);
                for (server, info) in up {
                    self.histogram(&name, server, info.text(&info_name));
                }
            }
            "word" => {
                self.family(&name, "gauge", &what);
                for (server, info) in up {
                    self.sample(&name, &[("server", server), ("word", info.text(&info_name))], 1.0);
                }
            }
            // Fields of the kind "text" have no metric.
            _ => {}
        }
    }

    /// Appends the samples of a histogram, from `1=0,5=2,...,inf=3,sum=812` in ms. Appends none for an empty
    /// text, because an older module does not send the field.
    fn histogram(&mut self, name: &str, server: &str, counts: &str) {
        let seconds = |ms: &str| ms.parse::<f64>().unwrap_or(0.0) / 1000.0;
        let mut sample = |suffix: &str, label: Option<&str>, value: f64| {
            let labels = label.map(|bound| ("le", bound));
            let labels: Vec<_> = [("server", server)].into_iter().chain(labels).collect();
            self.sample(&format!("{name}_{suffix}"), &labels, value);
        };
        for (bound, value) in counts.split(',').filter_map(|part| part.split_once('=')) {
            let count = value.parse().unwrap_or(0.0);
            match bound {
                "sum" => sample("sum", None, seconds(value)),
                "inf" => {
                    sample("bucket", Some("+Inf"), count);
                    sample("count", None, count);
                }
                ms => sample("bucket", Some(&seconds(ms).to_string()), count),
            }
        }
    }

    /// Appends the resources with the most waiters. Their number is limited, because each resource is a time
    /// series of its own.
    async fn hottest(&mut self, client: &Client, max_resources: usize) {
        let mut locks = list::find_contended(client).await;
        locks.sort_by_key(|lock| std::cmp::Reverse((lock.waiters, lock.held_ms)));
        // Two names can be equal once they are cut, and a sample must not occur twice.
        let mut shown = BTreeMap::<String, (u64, u64)>::new();
        for lock in locks.iter().take(max_resources) {
            let (waiters, held_ms) =
                shown.entry(cut(&escape_control(name_text(&lock.name)), MAX_NAME)).or_default();
            (*waiters, *held_ms) = (waiters.saturating_add(lock.waiters), lock.held_ms.max(*held_ms));
        }
        self.family("dlock_resource_waiters", "gauge", "Waiters of the resources with the most waiters");
        for (resource, (waiters, _)) in &shown {
            self.sample("dlock_resource_waiters", &[("resource", resource)], *waiters as f64);
        }
        self.family("dlock_resource_held_seconds", "gauge", "How long these resources have been held");
        for (resource, (_, held_ms)) in &shown {
            self.sample("dlock_resource_held_seconds", &[("resource", resource)], *held_ms as f64 / 1000.0);
        }
    }
}

/// Escapes the value of a label, for the text format and for a terminal.
fn escaped(value: &str) -> String {
    escape_control(value).replace('\\', "\\\\").replace('"', "\\\"")
}
