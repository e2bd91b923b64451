//! The servers under test.

use std::any::Any;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread::{self, Scope, ScopedJoinHandle};
use std::{env, fs, io};

use crate::project::project;

/// A server program that the tests run on.
#[derive(Clone, Debug)]
pub struct ServerKind {
    /// Name in reports: "redis-server", "valkey-8.0".
    pub name: String,
    /// Absolute path of the program, or of a wrapper with its arguments. Each start appends the server's own
    /// arguments.
    pub command: Vec<String>,
    /// Version that the program reports: "7.0.15". After 7.2, Valkey and Redis number their versions
    /// separately: see `is_valkey`.
    pub version: String,
    pub is_valkey: bool,
}

impl ServerKind {
    /// Asks the program for its version, because `name` may be anything.
    pub fn identify(name: &str, command: Vec<String>) -> ServerKind {
        let program = command.first().unwrap_or_else(|| panic!("no path for the server {name}"));
        assert!(
            Path::new(program).is_absolute(),
            "the path of the server {name} must be absolute: {program}"
        );
        let output = Command::new(program).args(&command[1..]).arg("--version").output();
        let output = output.unwrap_or_else(|error| panic!("{program} does not run: {error}"));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = text.split_whitespace().find_map(|word| word.strip_prefix("v="));
        let version = version
            .unwrap_or_else(|| panic!("{program} --version prints no version: {output:?}"))
            .to_string();
        ServerKind { name: name.to_string(), command, version, is_valkey: text.starts_with("Valkey") }
    }

    pub fn is_at_least(&self, major: u32, minor: u32) -> bool {
        let mut parts = self.version.split('.').map(|part| part.parse().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (major, minor)
    }
}

/// Runs the test on all servers at the same time, because tests mostly wait. Fails with the names of the
/// servers on which the test failed, or if there is no server.
#[track_caller]
pub fn each_server(test: impl Fn(&ServerKind) + Sync) {
    let results = thread::scope(|scope| {
        let running: Vec<_> = kinds().iter().map(|kind| start(scope, kind, &test)).collect();
        running.into_iter().map(ScopedJoinHandle::join).collect()
    });
    assert_passed(results);
}

/// Like [`each_server`], but on one server after the other, for tests that need the whole machine.
#[track_caller]
pub fn each_server_in_turn(test: impl Fn(&ServerKind) + Sync) {
    let alone = |kind| thread::scope(|scope| start(scope, kind, &test).join());
    assert_passed(kinds().iter().map(alone).collect());
}

/// Like [`each_server`], for tests that replace functions of the C library by a preloaded library (a shim).
/// Leaves out Valkey 9 and later, which load modules with RTLD_DEEPBIND: the module would not call the shim.
#[track_caller]
pub fn each_shimmed_server(test: impl Fn(&ServerKind) + Sync) {
    each_server(|kind| {
        if kind.is_valkey && kind.is_at_least(9, 0) {
            eprintln!("left out on {}: its module does not call a preloaded library", kind.name);
        } else {
            test(kind);
        }
    });
}

/// Starts the test in a thread with the server's name, which its panics show.
fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    kind: &'scope ServerKind,
    test: &'scope (impl Fn(&ServerKind) + Sync),
) -> ScopedJoinHandle<'scope, ()> {
    let named = thread::Builder::new().name(kind.name.clone());
    named.spawn_scoped(scope, move || test(kind)).expect("a thread can be started")
}

#[track_caller]
fn assert_passed(results: Vec<thread::Result<()>>) {
    let mut failures = Vec::new();
    for (kind, result) in kinds().iter().zip(results) {
        // The thread has already printed the panic with its source line and the server's log.
        if let Err(panic) = result {
            let lines: Vec<&str> = message(&*panic).lines().take(3).collect();
            failures.push(format!("on {} ({}): {}", kind.name, kind.version, lines.join("\n")));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Returns the servers of `DLOCK_TEST_SERVERS="name=/path,name=/wrapper argument"`. If it is not set, returns
/// the distribution's Redis and the servers in build/servers.
fn kinds() -> &'static [ServerKind] {
    static KINDS: OnceLock<Vec<ServerKind>> = OnceLock::new();
    KINDS.get_or_init(|| {
        let found = match env::var("DLOCK_TEST_SERVERS") {
            Ok(list) => listed(&list),
            Err(_) => installed(),
        };
        assert!(!found.is_empty(), "no server to test on: `make setup` installs one");
        let names: Vec<String> =
            found.iter().map(|kind| format!("{} ({})", kind.name, kind.version)).collect();
        // Directly to stderr, because the output of a passing test is not shown.
        writeln!(io::stderr(), "servers under test: {}", names.join(", ")).expect("stderr can be written");
        found
    })
}

fn listed(list: &str) -> Vec<ServerKind> {
    let entries = list.split(',').filter(|entry| !entry.trim().is_empty());
    entries
        .map(|entry| {
            let (name, command) = entry
                .split_once('=')
                .unwrap_or_else(|| panic!("DLOCK_TEST_SERVERS has {entry:?} in place of name=/path"));
            ServerKind::identify(name.trim(), command.split_whitespace().map(str::to_string).collect())
        })
        .collect()
}

fn installed() -> Vec<ServerKind> {
    let mut found = Vec::new();
    if Path::new("/usr/bin/redis-server").exists() {
        found.push(ServerKind::identify("redis-server", vec!["/usr/bin/redis-server".to_string()]));
    }
    let folder = project().join("build/servers");
    let mut unpacked: Vec<PathBuf> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .map(|entry| entry.expect("build/servers can be read").path().join("server"))
        .filter(|server| server.exists())
        .collect();
    unpacked.sort();
    for server in unpacked {
        let folder = server.parent().and_then(Path::file_name).expect("build/servers/NAME/server");
        let name = folder.to_string_lossy().into_owned();
        found.push(ServerKind::identify(&name, vec![server.to_string_lossy().into_owned()]));
    }
    found
}

fn message(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "a panic without a text",
    }
}
