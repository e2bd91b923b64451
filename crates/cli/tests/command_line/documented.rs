//! The examples of the documents, run as they are printed.

use dlock_testkit::{ServerKind, each_server};
use std::process::Command;

use super::*;
use crate::stage::DLOCK;
use dlock_testkit::documents::{self, blocks};

/// A shell with `dlock` in its PATH.
fn shell(stage: &Stage, script: &str) -> Command {
    let folder = std::path::Path::new(DLOCK).parent().expect("a folder");
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").expect("a PATH"));
    let mut shell = stage.shell(script);
    shell.env("PATH", path);
    shell
}

/// Replaces the fences, times and tokens, which differ between runs, by words, and blanks in a row by one
/// blank.
fn uniform(line: &str) -> String {
    let is_fence = |word: &str| word.len() == 16 && word.bytes().all(|byte| byte.is_ascii_digit());
    let is_token = |word: &str| word.strip_suffix('…').is_some_and(|word| word.len() == 8);
    // A time of several units, such as `1m 30s`, has a word for each.
    let is_time = |word: &str| {
        let unit = word.trim_start_matches(|char: char| char.is_ascii_digit());
        unit != word && ["ms", "s", "m"].contains(&unit)
    };
    let words = line.split_whitespace().map(|word| match word {
        word if is_fence(word.trim_end_matches(')').trim_start_matches('(')) => "FENCE",
        word if is_time(word) => "TIME",
        word if is_token(word) => "TOKEN",
        word => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

#[each_server]
fn the_documented_session_runs_as_shown(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let mut script = "exec 2>&1\n".to_owned();
    let mut shown = Vec::new();
    for line in &blocks("docs/command-line.md", "console") {
        match line.strip_prefix("$ ") {
            Some(command) if command.starts_with("export DLOCK_SERVERS") => {}
            Some(command) => script += &format!("{command}\n"),
            None => shown.push(uniform(line)),
        }
    }
    assert!(shown.len() >= 7, "{shown:?}");
    let done = stage.execute(shell(&stage, &script));
    let address = format!("127.0.0.1:{}", stage.servers[0].port());
    let printed: Vec<String> = done.stdout.replace(&address, "127.0.0.1:6379").lines().map(uniform).collect();
    assert_eq!(printed, shown);
    assert_eq!(stage.held_on("invoice:42"), 0);
}

/// The line of the crontab with this word. cron turns `\%` into `%`.
fn line_of_the_crontab(word: &str) -> String {
    let shown = blocks("docs/command-line.md", "crontab");
    let line = shown.iter().find(|line| line.contains(word)).expect("a crontab line");
    line.splitn(6, ' ').nth(5).expect("a command").replace("\\%", "%")
}

#[each_server]
fn the_crontab_lines_run_once_on_two_machines(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    for (word, script) in [("--at-least", "poll.sh"), ("--done-for", "report.sh")] {
        // The lock must stay closed until the second machine has asked, even if the test is slow.
        let line = line_of_the_crontab(word).replace("--at-least 30s", "--at-least 10m");
        let line = line.replace("--wait 2s", "--wait 100ms");
        executable(&stage, script, &format!("echo ran >> {script}.runs"));
        assert_eq!(stage.execute(shell(&stage, &line)).code, Some(0), "{line}");
        // 75: another owner held the lock until the wait timed out.
        assert_eq!(stage.execute(shell(&stage, &line)).code, Some(75), "{line}");
        assert_eq!(stage.lines(&format!("{script}.runs")), ["ran"]);
    }
}

/// Machines that ask at the same moment can split the votes. Here two other clients have one vote each, and
/// release them once the machine waits.
#[each_server]
fn the_crontab_line_runs_when_the_votes_are_split(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    // The run must wait until the test releases the votes, even if the test is slow.
    let line = line_of_the_crontab("--at-least").replace("--wait 2s", "--wait 1m");
    executable(&stage, "poll.sh", "echo report >> reports");
    for (server, token) in stage.servers.iter().zip(["x", "y"]) {
        server.connect().ok(&format!("DLOCK.ACQUIRE poll {token} 600000"));
    }
    let mut machine = stage.start(shell(&stage, &line));
    until("the machine waits, or has ended", || {
        let queued =
            stage.servers[..2].iter().any(|server| !queue::clients(&mut server.connect(), "poll").is_empty());
        queued || machine.has_ended()
    });
    for (server, token) in stage.servers.iter().zip(["x", "y"]) {
        assert_eq!(server.connect().say(&format!("DLOCK.RELEASE poll {token}")), 1);
    }
    let done = machine.wait();
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!(stage.lines("reports"), ["report"]);
}

#[each_server]
fn the_migration_line_runs_on_one_instance_at_a_time(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let shown = blocks("README.md", "sh");
    let line = shown.iter().find(|line| line.starts_with("dlock run migrate")).expect("a line");
    executable(&stage, "manage.py", "mkdir at-work && echo $1 >> done && rmdir at-work");
    executable(&stage, "serve", "echo served >> done");
    let instances = [0, 1].map(|_| stage.start(shell(&stage, line)));
    for instance in instances {
        assert_eq!(instance.wait().code, Some(0));
    }
    let mut done = stage.lines("done");
    done.sort();
    assert_eq!(done, ["migrate", "migrate", "served", "served"]);
}

fn executable(stage: &Stage, name: &str, script: &str) {
    use std::os::unix::fs::PermissionsExt;
    let path = stage.write(name, &format!("#!/bin/sh\n{script}\n"));
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
        .expect("this process owns the file");
}

#[test]
fn exit_codes_match_the_manual() {
    let manual = Command::new(DLOCK).arg("man").output().expect("dlock runs").stdout;
    let manual = String::from_utf8(manual).expect("text");
    let (_, rest) = manual.split_once("EXIT STATUS").expect("a section");
    let (codes, _) = rest.split_once(".SH").expect("a next section");
    let table = documents::read("docs/command-line.md");
    let entries: Vec<&str> = codes.split(".TP\n").skip(1).collect();
    assert_eq!(entries.len(), 10);
    for entry in entries {
        let (code, meaning) = entry.split_once('\n').expect("a code and its meaning");
        let meaning = meaning.lines().next().expect("a meaning");
        let (code, meaning) = (code.replace("\\fB", "").replace("\\fR", ""), meaning.replace("\\*(Aq", "'"));
        let row = match meaning.split_once(": ") {
            Some((subcommands @ ("run, elect" | "status, doctor"), meaning)) => {
                format!("| {code} | `{}` | {meaning} |", subcommands.replace(", ", "`, `"))
            }
            _ => format!("| {code} | all | {meaning} |"),
        };
        assert!(table.contains(&row), "docs/command-line.md lacks {row}");
    }
}
