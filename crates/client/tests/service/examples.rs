//! Runs the files of `examples/` and the example of the crate's README.

use super::{masters, until_nothing_is_left, url};
use dlock_testkit::{ServerKind, each_server, until};

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
        until("all were acquired", || servers.iter().all(|server| server.info("dlock_grants") != "0"));
    }
}

#[each_server]
fn the_example_without_a_runtime_runs(kind: &ServerKind) {
    let servers = masters(kind, 3);
    blocking::run(servers.iter().map(url).collect()).expect("three workers");
    until_nothing_is_left(&servers, "report");
}

#[test]
fn the_readmes_example_is_the_first() {
    let readme = include_str!("../../README.md");
    let block = readme.split("```rust,no_run\n").nth(1).and_then(|rest| rest.split("\n```").next());
    let example = include_str!("../../examples/first_lock.rs");
    let body = |text: &str| text.split_once("pub async fn run").map(|(_, body)| body.trim_end().to_string());
    let block = block.expect("a block");
    assert!(block.contains("guard.lost()"), "{block}");
    assert_eq!(body(block), body(example));
}
