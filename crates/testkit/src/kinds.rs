//! Which servers the tests run on.

use std::any::Any;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread::{self, Scope, ScopedJoinHandle};
use std::{env, fs, io};

use crate::project::project;

/// One server program of the matrix.
#[derive(Clone, Debug)]
pub struct ServerKind {
    /// What reports call it: "redis-server", "valkey-8.0".
    pub name: String,
    /// An absolute path and, for wrappers, arguments that stand before the server's own.
    pub command: Vec<String>,
    /// What it says itself: "7.0.15". Valkey counts on from its own 7.2: look at `is_valkey` too.
    pub version: String,
    pub is_valkey: bool,
}

impl ServerKind {
    /// Asks the program who it is: what a name in a list says proves nothing.
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
        let version =
            version.unwrap_or_else(|| panic!("{program} --version says no version: {output:?}")).to_string();
        ServerKind { name: name.to_string(), command, version, is_valkey: text.starts_with("Valkey") }
    }

    pub fn is_at_least(&self, major: u32, minor: u32) -> bool {
        let mut parts = self.version.split('.').map(|part| part.parse().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (major, minor)
    }
}

/// Runs the test on each server, on all at the same time: tests mostly wait. Fails naming each server on
/// which it failed, and when there is none to run on.
#[track_caller]
pub fn each_server(test: impl Fn(&ServerKind) + Sync) {
    let results = thread::scope(|scope| {
        let running: Vec<_> = kinds().iter().map(|kind| start(scope, kind, &test)).collect();
        running.into_iter().map(ScopedJoinHandle::join).collect()
    });
    assert_well(results);
}

/// [`each_server`] for a test that keeps the machine busy, or measures it: one server after the other.
#[track_caller]
pub fn each_server_in_turn(test: impl Fn(&ServerKind) + Sync) {
    let alone = |kind| thread::scope(|scope| start(scope, kind, &test).join());
    assert_well(kinds().iter().map(alone).collect());
}

/// [`each_server`] without Valkey 9 and later, where a preloaded C library reaches only the server itself,
/// not the module.
#[track_caller]
pub fn each_shimmed_server(test: impl Fn(&ServerKind) + Sync) {
    each_server(|kind| {
        if kind.is_valkey && kind.is_at_least(9, 0) {
            eprintln!("left out on {}: no shim reaches a module there", kind.name);
        } else {
            test(kind);
        }
    });
}

/// In a thread that is named after the server, as its panics are then.
fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    kind: &'scope ServerKind,
    test: &'scope (impl Fn(&ServerKind) + Sync),
) -> ScopedJoinHandle<'scope, ()> {
    let named = thread::Builder::new().name(kind.name.clone());
    named.spawn_scoped(scope, move || test(kind)).expect("a thread can be started")
}

#[track_caller]
fn assert_well(results: Vec<thread::Result<()>>) {
    let mut failures = Vec::new();
    for (kind, result) in kinds().iter().zip(results) {
        // The panic itself was already printed with its place and its log.
        if let Err(panic) = result {
            let lines: Vec<&str> = message(&*panic).lines().take(3).collect();
            failures.push(format!("on {} ({}): {}", kind.name, kind.version, lines.join("\n")));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The matrix: `DLOCK_TEST_SERVERS="name=/path,name=/wrapper argument"`, or else the distribution's Redis and
/// what is unpacked in build/servers.
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
        // Straight to stderr, past the capture of test output: a passing run too should say what it ran on.
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
                .unwrap_or_else(|| panic!("DLOCK_TEST_SERVERS wants name=/path, not {entry:?}"));
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
