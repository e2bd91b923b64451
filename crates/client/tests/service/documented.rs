//! The example of docs/clients.md, verbatim.

use dlock_client::{Client, Fence, Wait};
use std::error::Error;
use std::time::Duration;

use super::{masters, until_nothing_is_left, url};
use dlock_testkit::{ServerKind, documents, each_server};

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
    let this = include_str!("documented.rs");
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
