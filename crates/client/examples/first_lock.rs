//! A first lock: `cargo run -p dlock-client --example first_lock redis://127.0.0.1:6379`. With three or five
//! addresses, the same program runs on a quorum.

use dlock_client::{Client, Wait};
use std::error::Error;
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    run(std::env::args().skip(1).collect()).await
}

pub async fn run(servers: Vec<String>) -> Result<(), Box<dyn Error>> {
    let client = Client::builder().servers(servers).build().await?;
    let guard = client
        .lock("invoice:42")
        .ttl(Duration::from_secs(30)) // renewed after each third of it
        .wait(Wait::For(Duration::from_secs(10)))
        .fenced()
        .await?;
    tokio::select! {
        () = bill(42, guard.fence().map_or(0, |fence| fence.get())) => {}
        // Returns only if the hold is lost, and does so before the lease ends.
        why = guard.lost() => return Err(why.into()),
    }
    guard.release().await?; // a dropped guard is released in the background
    client.close().await; // before the process exits: waits for the work in the background
    Ok(())
}

/// Writes with the fence, so that the store can refuse a holder that was paused past its lease.
async fn bill(invoice: u32, fence: u64) {
    println!("invoice {invoice} is billed, with the fence {fence}");
}
