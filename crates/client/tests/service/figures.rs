//! What waiting costs a client: figures, printed. They run alone:
//! `cargo test -p dlock-client --test service figures:: -- --ignored --nocapture --test-threads 1`

use dlock_client::{Client, Instant, now};
use std::time::Duration;
use tokio::time::sleep;

use super::{LONG, client, masters};
use dlock_testkit::{Server, ServerKind, each_server_in_turn};

/// Runs it on each server, over so many masters.
fn measure(counts: &[usize], what: &str, figure: impl AsyncFn(&[Server], &Client) -> String + Sync) {
    each_server_in_turn(|kind: &ServerKind| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        for &count in counts {
            let servers = masters(kind, count);
            for server in &servers {
                server.connect().ok("CONFIG SET dlock.max-waiters-per-key 100000");
            }
            let figure = runtime.as_ref().expect("a runtime").block_on(async {
                let client = client(&servers).await;
                figure(&servers, &client).await
            });
            println!("{}, {count} masters: {what}: {figure}", kind.name);
        }
    });
}

async fn until_waiting(servers: &[Server], waits: usize) {
    let number = |server: &Server, field| server.info(field).parse::<usize>().expect("a number");
    let waiting = |server| number(server, "dlock_queued") + number(server, "dlock_waiting");
    while servers.iter().map(waiting).sum::<usize>() < waits {
        sleep(Duration::from_millis(1)).await;
    }
}

/// Jain's index: 1 where all have the same.
fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = (shares.iter().sum::<f64>(), shares.iter().map(|share| share * share).sum::<f64>());
    sum * sum / (shares.len() as f64 * squares)
}

#[test]
#[ignore = "a figure"]
fn from_a_release_to_the_waiter() {
    measure(&[1, 3], "release -> acquired, one waiter", async |servers, client| {
        let mut took: Vec<Duration> = Vec::new();
        for _ in 0..300 {
            let guard = client.lock("r").ttl(LONG).acquire().await.expect("it is free");
            let lock = client.lock("r").ttl(LONG);
            let waits = tokio::spawn(async move { (lock.acquire().await.expect("a handoff"), now()) });
            until_waiting(servers, 1).await;
            let begun: Instant = now();
            guard.release().await.expect("it is held");
            let (guard, acquired) = waits.await.expect("no panic");
            took.push(acquired.saturating_since(begun));
            guard.release().await.expect("it is held");
        }
        took.sort();
        format!("p50 {:?}, p90 {:?}, p99 {:?}", took[150], took[270], took[297])
    });
}

/// So many tasks of one process take turns for so long.
fn contend(counts: &[usize], tasks: usize, length: Duration) {
    measure(counts, &format!("{tasks} tasks, one lock, {length:?}"), async |servers, client| {
        let (begun, end) = (now(), now() + length);
        let tasks: Vec<_> = (0..tasks)
            .map(|_| {
                let client = client.clone();
                tokio::spawn(async move {
                    let mut count = 0;
                    while now() < end {
                        let guard = client.lock("r").ttl(LONG).acquire().await.expect("its turn comes");
                        count += 1;
                        // Not confirmed in time, it goes on in the background.
                        let _ = guard.release().await;
                    }
                    f64::from(count)
                })
            })
            .collect();
        sleep(length / 2).await;
        let connections = servers[0].info("connected_clients");
        let mut counts = Vec::new();
        for task in tasks {
            counts.push(task.await.expect("no panic"));
        }
        let rate = counts.iter().sum::<f64>() / now().saturating_since(begun).as_secs_f64();
        format!("{rate:.0} acquisitions/s, Jain {:.4}, {connections} connections", jain(&counts))
    });
}

#[test]
#[ignore = "a figure"]
fn a_thousand_tasks_contend() {
    contend(&[1, 3], 1_000, Duration::from_secs(10));
}

#[test]
#[ignore = "a figure"]
fn ten_thousand_tasks_contend() {
    contend(&[1, 3], 10_000, Duration::from_secs(30));
}
