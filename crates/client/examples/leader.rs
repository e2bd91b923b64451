//! One leader at a time: `cargo run -p dlock-client --example leader redis://127.0.0.1:6379`. Start it
//! several times, and end the leader.

use dlock_client::{Client, Guard, Leader};
use std::error::Error;
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    run(std::env::args().skip(1).collect(), u32::MAX).await
}

/// Leads `terms` times.
pub async fn run(servers: Vec<String>, terms: u32) -> Result<(), Box<dyn Error>> {
    let client = Client::builder().servers(servers).build().await?;
    let leader = Leader::new(&client, "leader")
        .options(|lock| lock.ttl(Duration::from_secs(10)).label("example").fenced());
    for _ in 0..terms {
        // Waits in the queue while another process leads, and while servers are down. When the term is lost,
        // waits again.
        leader.lead(lead).await?;
    }
    client.close().await;
    Ok(())
}

/// The work of the leader. The blocking part checks the hold itself, because `select!` cannot stop it.
async fn lead(guard: Guard) {
    println!("leading, with the fence {:?}", guard.fence());
    let stop = guard.cancellation();
    let counted = tokio::task::spawn_blocking(move || (0..1000).take_while(|_| !stop.is_cancelled()).count());
    println!("the leader has counted to {}", counted.await.unwrap_or_default());
}
