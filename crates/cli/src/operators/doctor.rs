//! `dlock doctor`: recommends changes to the servers, where possible as commands to paste. It sends no
//! command that changes anything.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use dlock_client::{
    Answer, Client, Clock, Denied, Fault, FaultKind, Inspected, Instant, Needed, NodeState, Sentinel,
    majority,
};
use serde::Serialize;
use serde_json::json;

use crate::args::Doctor;
use crate::exit::{Abort, Failure};
use crate::operators::beside::Beside;
use crate::operators::{self, ClusterMap, Info, longest_wait};
use crate::output::{escape_control, escape_json, print};

/// The largest difference between clocks that are synchronised.
const MAX_SKEW: Duration = Duration::from_secs(1);

/// The command that reads the options that the advice depends on.
const OPTIONS: [&str; 9] = [
    "CONFIG",
    "GET",
    "dlock.*",
    "appendonly",
    "appendfsync",
    "min-replicas-to-write",
    "min-replicas-max-lag",
    "cluster-node-timeout",
    "cluster-replica-no-failover",
];

/// The warning of a server whose grace period is shorter than its longest lease.
const RESTART_GRACE: &str = "restart-grace";

/// A recommended change.
#[derive(Debug, Serialize)]
struct Finding {
    /// `None` if the finding concerns all servers together.
    server: Option<String>,
    what: String,
    fix: String,
}

pub async fn doctor(args: Doctor) -> Result<u8, Abort> {
    let client = args.servers.observer().await?;
    let map = ClusterMap::ask(&client).await;
    let infos = operators::ask_info(&client).await;
    let (wanted_ttl, mut findings, mut notes) = (args.ttl.as_millis(), Vec::new(), Vec::new());
    check_count(client.members(), &mut findings);
    check_cluster(&map, &infos, &mut findings);
    check_clocks(&client, &mut findings).await;
    check_members(&client, &mut findings).await;
    check_longest_wait(&client, &infos, wanted_ttl, &mut findings, &mut notes).await;
    let options = client.ask(&OPTIONS).await;
    let beside = Beside::ask(&client).await;
    check_versions(infos.iter().chain(&beside.replicas), &mut findings);
    check_replicas(&beside.replicas, &mut findings);
    check_sentinels(&beside.sentinels, wanted_ttl, &mut findings);
    let of_replicas = client.ask_replicas(&OPTIONS).await;
    check_takeover(&infos, client.needed(), &beside, &of_replicas, &mut findings);
    for group in deployments(&options, &of_replicas, &beside.replicas, client.members()) {
        check_differences(&group, &mut findings);
    }
    let is_named = |info: &Info| {
        let master = format!("://{}", info.master());
        infos.iter().any(|seen| seen.server.ends_with(&master))
    };
    for (seen, options) in infos.iter().zip(options) {
        let mut add = |what: String, fix: String| {
            findings.push(Finding { server: Some(seen.server.to_string()), what, fix });
        };
        match &seen.answer {
            Answer::Unanswered(why) => add(why.to_string(), remedy(why).to_owned()),
            Answer::Found(info) => {
                check_server(info, is_named(info), &mut add);
                match options.answer {
                    Answer::Found(texts) => Options::read(&texts, client.needed() == Needed::Every)
                        .check(info, wanted_ttl, &mut add),
                    Answer::Unanswered(why) => {
                        let fix = "run this as a user with the right +config|get".into();
                        add(format!("its options cannot be read: {why}"), fix);
                    }
                }
            }
        }
    }
    check_rights(&client, args.resource.as_bytes(), &mut findings).await;
    print(&if args.json {
        escape_json(&json!({ "findings": findings, "notes": notes }))
    } else {
        text(&findings, &notes, infos.len())
    })?;
    let answered = infos.iter().filter(|seen| seen.answer.found().is_some()).count();
    // If too few can grant locks, the exit code says so, whatever the findings are.
    Ok(match findings.is_empty() {
        _ if answered < client.needed().of(infos.len()) || !map.is_whole() => Failure::NoQuorum.code(),
        true => 0,
        false => Failure::Attention.code(),
    })
}

fn text(findings: &[Finding], notes: &[String], servers: usize) -> String {
    let line = |finding: &Finding| {
        let server = finding.server.as_deref().unwrap_or("all servers");
        format!(
            "{}: {}\n    {}\n",
            escape_control(server),
            escape_control(&finding.what),
            escape_control(&finding.fix)
        )
    };
    let mut text: String = notes.iter().map(|note| escape_control(note) + "\n").collect();
    text.extend(findings.iter().map(line));
    if findings.is_empty() {
        text += &format!("nothing to change ({servers} server{})", if servers == 1 { "" } else { "s" });
    } else if text.contains("    CONFIG SET ") {
        text += "\nCONFIG SET lasts until the restart: CONFIG REWRITE, or a line in redis.conf, keeps it.";
    }
    text.trim_end().to_owned()
}

/// The remedy for a server that did not answer.
fn remedy(why: &NodeState) -> &'static str {
    let NodeState::Failed(why) = why else {
        return "start it, correct its address, or allow it more time with --node-timeout";
    };
    match why.kind {
        FaultKind::NoModule => {
            "MODULE LOAD /path/to/libdlock.so, and a line `loadmodule /path/to/libdlock.so` in redis.conf"
        }
        FaultKind::SameServer => "name each server once",
        FaultKind::Unsupported => "write the address in that form",
        FaultKind::Login => "correct the user and the password in its address",
        FaultKind::UnknownMaster => "correct sentinelServiceName in its address",
        FaultKind::Forbidden(_) if why.text.contains("sentinel|") => SENTINEL_RIGHTS,
        FaultKind::Forbidden(_) => "give its user the right +info",
        _ => "correct its address, its user's password, or that user's rights (+info)",
    }
}

const SENTINEL_RIGHTS: &str = "give the user of the sentinels the rights +sentinel|get-master-addr-by-name +sentinel|myid \
                               +sentinel|master +sentinel|sentinels +sentinel|replicas";

/// The remedy for a sentinel that says nothing about the master.
fn remedy_of_sentinel(why: &NodeState) -> &'static str {
    let NodeState::Failed(why) = why else {
        return "start it; if it is gone for ever, SENTINEL RESET NAME on each of the others";
    };
    match why.kind {
        FaultKind::Login => {
            "correct sentinelUsername and sentinelPassword in the address; all sentinels have the same"
        }
        FaultKind::UnknownMaster => {
            "correct sentinelServiceName in the address; if the others know this name, SENTINEL MONITOR NAME .. here"
        }
        FaultKind::Forbidden(_) => SENTINEL_RIGHTS,
        _ => "correct its host and port in the address, or leave it out",
    }
}

fn check_cluster(map: &ClusterMap, infos: &[Inspected<Info>], findings: &mut Vec<Finding>) {
    let mut add = |what: Option<String>, fix: String| {
        findings.extend(what.map(|what| Finding { server: None, what, fix }));
    };
    if let Some(why) = &map.error {
        let is_forbidden =
            matches!(why, NodeState::Failed(why) if matches!(why.kind, FaultKind::Forbidden(_)));
        // Else the finding about the server says the same.
        if is_forbidden || infos.iter().all(|seen| seen.answer.found().is_some()) {
            add(map.message(), if is_forbidden { MAP_RIGHT } else { remedy(why) }.to_owned());
        }
        return;
    }
    if let (false, Some(node)) = (map.is_whole(), infos.first()) {
        let place = node.server.split_once("://").map_or(&*node.server, |(_, place)| place);
        let fix = format!(
            "start their master; if {place} is not in the cluster, name a node that is; else: redis-cli --cluster fix \
             {place}"
        );
        add(map.message(), fix);
    }
    add(map.strangers_message(), "name the nodes of one cluster, the same for all clients".into());
}

const MAP_RIGHT: &str = "give its user the right +cluster|slots";

fn check_count(members: usize, findings: &mut Vec<Finding>) {
    if members.is_multiple_of(2) {
        let fix = format!("name {} or {} servers", members - 1, members + 1);
        let what = format!(
            "{} of the {members} servers must be up; with one server less, as many failures ({}) are tolerated",
            majority(members),
            members - majority(members)
        );
        findings.push(Finding { server: None, what, fix });
    }
}

/// Reports a wait that is longer than a lease: a holder may hang, and renew its lease all the same. If the
/// lock has no holder and is only closed, the wait is as asked, and there is nothing to change.
async fn check_longest_wait(
    client: &Client,
    infos: &[Inspected<Info>],
    wanted_ttl: u128,
    findings: &mut Vec<Finding>,
    notes: &mut Vec<String>,
) {
    let Some(longest) = longest_wait::find(client, infos).await else { return };
    if u128::from(longest.ms) > wanted_ttl {
        let (lock, what) = (longest.lock(), format!("a client has waited {}", longest.text()));
        if longest.is_for_closed_lock() {
            return notes.push(what);
        }
        findings.push(Finding {
            server: None,
            what,
            fix: format!(
                "`dlock inspect {lock}` shows the holder: end it if it hangs, or `dlock break {lock}`"
            ),
        });
    }
}

async fn check_clocks(client: &Client, findings: &mut Vec<Finding>) {
    let seen = client.clocks().await;
    let mut readings: Vec<Reading> = seen.iter().filter_map(Reading::of).collect();
    readings.sort_by_key(|reading| reading.offset);
    let Some(median) = readings.get(readings.len() / 2) else { return };
    for reading in &readings {
        let difference = reading.offset - median.offset;
        if difference.abs() > MAX_SKEW.as_micros() as i128 + reading.error + median.error {
            let by = Duration::from_secs(difference.unsigned_abs() as u64 / 1_000_000);
            let direction = if difference > 0 { "ahead of" } else { "behind" };
            let what = format!("its clock is {} {direction} the others'", humantime::format_duration(by));
            let fix = "synchronise the clocks (chrony, systemd-timesyncd): fences follow them".into();
            findings.push(Finding { server: Some(reading.server.to_owned()), what, fix });
        }
    }
}

/// The clock of one server, in µs.
struct Reading<'a> {
    server: &'a str,
    /// How far the clock is ahead of the monotonic clock of this process.
    offset: i128,
    /// Largest error of the offset: half of the time that the answer took.
    error: i128,
}

impl Reading<'_> {
    fn of(seen: &Inspected<Clock>) -> Option<Reading<'_>> {
        let clock = seen.answer.found()?;
        let asked = clock.asked.saturating_since(Instant::since_boot(Duration::ZERO)).as_micros() as i128;
        let error = clock.answered.saturating_since(clock.asked).as_micros() as i128 / 2;
        Some(Reading { server: &seen.server, offset: i128::from(clock.unix_us) - asked - error, error })
    }
}

/// Checks the answer of a server to INFO. `names_master` is true if the server is a replica, and its master
/// is one of the servers, too.
fn check_server(info: &Info, names_master: bool, add: &mut impl FnMut(String, String)) {
    if !info.is_master() {
        let master = info.master();
        let fix = if names_master {
            format!(
                "leave it out: it and its master, {master}, are one deployment, and the members of a quorum are independent"
            )
        } else {
            format!("name its master, {master}")
        };
        add("it is a replica, and grants no locks".into(), fix);
    }
    let (what, fix) = match info.refusal() {
        Some("OOM") => (
            "it grants no locks: OOM, it uses more memory than maxmemory",
            "CONFIG SET maxmemory to more (INFO memory: used_memory), or remove data",
        ),
        Some("NOREPLICAS") => (
            "it grants no locks: NOREPLICAS, fewer replicas are in sync than min-replicas-to-write",
            "start its replicas, and let them reach it; without them: CONFIG SET min-replicas-to-write 0",
        ),
        Some(_) => (
            "it grants no locks: MISCONF, it could not write to its disk",
            "make room on the disk, and its folder (CONFIG GET dir) writable; its log says what fails",
        ),
        None => ("", ""),
    };
    if !what.is_empty() {
        add(what.into(), fix.into());
    }
    let grace = info.number("dlock_grace_ms_left");
    if grace > 0 {
        add(
            format!(
                "it is in its grace period, and grants no new locks for {grace} ms: it may have lost holds"
            ),
            "wait; or, if you know that no client holds a lock: CONFIG SET dlock.restart-grace 0".into(),
        );
    }
    if info.text("dlock_fence_mark_status") == "failing" {
        add(
            "it cannot write its fence mark: fences can fall if all data is lost and the clock is set back"
                .into(),
            "make its folder (CONFIG GET dir) writable; its log says what fails".into(),
        );
    }
    for word in info.warnings() {
        let (what, fix) = match word {
            "maxmemory-policy" => (
                "maxmemory-policy can evict locks that are held".into(),
                "CONFIG SET maxmemory-policy noeviction",
            ),
            "notify-keyspace-events" => (
                "notify-keyspace-events lacks K or d, so clients do not receive release notifications".into(),
                "CONFIG SET notify-keyspace-events Kd (add the letters that it has now)",
            ),
            // Reported with the options.
            RESTART_GRACE => continue,
            // Reported above, as a mark that the server cannot write.
            "fence-mark" if info.text("dlock_fence_mark_status") == "failing" => continue,
            "fence-mark" => (
                "dlock.fence-mark is no: fences can fall if all data is lost and the clock is set back"
                    .into(),
                "CONFIG SET dlock.fence-mark yes",
            ),
            other => (format!("it warns of {other}"), "see its log"),
        };
        add(what, fix.into());
    }
}

/// The options that [`OPTIONS`] reads.
struct Options {
    max_ttl: u128,
    grace: u128,
    appendonly: bool,
    appendfsync: String,
    min_replicas: u128,
    /// In s.
    min_replicas_lag: u128,
    /// 0 outside a cluster.
    cluster_timeout: u128,
    /// Whether it is a replica of a cluster that no failover makes the master.
    never_takes_over: bool,
}

/// Returns the servers that must have the same options: all nodes of a cluster, or a master with its
/// replicas.
fn deployments<'a>(
    masters: &'a [Inspected<Vec<String>>],
    replicas: &'a [Inspected<Vec<String>>],
    infos: &[Inspected<Info>],
    members: usize,
) -> Vec<Vec<&'a Inspected<Vec<String>>>> {
    if members == 1 {
        return vec![masters.iter().chain(replicas).collect()];
    }
    let is_of = |replica: &Inspected<Vec<String>>, master: &Inspected<Vec<String>>| {
        let info =
            infos.iter().find(|seen| seen.server == replica.server).and_then(|seen| seen.answer.found());
        info.is_some_and(|info| master.server.ends_with(&format!("://{}", info.master())))
    };
    let of_master = |master| replicas.iter().filter(move |replica| is_of(replica, master));
    masters.iter().map(|master| [master].into_iter().chain(of_master(master)).collect()).collect()
}

/// Checks that all servers have the same version of the module.
fn check_versions<'a>(servers: impl Iterator<Item = &'a Inspected<Info>>, findings: &mut Vec<Finding>) {
    let mut versions = BTreeMap::<String, &str>::new();
    for Inspected { server, answer } in servers {
        let version = answer.found().map(Info::module).filter(|version| !version.is_empty());
        version.map(|version| versions.entry(version).or_insert(server));
    }
    if versions.len() > 1 {
        let versions: Vec<String> =
            versions.iter().map(|(version, server)| format!("{version} on {server}")).collect();
        findings.push(Finding {
            server: None,
            what: format!("the versions of the module differ: {}", versions.join(", ")),
            fix: "upgrade the others, the replicas before their masters (docs/upgrading.md)".into(),
        });
    }
}

fn check_replicas(replicas: &[Inspected<Info>], findings: &mut Vec<Finding>) {
    for Inspected { server, answer } in replicas {
        let (what, fix) = match answer {
            Answer::Unanswered(why) => (format!("it cannot take over locks: {why}"), remedy(why).to_owned()),
            Answer::Found(info) if info.is_master() || info.text("master_link_status") == "up" => continue,
            Answer::Found(info) => (
                format!(
                    "this replica has no connection to its master, {}, and misses its locks",
                    info.master()
                ),
                "let it reach its master (its log says what fails)".into(),
            ),
        };
        findings.push(Finding { server: Some(server.to_string()), what, fix });
    }
}

/// In a cluster, and where sentinels watch, a master needs a replica that can take over.
fn check_takeover(
    infos: &[Inspected<Info>],
    needed: Needed,
    beside: &Beside,
    of_replicas: &[Inspected<Vec<String>>],
    findings: &mut Vec<Finding>,
) {
    let is_down = beside
        .replicas
        .iter()
        .any(|seen| matches!(seen.answer, Answer::Unanswered(NodeState::Down(_) | NodeState::Slow)));
    let fix = match needed {
        Needed::Every if is_down => {
            "start the node that is down; or add a node without slots to the cluster, and there: CLUSTER REPLICATE, \
             with the id of this one"
        }
        Needed::Every => {
            "add a node without slots to the cluster, and there: CLUSTER REPLICATE, with the id of this one"
        }
        _ if beside.sentinels.is_empty() => return,
        _ if is_down => "start the replica that is down",
        _ => {
            "start another server with the module, and there: REPLICAOF, with the host and the port of this one"
        }
    };
    let is_cluster = needed == Needed::Every;
    let never_takes_over = |replica: &Inspected<Info>| {
        let options = of_replicas.iter().find(|seen| seen.server == replica.server);
        let options = options.and_then(|seen| seen.answer.found());
        match is_cluster {
            true => options.is_some_and(|texts| Options::read(texts, is_cluster).never_takes_over),
            false => replica.answer.found().is_some_and(|info| info.text("slave_priority") == "0"),
        }
    };
    for Inspected { server, answer } in infos {
        let Some(info) = answer.found().filter(|info| info.is_master()) else { continue };
        let mut add = |what: &str, fix: &str| {
            let (what, fix) = (format!("{what}: if it dies, none takes over"), fix.to_owned());
            findings.push(Finding { server: Some(server.to_string()), what, fix });
        };
        let is_of = |info: &Info| server.ends_with(&format!("://{}", info.master()));
        let mut replicas =
            beside.replicas.iter().filter(|seen| seen.answer.found().is_some_and(is_of)).peekable();
        if !info.has_replicas() {
            add("no replica is connected to it", fix);
        } else if replicas.peek().is_some() && replicas.all(never_takes_over) {
            let (option, now, then) = match is_cluster {
                true => ("cluster-replica-no-failover", "yes", "no"),
                false => ("replica-priority", "0", "100"),
            };
            add(
                &format!("its replicas have {option} {now}"),
                &format!("on one of them: CONFIG SET {option} {then}"),
            );
        }
    }
}

/// Checks that there are enough sentinels for a failover, and that they agree.
fn check_sentinels(sentinels: &[Inspected<Sentinel>], wanted_ttl: u128, findings: &mut Vec<Finding>) {
    let mut add = |server: Option<&str>, what: String, fix: &str| {
        findings.push(Finding { server: server.map(str::to_owned), what, fix: fix.to_owned() });
    };
    let mut masters = BTreeMap::<&str, &str>::new();
    for Inspected { server, answer } in sentinels {
        match answer {
            Answer::Found(says) => _ = masters.entry(&says.master).or_insert(server),
            Answer::Unanswered(why) => add(Some(server), why.to_string(), remedy_of_sentinel(why)),
        }
    }
    let says = || sentinels.iter().filter_map(|seen| seen.answer.found());
    let Some(quorum) = says().map(|says| says.quorum).max() else { return };
    let down_after = says().map(|says| says.down_after_ms).max().unwrap_or(0);
    if u128::from(down_after) > wanted_ttl {
        let what = format!(
            "a failover begins after {down_after} ms (down-after-milliseconds), and leases of {wanted_ttl} ms (--ttl) \
             end before"
        );
        let fix = "on each sentinel: SENTINEL SET NAME down-after-milliseconds to less than the leases";
        add(None, what, fix);
    }
    let known = says().map(|says| says.sentinels as usize).max().unwrap_or(0).max(sentinels.len());
    let answered = says().count();
    // The quorum finds the master dead, and a majority of all sentinels lets one of them promote a replica.
    let needed = majority(known).max(quorum as usize);
    if known < 3 {
        let what = format!("sentinels: {known}; if one is lost, there may be no failover");
        add(None, what, "run three sentinels on three machines, each with the line `sentinel monitor ..`");
    }
    if needed > known {
        let what = format!("a failover needs {needed} sentinels (its quorum), and there are {known}");
        add(None, what, "SENTINEL SET NAME quorum, with at most the number of the sentinels");
    } else if answered < needed {
        let what = format!("a failover needs {needed} sentinels, and {answered} of {known} answer");
        add(None, what, "start the others");
    }
    if masters.len() > 1 {
        let masters: Vec<String> = masters.iter().map(|(master, by)| format!("{master} by {by}")).collect();
        let what = format!("the sentinels name several masters: {}", masters.join(", "));
        add(None, what, "wait until a failover under way has ended; else let the sentinels reach each other");
    }
}

/// Checks that the servers of a deployment have the same options of dlock.
fn check_differences(options: &[&Inspected<Vec<String>>], findings: &mut Vec<Finding>) {
    // By option: the values, each with a server that has it.
    let mut values = BTreeMap::<&str, BTreeMap<&str, &str>>::new();
    for Inspected { server, answer } in options.iter().copied() {
        for pair in answer.found().into_iter().flat_map(|texts| texts.chunks_exact(2)) {
            if pair[0].starts_with("dlock.") {
                values.entry(&pair[0]).or_default().entry(&pair[1]).or_insert(server);
            }
        }
    }
    for (name, values) in values.into_iter().filter(|(_, values)| values.len() > 1) {
        let values: Vec<String> =
            values.iter().map(|(value, server)| format!("{value} on {server}")).collect();
        findings.push(Finding {
            server: None,
            what: format!("{name} differs: {}", values.join(", ")),
            fix: format!("give it one value on each of them, replicas too: CONFIG SET {name} .."),
        });
    }
}

impl Options {
    /// Reads the answer to [`OPTIONS`] of a node of a cluster, or of another server.
    fn read(texts: &[String], is_cluster: bool) -> Options {
        let options: HashMap<&str, &str> =
            texts.chunks_exact(2).map(|pair| (pair[0].as_str(), pair[1].as_str())).collect();
        let text = |name: &str| options.get(name).copied().unwrap_or_default();
        let ms = |name: &str| text(name).parse().unwrap_or(0);
        Options {
            max_ttl: ms("dlock.max-ttl"),
            grace: ms("dlock.restart-grace"),
            appendonly: text("appendonly") == "yes",
            appendfsync: text("appendfsync").to_owned(),
            min_replicas: ms("min-replicas-to-write"),
            min_replicas_lag: ms("min-replicas-max-lag"),
            cluster_timeout: if is_cluster { ms("cluster-node-timeout") } else { 0 },
            never_takes_over: text("cluster-replica-no-failover") == "yes",
        }
    }

    /// The longest lease that the server accepts, in ms.
    fn longest_lease(&self) -> u128 {
        if self.grace == 0 { self.max_ttl } else { self.grace.min(self.max_ttl) }
    }

    /// The least value of both options with which no lease that the server accepts now, or that is wanted, is
    /// refused. A remedy only raises them: clients may use leases that this command does not know.
    fn raised(&self, wanted_ttl: u128) -> u128 {
        self.max_ttl.max(wanted_ttl)
    }

    /// By how much the longest lease of a master with replicas must be shorter than its grace period.
    /// docs/choosing.md has the reason.
    fn margin(&self, info: &Info) -> u128 {
        if info.has_replicas() { 1000 * self.min_replicas_lag + 5000 } else { 0 }
    }

    /// The least grace period for the leases that the server accepts now, or that are wanted.
    fn needed_grace(&self, info: &Info, wanted_ttl: u128) -> u128 {
        self.raised(wanted_ttl) + self.margin(info)
    }

    /// Checks that no failover from this master leads to two holders.
    fn check_failover(&self, info: &Info, needed_grace: u128, add: &mut impl FnMut(String, String)) {
        let margin = self.margin(info);
        if self.min_replicas == 0 {
            add(
                "it has replicas, and grants locks without them, too: after a failover, a lock that it granted \
                 alone can have a second holder"
                    .into(),
                "CONFIG SET min-replicas-to-write 1 min-replicas-max-lag 3 (with leases of at least 16 s, and \
                 dlock.max-ttl at least 8000 below dlock.restart-grace)"
                    .into(),
            );
        }
        if self.grace == 0 {
            add(
                "it has replicas, and no grace period: after a failover, a lock that the new master does not know yet \
                 can have a second holder"
                    .into(),
                format!("on each of them: CONFIG SET dlock.restart-grace {needed_grace} (the pause after a failover)"),
            );
        } else if self.max_ttl <= self.grace && self.grace < self.max_ttl + margin {
            let raise = format!("CONFIG SET dlock.restart-grace {needed_grace} (the pause after a restart)");
            add(
                format!(
                    "dlock.max-ttl is less than {margin} ms below dlock.restart-grace: if the network splits, there can \
                     be two masters and two holders"
                ),
                match self.grace.saturating_sub(margin) {
                    0 => raise,
                    longest => {
                        format!(
                            "{raise}, or lower dlock.max-ttl to {longest} if no client needs a longer lease"
                        )
                    }
                },
            );
        }
    }

    fn check(&self, info: &Info, wanted_ttl: u128, add: &mut impl FnMut(String, String)) {
        let raised = self.raised(wanted_ttl);
        let grace = self.needed_grace(info, wanted_ttl);
        if info.warnings().any(|word| word == RESTART_GRACE) {
            add(
                "dlock.restart-grace is shorter than dlock.max-ttl: leases in between are refused".into(),
                format!(
                    "CONFIG SET dlock.restart-grace {grace} (the pause after a restart), or lower dlock.max-ttl if no \
                     client needs a lease of more than {} ms",
                    self.grace
                ),
            );
        }
        if info.has_replicas() {
            self.check_failover(info, grace, add);
        }
        if self.cluster_timeout > wanted_ttl {
            add(
                format!(
                    "a failover begins after {} ms (cluster-node-timeout), and leases of {wanted_ttl} ms (--ttl) \
                     end before",
                    self.cluster_timeout
                ),
                "CONFIG SET cluster-node-timeout to less than the leases, or use longer leases".into(),
            );
        }
        let longest = self.longest_lease();
        if longest < wanted_ttl {
            let changed = [("dlock.max-ttl", self.max_ttl), ("dlock.restart-grace", self.grace)];
            let is_low = |(name, ms): &(&str, u128)| *ms < raised && (*name == "dlock.max-ttl" || *ms > 0);
            let settings = changed.iter().filter(|option| is_low(option));
            let settings: Vec<String> = settings.map(|(name, _)| format!("{name} {raised}")).collect();
            add(
                format!("its longest lease is {longest} ms, shorter than the {wanted_ttl} ms wanted (--ttl)"),
                format!("CONFIG SET {}", settings.join(" ")),
            );
        }
        if self.grace == 0 && !(self.appendonly && self.appendfsync == "always") {
            let lost = if self.appendonly { "the newest locks" } else { "locks" };
            add(
                format!(
                    "{lost} are not persisted: after a crash this server grants locks that are still held"
                ),
                format!(
                    "CONFIG SET appendonly yes appendfsync always (each grant waits for the disk), or CONFIG SET \
                     dlock.restart-grace {grace} (after a restart, a pause as long as the longest lease)"
                ),
            );
        }
    }
}

/// Checks that the connected clients use the same members as this command. The library name of a client of a
/// quorum ends with `(qN-DIGEST)`: the number of members, and a digest of their run ids. See
/// [`Client::library_name`].
async fn check_members(client: &Client, findings: &mut Vec<Finding>) {
    if client.members() == 1 {
        return;
    }
    let answers = client.ask(&["CLIENT", "LIST"]).await;
    let own = client.library_name();
    // A client has no digest until it knows the run ids of all members, and until then nothing can be
    // compared.
    let Some(own) = members_in(&own).filter(|own| own.contains('-')) else { return };
    let mut others = BTreeMap::new();
    for Inspected { server, answer } in &answers {
        for line in answer.found().into_iter().flatten().flat_map(|text| text.lines()) {
            let field = |name| line.split(' ').find_map(|field| field.strip_prefix(name));
            let (Some(address), Some(library)) = (field("addr="), field("lib-name=")) else { continue };
            match members_in(library) {
                // The same members, or a name `qN` without a digest: that client has not reached all of its
                // members yet.
                Some(members) if own.starts_with(members) => {}
                Some(members) => {
                    others.entry(members.to_owned()).or_insert_with(|| (server.clone(), address.to_owned()));
                }
                None => {}
            }
        }
    }
    for (members, (server, address)) in others {
        findings.push(Finding {
            server: Some(server.to_string()),
            what: format!(
                "the client at {address} names other members ({members}) than this command ({own}; the number of \
                 servers and a digest): two clients could hold the same lock"
            ),
            fix: "give all clients, and this command, the same list of servers".into(),
        });
    }
}

/// The members in the library name of a client: `q3-1a2b3c4d` in `dlock-client(q3-1a2b3c4d)`. `None` for
/// other libraries and for clients of a single server.
fn members_in(library: &str) -> Option<&str> {
    let (name, members) = library.strip_suffix(')')?.split_once('(')?;
    (name.starts_with("dlock") && members.starts_with('q')).then_some(members)
}

/// Checks what the user may do, by commands with invalid arguments. A server checks the rights first: a
/// forbidden command fails with NOPERM, and a permitted one with an error on its arguments. Neither changes
/// anything.
async fn check_rights(client: &Client, resource: &[u8], findings: &mut Vec<Finding>) {
    let users = client.ask(&["ACL", "WHOAMI"]).await;
    let mut tries: Vec<(&str, Vec<&[u8]>)> = vec![
        ("dlock.acquire", vec![resource, b"t", b"0"]),
        ("dlock.extend", vec![resource, b"t", b"0"]),
        ("dlock.release", vec![resource, b"t", b"?"]),
    ];
    if client.members() > 1 {
        tries.push(("dlock.confirm", vec![resource, b"t", b"0", b"0"]));
    }
    // For each server: the commands that the user may not run, each as ` +name`, and whether the user may not
    // access the key.
    let mut missing = vec![(String::new(), false); users.len()];
    for (name, arguments) in tries {
        let command: Vec<&[u8]> = [name.as_bytes()].into_iter().chain(arguments).collect();
        let answers = client.ask(&command).await;
        for ((seen, user), (commands, lacks_key)) in answers.iter().zip(&users).zip(&mut missing) {
            let Some(why) = fault(&seen.answer) else { continue };
            // The error is not about this command: without +info, a member of a quorum is asked nothing.
            if fault(&user.answer) == Some(why) {
                continue;
            }
            match why.kind {
                FaultKind::Forbidden(Denied::Key) => *lacks_key = true,
                FaultKind::Forbidden(_) => *commands += &format!(" +{name}"),
                _ => {}
            }
        }
    }
    for (user, (commands, lacks_key)) in users.iter().zip(missing) {
        if commands.is_empty() && !lacks_key {
            continue;
        }
        let name = user.answer.found().and_then(|texts| texts.first()).map_or("USER", String::as_str);
        let resource = String::from_utf8_lossy(resource);
        let pattern = if lacks_key { format!(" ~{resource}") } else { String::new() };
        findings.push(Finding {
            server: Some(user.server.to_string()),
            what: format!("the user {name} may not lock {resource}"),
            fix: format!("ACL SETUSER {name}{commands}{pattern}"),
        });
    }
}

/// Returns the error of a server.
fn fault<T>(answer: &Answer<T>) -> Option<&Fault> {
    match answer {
        Answer::Unanswered(NodeState::Failed(why)) => Some(why),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &str, module: &str) -> Inspected<Info> {
        let info =
            format!("module:name=other,ver=7\r\nmodule:name=dlock,ver={module},api=1\r\nmodule:name=a,ver=1");
        Inspected::new(name, Answer::Found(Info::of(&info)))
    }

    #[test]
    fn different_versions_of_the_module_are_named_each_with_a_server() {
        let found = |servers: &[Inspected<Info>]| {
            let mut findings = Vec::new();
            check_versions(servers.iter(), &mut findings);
            findings.into_iter().map(|finding| finding.what).collect::<Vec<_>>()
        };
        assert!(found(&[server("a", "100"), server("b", "100")]).is_empty());
        let down = Inspected::new("c", Answer::Unanswered(NodeState::Slow));
        let [differs] = &found(&[server("a", "100"), server("b", "11203"), down])[..] else {
            panic!("no finding")
        };
        assert_eq!(differs, "the versions of the module differ: 0.1.0 on a, 1.12.3 on b");
    }

    #[test]
    fn too_few_sentinels_are_named() {
        let sentinel = |name: &str, says: Option<(u64, u64)>| {
            let says = says.map(|(quorum, sentinels)| {
                let mut says = Sentinel::default();
                (says.master, says.quorum, says.sentinels) = ("m:1".into(), quorum, sentinels);
                says
            });
            Inspected::new(name, says.map_or(Answer::Unanswered(NodeState::Slow), Answer::Found))
        };
        let found = |sentinels: &[Inspected<Sentinel>]| {
            let mut findings = Vec::new();
            check_sentinels(sentinels, 30_000, &mut findings);
            findings.into_iter().map(|finding| finding.what).collect::<Vec<_>>().join("; ")
        };
        let up = |name| sentinel(name, Some((2, 3)));
        assert_eq!(found(&[]), "");
        assert_eq!(found(&[up("a"), up("b"), up("c")]), "");
        assert!(!found(&[up("a"), up("b"), sentinel("c", None)]).contains("failover"));
        let one = found(&[up("a"), sentinel("b", None), sentinel("c", None)]);
        assert!(one.contains("a failover needs 2 sentinels, and 1 of 3 answer"), "{one}");
        assert!(found(&[sentinel("a", Some((1, 1)))]).contains("sentinels: 1; if one is lost"));
        assert!(
            found(&[sentinel("a", Some((3, 2))), sentinel("b", Some((3, 2)))])
                .contains("needs 3 sentinels (its")
        );
    }
}
