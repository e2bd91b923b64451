//! Several resources, all or none: `cargo run -p dlock-client --example several redis://127.0.0.1:6379`.

use dlock_client::Client;
use std::error::Error;
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    run(std::env::args().skip(1).collect()).await
}

pub async fn run(servers: Vec<String>) -> Result<(), Box<dyn Error>> {
    let client = Client::builder().servers(servers).build().await?;
    // Transfers in opposite directions never deadlock: both lock the accounts in the order of their names.
    let there = transfer(&client, "account:1", "account:2");
    let back = transfer(&client, "account:2", "account:1");
    tokio::try_join!(there, back)?;
    client.close().await;
    Ok(())
}

async fn transfer(client: &Client, from: &str, to: &str) -> Result<(), Box<dyn Error>> {
    let guards = client.lock_all([from, to]).each(|lock| lock.ttl(Duration::from_secs(10))).await?;
    println!("from {from} to {to}, with {} locks", guards.len());
    guards.release().await?;
    Ok(())
}
