//! Locks for threads, without an async runtime:
//! `cargo run -p dlock-client --example blocking redis://127.0.0.1:6379`.

use dlock_client::{Client, Wait};
use std::error::Error;
use std::thread;
use std::time::Duration;

fn main() -> Result<(), Box<dyn Error>> {
    run(std::env::args().skip(1).collect())
}

pub fn run(servers: Vec<String>) -> Result<(), Box<dyn Error>> {
    let client = Client::builder().servers(servers).build_blocking()?;
    thread::scope(|scope| {
        for worker in 1..=3 {
            let client = client.clone();
            scope.spawn(move || {
                match client.lock("report").wait(Wait::For(Duration::from_secs(10))).acquire() {
                    // The guard releases the lock when it is dropped here.
                    Ok(guard) => println!("worker {worker}: locked for {:?}", guard.remaining()),
                    Err(why) => println!("worker {worker}: {why}"),
                }
            });
        }
    });
    client.close();
    Ok(())
}
