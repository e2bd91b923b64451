//! One leader at a time: `cargo run -p dlock-client --example leader redis://127.0.0.1:6379`. Start it
//! several times, and end the leader.

use dlock_client::{Client, Guard};
use std::error::Error;
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    run(std::env::args().skip(1).collect(), u32::MAX).await
}

/// Leads `terms` times.
pub async fn run(servers: Vec<String>, terms: u32) -> Result<(), Box<dyn Error>> {
    let client = Client::builder().servers(servers).build().await?;
    for term in 1..=terms {
        // Waits in the queue while another process leads, and while servers are down.
        let guard = client.lock("leader").ttl(Duration::from_secs(10)).label("example").fenced().await?;
        println!("term {term}: leading");
        tokio::select! {
            why = guard.lost() => println!("term {term}: no longer the leader: {why}"),
            () = lead(&guard) => guard.release().await?,
        }
    }
    client.close().await;
    Ok(())
}

/// The work of the leader. The blocking part checks the hold itself, because `select!` cannot stop it.
async fn lead(guard: &Guard) {
    let stop = guard.cancellation();
    let counted = tokio::task::spawn_blocking(move || (0..1000).take_while(|_| !stop.is_cancelled()).count());
    println!("the leader has counted to {}", counted.await.unwrap_or_default());
}
