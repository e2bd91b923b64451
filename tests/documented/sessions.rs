//! Runs the redis-cli sessions of the documents, and starts servers by `make run` and with the example
//! configuration.

use std::fs::{self, OpenOptions, Permissions};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Child, Command, Stdio};

use dlock_testkit::{
    Conn, Folder, Port, ServerKind, Value, documents, each_server, environment, module_path, until,
    until_some,
};

const EXAMPLE: &str = include_str!("../../redis.conf.example");
const RUN: &str = include_str!("../../scripts/run.sh");
pub const COMMON: &str = include_str!("../../scripts/common.sh");

/// Formats a reply as redis-cli prints it. A number above 10^15 becomes "a fence", because fences differ each
/// time.
fn printed(reply: &Value) -> String {
    match reply {
        Value::Nil => "(nil)".into(),
        Value::Int(n) if *n > 1_000_000_000_000_000 => "(integer) a fence".into(),
        Value::Int(n) => format!("(integer) {n}"),
        Value::Simple(text) => text.clone(),
        Value::Error(line) => format!("(error) {line}"),
        other => format!("{other:?}"),
    }
}

/// Splits a command line into words. A text in quotes is one word.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (at, part) in line.split('"').enumerate() {
        if at % 2 == 1 {
            words.push(part.to_string());
        } else {
            words.extend(part.split_whitespace().map(str::to_string));
        }
    }
    words
}

/// Runs the redis-cli sessions of the documents, each document in a database of its own, on a server as `make
/// run` starts it.
fn run_sessions(conn: &mut Conn) {
    // The document of each command that was run.
    let mut sources = Vec::new();
    let blocks = documents::all().into_iter().map(|path| (documents::blocks(&path, "text"), path));
    let sessions = blocks.filter(|(lines, _)| lines.iter().any(|line| line.starts_with("> ")));
    for (database, (lines, path)) in sessions.enumerate() {
        assert_eq!(conn.ok(&format!("SELECT {database}")), "OK");
        for pair in lines.windows(2) {
            let Some(command) = pair[0].strip_prefix("> ") else { continue };
            let reply = printed(&conn.call(&words(command)));
            let expected = match pair[1].strip_prefix("(integer) ").map(str::parse::<i64>) {
                Some(Ok(n)) => printed(&Value::Int(n)),
                _ => pair[1].clone(),
            };
            assert_eq!(reply, expected, "{path}: {command}");
            sources.push(path.clone());
        }
    }
    assert!(sources.len() >= 16, "only {} commands were run", sources.len());
    sources.dedup();
    assert_eq!(sources, ["README.md", "docs/commands.md", "docs/getting-started.md"]);
}

/// Returns a folder that looks like the project after a build.
pub fn built_project() -> Folder {
    let folder = Folder::fresh();
    let built = folder.path().join("target/release");
    fs::create_dir_all(&built).expect("the folder can be created");
    symlink(module_path(), built.join("libdlock.so")).expect("the link can be created");
    fs::write(folder.path().join("redis.conf.example"), EXAMPLE).expect("the file can be written");
    folder
}

/// Starts a program that writes to the log of the folder, and waits until the server is ready.
#[track_caller]
pub fn start(command: &mut Command, folder: &Folder, is_ready: impl Fn() -> bool) -> Child {
    let log = OpenOptions::new().create(true).append(true).open(folder.path().join("log")).expect("a log");
    command.envs(environment(folder.path())).stdin(Stdio::null());
    let command = command.stderr(log.try_clone().expect("the handle can be copied")).stdout(log);
    let mut child = command.spawn().expect("the program starts");
    until("the server is ready", || {
        assert!(child.try_wait().expect("its state").is_none(), "the server ended: {}", logged(folder));
        is_ready()
    });
    child
}

pub fn logged(folder: &Folder) -> String {
    fs::read_to_string(folder.path().join("log")).unwrap_or_default()
}

/// Returns the command that runs a script in a built project, with these scripts. Its `cargo` builds nothing.
pub fn script(folder: &Folder, kind: &ServerKind, name: &str, texts: &[(&str, &str)]) -> Command {
    let [bin, scripts] = ["bin", "scripts"].map(|name| folder.path().join(name));
    for folder in [&bin, &scripts] {
        fs::create_dir(folder).expect("the folder can be created");
    }
    symlink("/bin/true", bin.join("cargo")).expect("the link can be created");
    let server = format!("#!/bin/sh\nexec {} \"$@\"\n", kind.command.join(" "));
    fs::write(bin.join("server"), server).expect("the file can be written");
    fs::set_permissions(bin.join("server"), Permissions::from_mode(0o755)).expect("the mode can be set");
    for (name, text) in texts {
        fs::write(scripts.join(name), text).expect("the file can be written");
    }
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("a PATH"));
    let mut command = Command::new("bash");
    command.arg(scripts.join(name)).env("PATH", path).env("REDIS_SERVER", bin.join("server"));
    command
}

/// Runs the redis-cli command that a script printed and that contains `part`. Returns its output.
#[track_caller]
pub fn run_printed_command(folder: &Folder, part: &str) -> String {
    let output = logged(folder);
    let mut lines = output.lines().filter(|line| line.starts_with("  redis-cli"));
    let line = lines.find(|line| line.contains(part)).unwrap_or_else(|| panic!("no command: {output}"));
    let run = Command::new("sh").args(["-c", line]).output().expect("sh runs");
    String::from_utf8(run.stdout).expect("text").trim().to_string()
}

/// A running `make run` in a copy of the built project.
struct MakeRun {
    server: Child,
    folder: Folder,
    port: Port,
}

impl MakeRun {
    fn start(kind: &ServerKind, variables: &[(&str, &str)]) -> MakeRun {
        let (folder, port) = (built_project(), Port::claim());
        let mut command = script(&folder, kind, "run.sh", &[("run.sh", RUN), ("common.sh", COMMON)]);
        command.env("PORT", port.number().to_string()).envs(variables.iter().copied());
        let server = start(&mut command, &folder, || logged(&folder).contains("Ctrl-C ends it."));
        MakeRun { server, folder, port }
    }

    #[track_caller]
    fn run_printed_command(&self, part: &str) -> String {
        run_printed_command(&self.folder, part)
    }
}

impl Drop for MakeRun {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

#[each_server]
fn make_run_and_the_documented_sessions_run_as_shown(kind: &ServerKind) {
    let run = MakeRun::start(kind, &[]);
    let fence = run.run_printed_command("DLOCK.ACQUIRE");
    assert!(fence.parse::<u64>().is_ok_and(|fence| fence > 1_000_000_000_000_000), "{fence}");
    run_sessions(&mut Conn::open(run.port.number()));
}

#[each_server]
fn make_run_starts_the_example_configuration_and_explains_its_grace_period(kind: &ServerKind) {
    let shown = documents::blocks("docs/getting-started.md", "sh");
    assert!(shown.iter().any(|line| line == "make run CONF=redis.conf.example"), "{shown:?}");
    let run = MakeRun::start(kind, &[("CONF", "redis.conf.example")]);
    let refused = run.run_printed_command("DLOCK.ACQUIRE");
    assert!(refused.starts_with("GRACE ") && refused.contains("dlock.restart-grace 0"), "{refused}");
    assert_eq!(run.run_printed_command("dlock.restart-grace 0"), "OK");
    assert!(run.run_printed_command("DLOCK.ACQUIRE").parse::<u64>().is_ok());
    let mut conn = Conn::open(run.port.number());
    assert_eq!(conn.ok("CONFIG GET appendfsync").items()[1], "always");
    run_sessions(&mut conn);
}

/// Starts the server as the comment at the top of the example says. Only the port differs.
#[each_server]
fn the_example_configuration_keeps_holds_over_a_crash_and_starts_with_grace(kind: &ServerKind) {
    let (folder, port) = (built_project(), Port::claim());
    let start_example = || {
        let mut command = Command::new(&kind.command[0]);
        command.args(&kind.command[1..]).args(["redis.conf.example", "--port", &port.number().to_string()]);
        let is_ready = || TcpStream::connect(("127.0.0.1", port.number())).is_ok();
        start(command.current_dir(folder.path()), &folder, is_ready)
    };
    let mut server = start_example();
    let mut conn = Conn::open(port.number());
    // A first start begins a grace period, because the server cannot distinguish a first start from a loss of
    // all data.
    let refused = conn.say("DLOCK.ACQUIRE k a 60000");
    let error = refused.error();
    assert!(error.starts_with("GRACE ") && error.contains("grants no new"), "{error}");
    // 0 ends the grace period. The second command does not begin another one.
    assert_eq!(conn.ok("CONFIG SET dlock.restart-grace 0"), "OK");
    assert_eq!(conn.ok("CONFIG SET dlock.restart-grace 60000"), "OK");
    let fence = conn.ok("DLOCK.ACQUIRE k a 60000").int();
    // The module would log this warning if the example did not set notify-keyspace-events.
    assert!(!logged(&folder).contains("no client is notified"), "{}", logged(&folder));
    server.kill().and_then(|()| server.wait()).expect("the server is killed");
    let mut server = start_example();
    let mut conn = Conn::open(port.number());
    let shown = until_some("the server has loaded its files", || match conn.say("DLOCK.INSPECT k") {
        Value::Error(_) => None,
        shown => Some(shown),
    });
    let after = conn.say("DLOCK.ACQUIRE other a 60000");
    server.kill().and_then(|()| server.wait()).expect("the server is killed");
    assert_eq!(shown.field("fence"), &fence, "the hold survives, as the example says");
    assert!(after.error().starts_with("GRACE "), "each start has a grace period: {after:?}");
}
