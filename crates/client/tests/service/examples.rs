//! Runs the examples of the documents, of the crate's README and of `examples/`.

use super::*;
use dlock_testkit::{documents, project};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

#[allow(dead_code)]
#[path = "../../examples/blocking.rs"]
mod blocking;
#[allow(dead_code)]
#[path = "../../examples/first_lock.rs"]
mod first_lock;
#[allow(dead_code)]
#[path = "../../examples/leader.rs"]
mod leader;
#[allow(dead_code)]
#[path = "../../examples/several.rs"]
mod several;

#[each_server]
async fn each_example_runs_on_one_server_and_on_a_quorum(kind: &ServerKind) {
    for count in [1, 3] {
        let servers = masters(kind, count);
        let urls = || servers.iter().map(url).collect();
        first_lock::run(urls()).await.expect("the example runs");
        several::run(urls()).await.expect("the example runs");
        leader::run(urls(), 2).await.expect("the example leads twice");
        for resource in ["invoice:42", "account:1", "leader"] {
            until_nothing_is_left(&servers, resource);
        }
        until("each server has granted", || servers.iter().all(|server| server.info("dlock_grants") != "0"));
    }
}

#[each_server]
fn the_example_without_a_runtime_runs(kind: &ServerKind) {
    let servers = masters(kind, 3);
    blocking::run(servers.iter().map(url).collect()).expect("the three workers end");
    until_nothing_is_left(&servers, "report");
}

#[test]
fn the_readme_and_the_clients_page_show_first_lock() {
    let (_, example) = include_str!("../../examples/first_lock.rs").split_once("\n\npub ").expect("run()");
    assert!(example.contains("guard.lost()"), "{example}");
    for (page, language) in [("crates/client/README.md", "rust,no_run"), ("docs/clients.md", "rust")] {
        let shown = documents::blocks(page, language).join("\n");
        assert!(shown.contains(example.trim_end()), "{page} shows another program:\n{shown}");
    }
}

/// Returns a Python with redis-py, installed in build/ on the first run. The test runs on all servers at the
/// same time, so only one thread installs it.
fn python() -> &'static Path {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(installed_python)
}

fn installed_python() -> PathBuf {
    let home = project().join("build/python");
    let python = home.join("bin/python");
    let works =
        || Command::new(&python).args(["-c", "import redis"]).output().is_ok_and(|out| out.status.success());
    if works() {
        return python;
    }
    let run = |command: &mut Command, missing: &str| {
        let output = command.output().unwrap_or_else(|error| panic!("{missing}: {error}"));
        assert!(output.status.success(), "{missing}:\n{}", String::from_utf8_lossy(&output.stderr));
    };
    let missing = "this test needs python3 with venv (Debian: python3-venv) for the example in Python";
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&home), missing);
    let missing = "this test needs redis-py, and pip could not install it";
    run(Command::new(home.join("bin/pip")).args(["install", "--quiet", "redis>=5,<8"]), missing);
    assert!(works(), "redis-py is installed and does not work");
    python
}

/// docs/clients.md shows a part of tests/redlock.py, which uses redis-py and only ACQUIRE and RELEASE.
#[each_server]
fn the_python_redlock_of_the_clients_page_needs_a_majority_and_leaves_nothing_behind(kind: &ServerKind) {
    let servers = masters(kind, 5);
    let run = || {
        let script = project().join("tests/redlock.py");
        let output = Command::new(python()).arg(script).args(servers.iter().map(url)).output();
        let output = output.expect("python runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text").trim().to_string();
        (output.status.success(), text(output.stdout), text(output.stderr))
    };
    let assert_acquires_and_releases_on = |released| {
        let (succeeded, shown, errors) = run();
        assert!(succeeded && errors.is_empty() && shown.starts_with("held for "), "{shown}{errors}");
        let rest = format!(" s more\nanother client gets None\nreleased on {released} servers");
        assert!(shown.ends_with(&rest), "{shown}");
    };
    let taken = (false, String::new(), "taken".to_string());
    assert_acquires_and_releases_on(5);
    assert_eq!(held_on(&servers, "invoice:42"), 0);

    let hold_as_other = |count: usize| {
        for server in &servers[..count] {
            assert!(server.connect().ok("DLOCK.ACQUIRE invoice:42 other 600000").int() > 0);
        }
    };
    hold_as_other(2);
    assert_acquires_and_releases_on(3);
    hold_as_other(3);
    assert_eq!(run(), taken);
    assert_eq!(held_on(&servers, "invoice:42"), 3, "the refused client has released its partial hold");

    for server in &servers {
        server.connect().ok("DLOCK.BREAK invoice:42");
    }
    servers[1].kill9();
    servers[4].kill9();
    assert_acquires_and_releases_on(3);
    servers[0].kill9();
    assert_eq!(run(), taken);
    assert_eq!(held_on(&servers, "invoice:42"), 0);
}
