//! Untrusted input: names, labels and server errors with control sequences, and files that never end.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;

use super::*;
use crate::stage::DLOCK;
use dlock_testkit::{ServerKind, each_server, until_some};

/// Text that sets a terminal's title, clears the screen (with `ESC [`, and again with the C1 control U+009B),
/// reverses the writing direction, and starts a new line.
const HOSTILE: &str = "r\x1b]0;title\x07\x1b[2J\u{9b}2J\u{202e}\r\nforged";

/// The escaped form of [`HOSTILE`].
const ESCAPED: &str = "r\\u{1b}]0;title\\u{7}\\u{1b}[2J\\u{9b}2J\\u{202e}\\r\\nforged";

/// The flag of open(2) on Linux.
const O_NONBLOCK: i32 = 0o4000;

/// Fails if the output has a control character, or a line that the hostile text started.
#[track_caller]
fn assert_harmless(shown: &str) {
    let is_control = |char: char| (char.is_control() && char != '\n') || char == '\u{202e}';
    assert!(!shown.contains(is_control), "{shown:?}");
    assert!(!shown.lines().any(|line| line.starts_with("forged")), "{shown:?}");
}

#[each_server]
fn resource_names_are_escaped_for_the_terminal(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let mut conn = stage.connect();
    conn.call(&["DLOCK.ACQUIRE", HOSTILE, &format!("t{HOSTILE}"), "600000", "LABEL", HOSTILE]).int();
    let dlock = |words: &[&str]| {
        let mut command = stage.command(DLOCK);
        command.args(words).arg(HOSTILE);
        match words[0] {
            "run" => command.args(["--", "true"]),
            "release" | "extend" => command.arg("wrong"),
            _ => &mut command,
        };
        let done = stage.execute(command);
        assert_harmless(&done.stdout);
        assert_harmless(&done.stderr);
        done
    };
    for (words, code) in [
        (&["run", "--no-wait"][..], 75),
        (&["acquire", "--no-wait"], 75),
        (&["wait", "--timeout", "1ms"], 75),
        (&["release"], 79),
        (&["extend"], 79),
    ] {
        let done = dlock(words);
        assert_eq!(done.code, Some(code), "{words:?}: {}", done.stderr);
        assert!(done.stderr.contains(ESCAPED), "{words:?}: {}", done.stderr);
    }
    let table = dlock(&["inspect"]).stdout;
    assert_eq!(table.matches(ESCAPED).count(), 2, "the resource and the label are escaped: {table}");
    // JSON has the original value.
    let json: serde_json::Value = serde_json::from_str(&dlock(&["inspect", "--json"]).stdout).expect("JSON");
    assert_eq!((&json["resource"], &json["state"]), (&HOSTILE.into(), &"held".into()));
    assert_eq!(json["masters"][0]["found"]["holders"][0]["label"], HOSTILE);
    dlock(&["break", "--yes"]);
    // `acquire` prints the token and the fence, and not the resource.
    let held = dlock(&["acquire"]).stdout;
    let (token, fence) = held.trim_end().split_once(' ').expect("a token and a fence");
    assert!(fence.parse::<u64>().is_ok(), "{held}");
    assert_eq!(conn.call(&["DLOCK.RELEASE", HOSTILE, token]), 1);
}

/// The error for a program that cannot be executed contains the program's name.
#[each_server]
fn program_names_are_escaped_for_the_terminal(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let mut run = stage.dlock("run r --");
    run.arg(format!("./{HOSTILE}"));
    let done = stage.execute(run);
    assert_eq!(done.code, Some(127), "{}", done.stderr);
    assert_harmless(&done.stderr);
    done.assert_stderr(ESCAPED);
}

/// A server that answers every command with an error whose text is hostile.
#[each_server]
fn server_errors_are_escaped_for_the_terminal(kind: &ServerKind) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("the listener is bound").port();
    thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(mut client) = client else { return };
            thread::spawn(move || {
                let read = BufReader::new(client.try_clone().expect("a second handle"));
                // One answer for each command: the first line of a command begins with an asterisk.
                for _ in read.lines().map_while(Result::ok).filter(|line| line.starts_with('*')) {
                    let text = HOSTILE.replace("\r\n", " ");
                    if client.write_all(format!("-ERR {text}\r\n").as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    let stage = Stage::with(kind, 2);
    let servers = format!("{},redis://127.0.0.1:{port}", stage.urls());
    for words in ["inspect r", "inspect r --json", "acquire r --no-wait", "break r --yes", "release r t"] {
        // The server is one of three members, and then the only server.
        for servers in [servers.clone(), format!("redis://127.0.0.1:{port}")] {
            let mut dlock = stage.dlock(words);
            dlock.env("DLOCK_SERVERS", servers);
            let done = stage.execute(dlock);
            let text = done.stdout + &done.stderr;
            assert_harmless(&text);
            assert!(text.contains("\\u{1b}]0;title") || text.contains("\\u001b]0;title"), "{words}: {text}");
        }
    }
}

/// Starts dlock and waits until dlock has opened the pipe for reading. Until then, opening the pipe for
/// writing with O_NONBLOCK fails.
fn start_reading_pipe(stage: &Stage, words: &str) -> (Running, File) {
    let made = stage.execute(stage.shell("rm -f pipe && mkfifo pipe && pwd"));
    let pipe = Path::new(made.stdout.trim()).join("pipe");
    let running = stage.start(stage.dlock(words));
    let open = || File::options().write(true).custom_flags(O_NONBLOCK).open(&pipe).ok();
    (running, until_some("dlock reads the pipe", open))
}

#[each_server]
fn a_signal_ends_dlock_while_it_reads_its_servers_from_a_pipe(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let calls = ["run r", "acquire r", "release r t", "extend r t", "inspect r", "wait r", "break r --yes"];
    for call in calls {
        for (name, number) in [("INT", 2), ("TERM", 15)] {
            let command = if call.starts_with("run") { "-- true" } else { "" };
            let (running, _pipe) =
                start_reading_pipe(&stage, &format!("{call} --servers-file pipe {command}"));
            running.signal(name);
            assert_eq!(running.wait().signal, Some(number), "{call}");
        }
    }
    // A certificate file can be a pipe, too.
    let (running, _pipe) = start_reading_pipe(&stage, "run r --cacert pipe -- true");
    running.signal("INT");
    assert_eq!(running.wait().signal, Some(2));
}

/// For example `--servers-file <(pass show servers)`.
#[each_server]
fn servers_file_may_be_a_pipe(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let (running, mut pipe) = start_reading_pipe(&stage, "run r --servers-file pipe -- echo ran");
    pipe.write_all(format!("# ours\n{}\n", stage.urls()).as_bytes()).expect("dlock reads the pipe");
    drop(pipe);
    let done = running.wait();
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (Some(0), "ran\n", ""));
}

/// An address in DLOCK_SERVERS_FILE or a key in DLOCK_KEY is an easy mistake, and cron mails the messages.
#[each_server]
fn an_error_does_not_repeat_a_secret_in_place_of_a_file_name(kind: &ServerKind) {
    let stage = Stage::one(kind);
    for (variable, text) in [
        ("DLOCK_SERVERS_FILE", "redis://zoe:s3cret@127.0.0.1:6379"),
        ("DLOCK_SERVERS_FILE", "zoe:s3cret@127.0.0.1"),
        ("DLOCK_SERVERS_FILE", "unix:/run/redis.sock?pass=s3cret"),
        ("DLOCK_CACERT", "redis://127.0.0.1/s3cret"),
        ("DLOCK_KEY", "-----BEGIN PRIVATE KEY-----\ns3cret\n-----END PRIVATE KEY-----"),
    ] {
        let mut command = stage.dlock("inspect r");
        if variable == "DLOCK_SERVERS_FILE" {
            command.env_remove("DLOCK_SERVERS");
        }
        command.env("DLOCK_CERT", "/dev/null").env("DLOCK_KEY", "/dev/null").env(variable, text);
        let done = stage.execute(command);
        assert_eq!(done.code, Some(64), "{variable}: {}", done.stderr);
        assert!(!done.stderr.contains("s3cret"), "{variable}: {}", done.stderr);
        assert!(done.stderr.contains("the named file (not shown)"), "{variable}: {}", done.stderr);
    }
}
