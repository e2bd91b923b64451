//! Exit codes of `dlock run` and other subcommands, and the environment of the command that a run starts.

use super::*;
use dlock_testkit::{Folder, Port, Server, ServerKind, each_server};
use std::io::Write;
use std::net::TcpListener;

#[each_server]
fn run_ends_with_the_exit_code_of_its_command(kind: &ServerKind) {
    let stage = Stage::one(kind);
    for (script, code) in [
        ("exit 0", 0),
        ("exit 1", 1),
        ("exit 79", 79),
        ("exit 255", 255),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
        // A real-time signal, which has no name.
        ("kill -40 $$", 168),
    ] {
        let done = stage.execute(stage.run("--no-wait", script));
        assert_eq!((done.code, done.signal), (Some(code), None), "{script}: {}", done.stderr);
        assert_eq!(done.stderr, "");
    }
    assert_eq!(stage.held_on("r"), 0);
}

/// After Ctrl-C, a shell ends its script only if SIGINT has killed the child that the shell waits for, here
/// dlock. If dlock exited with 130, the script would continue.
#[each_server]
fn run_is_killed_by_sigint_when_its_command_is(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let done = stage.execute(stage.run("", "kill -INT $$"));
    assert_eq!((done.code, done.signal), (None, Some(2)));
    assert_eq!(stage.held_on("r"), 0);
}

#[each_server]
fn run_exits_with_126_or_127_and_frees_the_lock_when_the_command_cannot_start(kind: &ServerKind) {
    let stage = Stage::one(kind);
    stage.write("data", "");
    for (command, code, message) in [
        ("run r -- no-such-command x", 127, "dlock: no-such-command: No such file"),
        ("run r -- ./data", 126, "dlock: ./data: Permission denied"),
    ] {
        let done = stage.execute(stage.dlock(command));
        assert_eq!(done.code, Some(code), "{}", done.stderr);
        done.assert_stderr(message);
        assert_eq!(stage.held_on("r"), 0);
    }
}

/// A server that refuses a connection sends the reason and closes the connection, before it has read
/// anything.
#[each_server]
fn the_reason_of_a_refused_connection_is_shown(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let mut conn = stage.connect();
    conn.ok("CONFIG SET maxclients 1");
    // Whether the first write of the client fails depends on when the server closes the connection.
    for _ in 0..10 {
        let done = stage.execute(stage.run("--no-wait", "echo ran"));
        assert_eq!(done.code, Some(69), "{}", done.stderr);
        done.assert_stderr("max number of clients reached");
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let text = "-DENIED Redis is running in protected mode because protected mode is enabled\r\n";
            let _ = connection.and_then(|mut connection| connection.write_all(text.as_bytes()));
        }
    });
    let mut run = stage.run("--no-wait", "echo ran");
    run.env("DLOCK_SERVERS", format!("redis://127.0.0.1:{port}"));
    let done = stage.execute(run);
    assert_eq!(done.code, Some(69), "{}", done.stderr);
    done.assert_stderr("the server is in protected mode");
}

#[each_server]
fn the_hint_after_noauth_has_the_form_of_the_address(kind: &ServerKind) {
    let stage = Stage::with(kind, 0);
    let server = Server::options(kind).conf("unixsocket socket").start();
    server.connect().ok("CONFIG SET requirepass s3cret");
    let socket = server.dir().join("socket");
    let mut run = stage.run("--no-wait", "echo ran");
    run.env("DLOCK_SERVERS", format!("unix://{}", socket.display()));
    let done = stage.execute(run);
    assert_eq!(done.code, Some(69), "{}", done.stderr);
    done.assert_stderr("unix:///path?pass=password");
    let mut run = stage.run("--no-wait", "echo ran");
    run.env("DLOCK_SERVERS", format!("unix://{}?pass=s3cret", socket.display()));
    assert_eq!(stage.execute(run).stdout, "ran\n");
}

#[each_server]
fn run_exits_with_69_without_a_quorum(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    stage.servers[1].kill9();
    assert_eq!(stage.execute(stage.run("", "true")).code, Some(0), "two of three are a majority");
    stage.servers[2].kill9();
    let done = stage.execute(stage.run("", "echo ran"));
    assert_eq!((done.code, done.stdout.as_str()), (Some(69), ""), "{}", done.stderr);
    done.assert_stderr_starts("dlock: no quorum for r");
    assert_eq!(stage.held_on("r"), 0, "the grant of the one server was released");
}

#[each_server]
fn run_exits_with_69_for_an_unusable_server_and_64_for_an_invalid_address(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let without_module = Server::options(kind).without_module().start();
    let unused_port = Port::claim();
    let address = |port: u16| format!("redis://127.0.0.1:{port}");
    for (urls, code, message) in [
        (vec![address(without_module.port())], 69, address(without_module.port())),
        (vec![address(unused_port.number())], 69, "down".to_owned()),
        (vec!["10.0.0.1:6379:x".to_owned()], 64, "--server number 1: ".to_owned()),
        (vec![stage.urls(), stage.urls()], 64, "twice".to_owned()),
    ] {
        let mut command = stage.dlock("run");
        for url in urls {
            command.args(["--server", &url]);
        }
        command.args(["r", "--", "true"]);
        let done = stage.execute(command);
        assert_eq!(done.code, Some(code), "{}", done.stderr);
        done.assert_stderr(&message);
    }
}

#[each_server]
fn the_command_finds_its_hold_in_the_environment(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    let report = "echo $DLOCK_RESOURCE $DLOCK_TOKEN ${DLOCK_FENCE-none}";
    let script = format!("{report} > variables; until [ -e go ]; do sleep 0.02; done");
    let run = stage.start(stage.run("--fenced --label by-hand", &script));
    let variables = stage.lines("variables");
    let variables: Vec<&str> = variables[0].split(' ').collect();
    let [resource, token, fence] = variables[..] else { panic!("{variables:?}") };
    assert_eq!(resource, "r");
    assert!(stage.count_confirmed("r", token, fence, "by-hand") >= 2);
    assert_eq!(stage.create_go_and_wait(run).code, Some(0));

    // Without --fenced, a run over a quorum has no fence, and does not show the fence of its parent run.
    let inner = format!("$DLOCK run inner -- sh -c '{report}'");
    let done = stage.execute(stage.run("--fenced", &inner));
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    assert!(done.stdout.starts_with("inner ") && done.stdout.ends_with(" none\n"), "{}", done.stdout);
}

#[each_server]
fn the_default_label_names_host_and_command(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let run = stage.start(stage.run("", "echo $PPID > dlock.pid; until [ -e go ]; do sleep 0.02; done"));
    let dlock = stage.process_id("dlock.pid");
    assert_eq!(dlock, run.id());
    let lock = stage.connect().ok("DLOCK.INSPECT r");
    let label = lock.field("holders").items()[0].field("label").text();
    let host = stage.execute(stage.command("hostname")).stdout;
    assert_eq!(label, format!("sh@{} ({dlock})", host.trim()));
    assert_eq!(stage.create_go_and_wait(run).code, Some(0));
}

#[each_server]
fn servers_and_passwords_come_from_a_file_or_the_environment(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let port = stage.servers[0].port();
    let folder = Folder::fresh();
    assert_eq!(stage.connect().ok("ACL SETUSER worker on >se,cret ~* +@all"), "OK");
    assert_eq!(stage.connect().ok("ACL SETUSER default off"), "OK");
    // %2C is the comma of the password. A plain comma would separate two URLs in DLOCK_SERVERS.
    let url = |password: &str| format!("redis://worker:{password}@127.0.0.1:{port}");
    let list = folder.path().join("servers");
    std::fs::write(&list, format!("# ours\n\n  {}\n", url("se%2Ccret"))).expect("a file");

    let run = |name: &str, value: &str| {
        let mut run = stage.dlock("run r -- true");
        run.env_remove("DLOCK_SERVERS").env(name, value);
        stage.execute(run)
    };
    let file = list.to_str().expect("a path");
    assert_eq!(run("DLOCK_SERVERS", &url("se%2Ccret")).code, Some(0));
    assert_eq!(run("DLOCK_SERVERS_FILE", file).code, Some(0));
    let mut by_option = stage.dlock("run r --servers-file");
    by_option.arg(file).args(["--", "true"]).env("DLOCK_SERVERS", "redis://nobody.invalid");
    assert_eq!(stage.execute(by_option).code, Some(0), "an option overrides the environment");

    let refused = run("DLOCK_SERVERS", &url("wrong"));
    assert_eq!(refused.code, Some(69), "{}", refused.stderr);
    assert!(!refused.stderr.contains("wrong"), "the password is secret: {}", refused.stderr);
}

#[each_server]
fn run_names_an_unusable_member_once_and_continues_without_it(kind: &ServerKind) {
    let stage = Stage::with(kind, 2);
    let without_module = Server::options(kind).without_module().start();
    let urls = format!("{},redis://127.0.0.1:{}", stage.urls(), without_module.port());
    let execute = |words: &str| {
        let mut dlock = stage.dlock(words);
        dlock.env("DLOCK_SERVERS", &urls);
        stage.execute(dlock)
    };
    let done = execute("run r -- true");
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let message = format!("dlock: redis://127.0.0.1:{} cannot take part", without_module.port());
    assert!(done.stderr.starts_with(&message) && done.stderr.lines().count() == 1, "{}", done.stderr);
    done.assert_stderr("load the module");
    let seen = execute("inspect r");
    assert_eq!((seen.code, seen.stdout.contains("load the module")), (Some(0), true), "{}", seen.stdout);
    assert_eq!(execute("wait r").code, Some(0));
}

#[each_server]
fn commands_succeed_with_a_silent_member(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    // Every server must have the hold, so that the two that answer can confirm the release. `dlock acquire`
    // returns once a majority has granted, so the test sends the ACQUIREs itself.
    stage.on_each("DLOCK.ACQUIRE other token 600000");
    stage.servers[0].pause();
    let release = "release --node-timeout 3s other token";
    let all = ["run --node-timeout 3s r -- true", "inspect --node-timeout 3s r", release];
    for running in all.map(|words| stage.start(stage.dlock(words))) {
        let done = running.wait();
        assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    }
    stage.servers[0].resume();
}

#[each_server]
fn run_waits_for_servers_that_are_down(kind: &ServerKind) {
    let mut stage = Stage::one(kind);
    stage.servers[0].kill9();
    let run = stage.start(stage.run("--wait 10m", "echo ran"));
    until("the run reports the outage", || run.stderr().contains("dlock: too few servers for r at present"));
    stage.servers[0].restart();
    let done = run.wait();
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "ran\n"), "{}", done.stderr);
    assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);

    stage.servers[0].kill9();
    let done = stage.execute(stage.run("--wait 1s", "echo ran"));
    assert_eq!(done.code, Some(69), "{}", done.stderr);
    assert!(done.stderr.contains("no quorum for r") && done.stderr.contains(" down: "), "{}", done.stderr);
    assert_eq!(stage.execute(stage.dlock("wait --timeout 100ms r")).code, Some(69));
}

#[each_server]
fn commands_exit_with_64_for_a_rejected_argument_and_69_for_a_missing_right(kind: &ServerKind) {
    let stage = Stage::one(kind);
    for wrong in ["--ttl 25h", "--delay 2d"] {
        let done = stage.execute(stage.run(wrong, "echo ran"));
        assert_eq!((done.code, done.stdout.as_str()), (Some(64), ""), "{}", done.stderr);
    }
    // The servers reject this ttl, and their error does not repeat it. An error of the argument parser would
    // repeat it.
    let extended = stage.execute(stage.dlock("extend r t --ttl 25h"));
    assert_eq!((extended.code, extended.stderr.contains("25h")), (Some(64), false), "{}", extended.stderr);
    // The lock is free, but this user has no right to inspect it.
    let mut conn = stage.connect();
    assert_eq!(conn.ok("ACL SETUSER worker on >pw ~* +@all -dlock.inspect"), "OK");
    let mut wait = stage.dlock("wait --timeout 100ms r");
    wait.env("DLOCK_SERVERS", format!("redis://worker:pw@127.0.0.1:{}", stage.servers[0].port()));
    let done = stage.execute(wait);
    assert_eq!((done.code, done.stderr.contains("NOPERM")), (Some(69), true), "{}", done.stderr);
}

#[each_server]
fn commands_report_each_server_that_is_down(kind: &ServerKind) {
    let stage = Stage::with(kind, 5);
    let token = stage.execute(stage.dlock("acquire other")).stdout;
    stage.servers.iter().for_each(|server| server.kill9());
    let release = format!("release other {}", token.trim());
    for words in ["run --no-wait r -- true", &release] {
        let done = stage.execute(stage.dlock(words));
        assert_eq!((done.code, done.stderr.matches(" down: ").count()), (Some(69), 5), "{}", done.stderr);
    }
}
