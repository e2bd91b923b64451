//! Runs the examples of the documents, of the crate's README and of `examples/`.

use super::*;
use dlock_client::Fence;
use dlock_testkit::{documents, project};
use std::error::Error;
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
        first_lock::run(urls()).await.expect("it bills");
        several::run(urls()).await.expect("both transfers");
        leader::run(urls(), 2).await.expect("two terms");
        for resource in ["invoice:42", "account:1", "leader"] {
            until_nothing_is_left(&servers, resource);
        }
        until("each server has granted", || servers.iter().all(|server| server.info("dlock_grants") != "0"));
    }
}

#[each_server]
fn the_example_without_a_runtime_runs(kind: &ServerKind) {
    let servers = masters(kind, 3);
    blocking::run(servers.iter().map(url).collect()).expect("three workers");
    until_nothing_is_left(&servers, "report");
}

#[test]
fn the_example_of_the_readme_is_first_lock() {
    let readme = include_str!("../../README.md");
    let block = readme.split("```rust,no_run\n").nth(1).and_then(|rest| rest.split("\n```").next());
    let example = include_str!("../../examples/first_lock.rs");
    let body = |text: &str| text.split_once("pub async fn run").map(|(_, body)| body.trim_end().to_string());
    let block = block.expect("a block");
    assert!(block.contains("guard.lost()"), "{block}");
    assert_eq!(body(block), body(example));
}

/// The example of docs/clients.md, verbatim.
async fn bill(servers: Vec<String>) -> Result<(), Box<dyn Error>> {
    let client = Client::builder().servers(servers).build().await?;
    let guard = client
        .lock("invoice:42")
        .ttl(Duration::from_secs(30)) // renewed at every third of it
        .wait(Wait::For(Duration::from_secs(10)))
        .fenced()
        .acquire()
        .await?;
    tokio::select! {
        // Each write carries the fence, and the store refuses lower fences.
        written = write(42, guard.fence()) => written?,
        // Returns before the lease ends, in time to stop.
        why = guard.lost() => return Err(why.into()),
    }
    guard.release().await?; // dropped, it would be released in the background
    Ok(())
}

async fn write(_invoice: u64, fence: Option<Fence>) -> Result<(), Box<dyn Error>> {
    fence.map(|_| ()).ok_or_else(|| "a fenced lock has a fence".into())
}

#[each_server]
async fn the_example_of_the_clients_page_runs(kind: &ServerKind) {
    let block = documents::blocks("docs/clients.md", "rust").join("\n");
    let this = include_str!("examples.rs");
    for part in block.split("\n\n") {
        assert!(this.contains(part), "not in this file:\n{part}");
    }
    assert!(block.contains("guard.lost()"), "{block}");
    for count in [1, 3] {
        let servers = masters(kind, count);
        bill(servers.iter().map(url).collect()).await.expect("the example runs");
        until_nothing_is_left(&servers, "invoice:42");
        assert!(
            servers.iter().any(|server| server.info("dlock_fence") != "0"),
            "the example has acquired the lock"
        );
    }
}

/// Returns a Python with redis-py, installed in build/ on the first run. The test runs on all servers at the
/// same time: only one thread installs it.
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

/// Redlock of docs/clients.md: a stock client, and only ACQUIRE and RELEASE.
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
    let held = |released| {
        let said = format!("held for 10 s more\na second one gets None\nreleased on {released} servers");
        (true, said, String::new())
    };
    let taken = (false, String::new(), "taken".to_string());
    assert_eq!(run(), held(5));
    assert_eq!(held_on(&servers, "invoice:42"), 0);

    let hold_as_other = |count: usize| {
        for server in &servers[..count] {
            assert!(server.connect().ok("DLOCK.ACQUIRE invoice:42 other 600000").int() > 0);
        }
    };
    hold_as_other(2);
    assert_eq!(run(), held(3));
    hold_as_other(3);
    assert_eq!(run(), taken);
    assert_eq!(held_on(&servers, "invoice:42"), 3, "the refused client has released its partial hold");

    for server in &servers {
        server.connect().ok("DLOCK.BREAK invoice:42");
    }
    servers[1].kill9();
    servers[4].kill9();
    assert_eq!(run(), held(3));
    servers[0].kill9();
    assert_eq!(run(), taken);
    assert_eq!(held_on(&servers, "invoice:42"), 0);
}
