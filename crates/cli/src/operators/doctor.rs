//! `dlock doctor`: recommends changes to the servers, where possible as commands to paste. It sends no
//! command that changes anything.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use dlock_client::{Answer, Client, Inspected, NodeState, majority, now};
use serde::Serialize;
use serde_json::json;

use crate::args::Doctor;
use crate::exit::{Abort, Failure};
use crate::operators::{self, Info};
use crate::output::{escape_control, escape_json, print};

/// The largest difference between clocks that are synchronised.
const MAX_SKEW: Duration = Duration::from_secs(1);

/// The command that reads the options for [`check_options`].
const OPTIONS: [&str; 6] =
    ["CONFIG", "GET", "dlock.max-ttl", "dlock.restart-grace", "appendonly", "appendfsync"];

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
    let infos = operators::ask_info(&client).await;
    let (wanted_ttl, mut findings) = (args.ttl.as_millis(), Vec::new());
    check_count(infos.len(), &mut findings);
    check_clocks(&client, &mut findings).await;
    check_members(&client, &mut findings).await;
    let options = client.ask(&OPTIONS).await;
    for (seen, options) in infos.iter().zip(options) {
        let mut add = |what: String, fix: String| {
            findings.push(Finding { server: Some(seen.server.to_string()), what, fix });
        };
        match &seen.answer {
            Answer::Unanswered(why) => add(why.to_string(), remedy(why).to_owned()),
            Answer::Found(info) => {
                check_server(info, wanted_ttl, &mut add);
                check_options(options.answer, wanted_ttl, &mut add);
            }
        }
    }
    check_rights(&client, args.resource.as_bytes(), &mut findings).await;
    print(&if args.json {
        escape_json(&json!({ "findings": findings }))
    } else {
        text(&findings, infos.len())
    })?;
    let answered = infos.iter().filter(|seen| seen.answer.found().is_some()).count();
    // If no majority has answered, the exit code says so, whatever the findings are.
    Ok(match findings.is_empty() {
        _ if answered < majority(infos.len()) => Failure::NoQuorum.code(),
        true => 0,
        false => Failure::Attention.code(),
    })
}

fn text(findings: &[Finding], servers: usize) -> String {
    let line = |finding: &Finding| {
        let server = finding.server.as_deref().unwrap_or("all servers");
        format!(
            "{}: {}\n    {}\n",
            escape_control(server),
            escape_control(&finding.what),
            escape_control(&finding.fix)
        )
    };
    let mut text: String = findings.iter().map(line).collect();
    if findings.is_empty() {
        text = format!("nothing to change ({servers} server{})", if servers == 1 { "" } else { "s" });
    } else if text.contains("    CONFIG SET ") {
        text += "\nCONFIG SET lasts until the restart: CONFIG REWRITE, or a line in redis.conf, keeps it.";
    }
    text.trim_end().to_owned()
}

/// The remedy for a server that did not answer.
fn remedy(why: &NodeState) -> &'static str {
    match why {
        NodeState::Failed(why) if why.contains("load the module") => {
            "MODULE LOAD /path/to/libdlock.so, and a line `loadmodule /path/to/libdlock.so` in redis.conf"
        }
        NodeState::Failed(why) if why.contains("the same server as") => "name each server once",
        NodeState::Failed(why) if why.contains("does not support") => {
            "name a master that is no cluster node, or lock with the Python or the Node client"
        }
        NodeState::Failed(_) => "correct its address, its user's password, or that user's rights (+info)",
        _ => "start it, correct its address, or allow it more time with --node-timeout",
    }
}

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

async fn check_clocks(client: &Client, findings: &mut Vec<Finding>) {
    let begun = now();
    let clocks: Vec<(String, i128)> = client.ask(&["TIME"]).await.into_iter().filter_map(clock).collect();
    // The servers read their clocks at different times, at most the duration of the request apart.
    let max_difference = (MAX_SKEW + now().saturating_since(begun)).as_micros() as i128;
    let mut sorted: Vec<i128> = clocks.iter().map(|(_, time)| *time).collect();
    sorted.sort();
    for (server, time) in &clocks {
        let median = sorted[sorted.len() / 2];
        let offset = time - median;
        if offset.abs() > max_difference {
            let by = Duration::from_secs(offset.unsigned_abs() as u64 / 1_000_000);
            let direction = if offset > 0 { "ahead of" } else { "behind" };
            let what = format!("its clock is {} {direction} the others'", humantime::format_duration(by));
            let fix = "synchronise the clocks (chrony, systemd-timesyncd): fences follow them".into();
            findings.push(Finding { server: Some(server.clone()), what, fix });
        }
    }
}

/// Parses the answer to TIME: the server's clock in µs.
fn clock(seen: Inspected<Vec<String>>) -> Option<(String, i128)> {
    let parts = seen.answer.found()?;
    let (seconds, micros) = (parts.first()?.parse::<u64>().ok()?, parts.get(1)?.parse::<u64>().ok()?);
    Some((seen.server.to_string(), i128::from(seconds) * 1_000_000 + i128::from(micros)))
}

fn check_server(info: &Info, wanted_ttl: u128, add: &mut impl FnMut(String, String)) {
    if !info.is_master() {
        let master = format!("{}:{}", info.text("master_host"), info.text("master_port"));
        add("it is a replica, and grants no locks".into(), format!("name its master, {master}"));
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
            "restart-grace" => (
                "dlock.restart-grace is shorter than dlock.max-ttl: leases in between are refused".into(),
                &*format!("CONFIG SET dlock.max-ttl {wanted_ttl} dlock.restart-grace {wanted_ttl}"),
            ),
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

fn check_options(options: Answer<Vec<String>>, wanted_ttl: u128, add: &mut impl FnMut(String, String)) {
    let options: HashMap<String, String> = match options {
        Answer::Found(texts) => {
            texts.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
        }
        Answer::Unanswered(why) => {
            let fix = "run this as a user with the right +config|get".into();
            return add(format!("its options cannot be read: {why}"), fix);
        }
    };
    let text = |name: &str| options.get(name).map_or("", String::as_str);
    let ms = |name: &str| text(name).parse::<u128>().unwrap_or(0);
    let (grace, max_ttl) = (ms("dlock.restart-grace"), ms("dlock.max-ttl"));
    let longest = if grace == 0 { max_ttl } else { grace.min(max_ttl) };
    if longest < wanted_ttl {
        let with_grace = if grace == 0 { "" } else { &format!(" dlock.restart-grace {wanted_ttl}") };
        add(
            format!("its longest lease is {longest} ms, shorter than the {wanted_ttl} ms wanted (--ttl)"),
            format!("CONFIG SET dlock.max-ttl {wanted_ttl}{with_grace}"),
        );
    }
    let durable = text("appendonly") == "yes" && text("appendfsync") == "always";
    if grace == 0 && !durable {
        let lost = if text("appendonly") == "yes" { "the newest locks" } else { "locks" };
        add(
            format!("{lost} are not persisted: after a crash this server grants locks that are still held"),
            format!(
                "CONFIG SET dlock.max-ttl {wanted_ttl} dlock.restart-grace {wanted_ttl} (a pause after a restart), or \
                 CONFIG SET appendonly yes appendfsync always"
            ),
        );
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
        for (seen, (commands, lacks_key)) in client.ask(&command).await.iter().zip(&mut missing) {
            match &seen.answer {
                Answer::Unanswered(NodeState::Failed(why)) if why.starts_with("NOPERM") => {
                    if why.contains("key") { *lacks_key = true } else { *commands += &format!(" +{name}") }
                }
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
