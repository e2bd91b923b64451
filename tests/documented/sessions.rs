//! Runs the sessions of the documents, `make run` and the example configuration.

use std::fs::{self, File, Permissions};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Child, Command, Stdio};

use dlock_testkit::{
    Conn, Folder, Port, ServerKind, Value, documents, each_server, environment, module_path, until,
    until_some,
};

const EXAMPLE: &str = include_str!("../../redis.conf.example");

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

/// Splits a command line into words; a quoted word is one.
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
fn try_the_sessions(conn: &mut Conn) {
    let mut shown = Vec::new();
    let sessions = documents::all().into_iter().map(|path| (documents::blocks(&path, "text"), path));
    for (database, (lines, path)) in
        sessions.filter(|(lines, _)| lines.iter().any(|line| line.starts_with("> "))).enumerate()
    {
        assert_eq!(conn.ok(&format!("SELECT {database}")), "OK");
        for pair in lines.windows(2) {
            let Some(command) = pair[0].strip_prefix("> ") else { continue };
            let reply = printed(&conn.call(&words(command)));
            let expected = match pair[1].strip_prefix("(integer) ").map(str::parse::<i64>) {
                Some(Ok(n)) => printed(&Value::Int(n)),
                _ => pair[1].clone(),
            };
            assert_eq!(reply, expected, "{path}: {command}");
            shown.push(path.clone());
        }
    }
    assert!(shown.len() >= 16, "{} commands were tried", shown.len());
    shown.dedup();
    assert_eq!(shown, ["README.md", "docs/commands.md", "docs/getting-started.md"]);
}

/// `make run` after `make setup`, in a folder that looks like the project after a build.
struct MakeRun {
    server: Child,
    folder: Folder,
    port: Port,
}

impl MakeRun {
    fn start(kind: &ServerKind, variables: &[(&str, &str)]) -> MakeRun {
        let (folder, port) = (Folder::fresh(), Port::claim());
        let (bin, scripts) = (folder.path().join("bin"), folder.path().join("scripts"));
        for folder in [&bin, &scripts, &folder.path().join("target/release")] {
            fs::create_dir_all(folder).expect("a folder");
        }
        symlink(module_path(), folder.path().join("target/release/libdlock.so"))
            .expect("a link to the module");
        symlink("/bin/true", bin.join("cargo")).expect("what builds nothing, for all is built");
        let server = format!("#!/bin/sh\nexec {} \"$@\"\n", kind.command.join(" "));
        fs::write(bin.join("server"), server).expect("a server");
        fs::set_permissions(bin.join("server"), Permissions::from_mode(0o755)).expect("it is ours");
        fs::write(folder.path().join("redis.conf.example"), EXAMPLE).expect("a copy");
        for (name, text) in [("run.sh", include_str!("../../scripts/run.sh")), ("common.sh", COMMON)] {
            fs::write(scripts.join(name), text).expect("a script");
        }
        let log = File::create(folder.path().join("log")).expect("a log");
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("a PATH"));
        let server = Command::new("bash")
            .arg(scripts.join("run.sh"))
            .envs(environment(folder.path()))
            .env("PATH", path)
            .env("REDIS_SERVER", bin.join("server"))
            .env("PORT", port.number().to_string())
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("a log"))
            .stdout(log)
            .spawn();
        let mut run = MakeRun { server: server.expect("it starts"), folder, port };
        until("make run prints its instructions", || {
            assert!(run.server.try_wait().expect("its state").is_none(), "it ended: {}", run.said());
            run.said().contains("Ctrl-C ends it.")
        });
        run
    }

    fn said(&self) -> String {
        logged(&self.folder)
    }

    /// Runs the command that `make run` suggests, and returns its output.
    #[track_caller]
    fn try_the_advice(&self, about: &str) -> String {
        let said = self.said();
        let mut lines = said.lines().filter(|line| line.starts_with("  redis-cli"));
        let line = lines.find(|line| line.contains(about)).unwrap_or_else(|| panic!("nothing: {said}"));
        let done = Command::new("sh").args(["-c", line]).output().expect("sh runs");
        String::from_utf8(done.stdout).expect("text").trim().to_string()
    }
}

impl Drop for MakeRun {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

const COMMON: &str = include_str!("../../scripts/common.sh");

#[each_server]
fn make_run_and_the_documented_sessions_run_as_shown(kind: &ServerKind) {
    let run = MakeRun::start(kind, &[]);
    let fence = run.try_the_advice("DLOCK.ACQUIRE");
    assert!(fence.parse::<u64>().is_ok_and(|fence| fence > 1_000_000_000_000_000), "{fence}");
    try_the_sessions(&mut Conn::open(run.port.number()));
}

/// The session runs without an installed server in the PATH.
#[each_server]
fn make_run_starts_the_example_configuration_and_explains_its_grace_period(kind: &ServerKind) {
    let shown = documents::blocks("docs/getting-started.md", "sh");
    assert!(shown.iter().any(|line| line == "make run CONF=redis.conf.example"), "{shown:?}");
    let run = MakeRun::start(kind, &[("CONF", "redis.conf.example")]);
    let refused = run.try_the_advice("DLOCK.ACQUIRE");
    assert!(refused.starts_with("GRACE ") && refused.contains("dlock.restart-grace 0"), "{refused}");
    assert_eq!(run.try_the_advice("dlock.restart-grace 0"), "OK");
    assert!(run.try_the_advice("DLOCK.ACQUIRE").parse::<u64>().is_ok());
    let mut conn = Conn::open(run.port.number());
    assert_eq!(conn.ok("CONFIG GET appendfsync").items()[1], "always");
    try_the_sessions(&mut conn);
}

/// Starts the example as its own comment says, in a folder that looks like the project after a build. Only
/// the port differs.
#[each_server]
fn the_example_configuration_starts_a_server(kind: &ServerKind) {
    let folder = Folder::fresh();
    let built = folder.path().join("target/release");
    fs::create_dir_all(&built).expect("a folder");
    symlink(module_path(), built.join("libdlock.so")).expect("a link to the module");
    fs::write(folder.path().join("redis.conf.example"), EXAMPLE).expect("a copy");
    let log = File::create(folder.path().join("log")).expect("a log");
    let port = Port::claim();
    let (program, arguments) = kind.command.split_first().expect("a program");
    let start = || {
        let mut server = Command::new(program)
            .args(arguments)
            .args(["redis.conf.example", "--port", &port.number().to_string()])
            .envs(environment(folder.path()))
            .current_dir(folder.path())
            .stdout(log.try_clone().expect("a log"))
            .spawn()
            .expect("it starts");
        until("the server answers", || {
            assert!(server.try_wait().expect("its state").is_none(), "it ended: {}", logged(&folder));
            TcpStream::connect(("127.0.0.1", port.number())).is_ok()
        });
        server
    };
    let mut server = start();
    let mut conn = Conn::open(port.number());
    // The server cannot distinguish a first start from a loss of all data.
    let refused = conn.say("DLOCK.ACQUIRE k a 60000");
    assert!(
        refused.error().starts_with("GRACE ") && refused.error().contains("grants no new"),
        "{refused:?}"
    );
    assert_eq!(conn.ok("CONFIG SET dlock.restart-grace 0"), "OK");
    assert_eq!(conn.ok("CONFIG SET dlock.restart-grace 60000"), "OK");
    let fence = conn.ok("DLOCK.ACQUIRE k a 60000").int();
    assert!(!logged(&folder).contains("no client is notified"), "{}", logged(&folder));
    server.kill().expect("killed");
    server.wait().expect("ended");
    let mut server = start();
    let mut conn = Conn::open(port.number());
    let shown = until_some("the server has loaded its files", || match conn.say("DLOCK.INSPECT k") {
        Value::Error(_) => None,
        shown => Some(shown),
    });
    let after = conn.say("DLOCK.ACQUIRE other a 60000");
    server.kill().expect("killed");
    server.wait().expect("ended");
    assert_eq!(shown.field("fence"), &fence, "the hold survives, as the example says");
    assert!(after.error().starts_with("GRACE "), "each start has a grace period: {after:?}");
}

fn logged(folder: &Folder) -> String {
    fs::read_to_string(folder.path().join("log")).unwrap_or_default()
}
