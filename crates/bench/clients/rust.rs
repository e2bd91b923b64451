//! The Rust client under test: `clients.py` says what it reads and answers.
#![allow(clippy::disallowed_methods, reason = "a bench measures time")]

use std::io::{BufRead, Error, Result, stdin};
use std::time::{Duration, Instant};

use dlock_client::{Client, Guard};
use futures_util::future::join_all;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const TTL: Duration = Duration::from_secs(30);

struct Test {
    client: Client,
    started: Vec<JoinHandle<std::result::Result<Guard, String>>>,
    held: Vec<Guard>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let addresses = std::env::args().nth(1).ok_or_else(|| Error::other("addresses are missing"))?;
    let servers = addresses.split(',').map(|address| format!("redis://{address}"));
    let client = Client::builder().servers(servers).build().await.map_err(Error::other)?;
    let mut test = Test { client, started: Vec::new(), held: Vec::new() };
    let mut last = cpu()?;
    let (lines, mut next) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        stdin().lock().lines().map_while(Result::ok).try_for_each(|line| lines.send(line))
    });
    while let Some(line) = next.recv().await {
        let words: Vec<&str> = line.split(' ').collect();
        let number =
            |at: usize| -> f64 { words.get(at).and_then(|word| word.parse().ok()).unwrap_or_default() };
        let mut answer = match words[0] {
            "start" => test.start(number(1) as usize),
            "wait" => test.wait().await,
            "pause" => test.pause(Duration::from_secs_f64(number(1))).await,
            "release" => test.release().await,
            "contend" => test.contend(number(1) as usize, Duration::from_secs_f64(number(2))).await,
            other => return Err(Error::other(format!("unknown: {other}"))),
        };
        let now = cpu()?;
        answer["cpu_s"] = json!(now - last);
        last = now;
        println!("{answer}");
    }
    Ok(())
}

impl Test {
    fn start(&mut self, count: usize) -> Value {
        let acquire = |number| {
            let lock = self.client.lock(format!("key:{number}")).ttl(TTL);
            tokio::spawn(async move { lock.acquire().await.map_err(|why| why.to_string()) })
        };
        self.started = (0..count).map(acquire).collect();
        json!({})
    }

    async fn wait(&mut self) -> Value {
        let ended = join_all(self.started.drain(..)).await;
        let results = ended.into_iter().map(|task| task.unwrap_or_else(|why| Err(why.to_string())));
        let (holds, errors): (Vec<_>, Vec<_>) = results.partition(|result| result.is_ok());
        self.held = holds.into_iter().flatten().collect();
        outcome(errors.into_iter().filter_map(|error| error.err()).collect())
    }

    async fn pause(&self, time: Duration) -> Value {
        tokio::time::sleep(time).await;
        json!({ "lost": self.held.iter().filter(|guard| guard.loss().is_some()).count() })
    }

    async fn release(&mut self) -> Value {
        let ended = join_all(self.held.drain(..).map(|guard| tokio::spawn(guard.release()))).await;
        let errors = ended.into_iter().filter_map(|task| match task {
            Ok(Ok(_)) => None,
            Ok(Err(why)) => Some(why.to_string()),
            Err(why) => Some(why.to_string()),
        });
        outcome(errors.collect())
    }

    async fn contend(&self, count: usize, time: Duration) -> Value {
        let end = Instant::now() + time;
        let contend = || {
            // Each contender is an owner of its own.
            let client = self.client.session();
            tokio::spawn(async move {
                let mut grants = 0;
                while Instant::now() < end {
                    let guard =
                        client.lock("contended").ttl(TTL).acquire().await.map_err(|why| why.to_string())?;
                    grants += 1;
                    guard.release().await.map_err(|why| why.to_string())?;
                }
                Ok::<usize, String>(grants)
            })
        };
        let ended = join_all((0..count).map(|_| contend()).collect::<Vec<_>>()).await;
        let (mut grants, mut errors) = (0, Vec::new());
        for task in ended {
            match task.unwrap_or_else(|why| Err(why.to_string())) {
                Ok(count) => grants += count,
                Err(why) => errors.push(why),
            }
        }
        let mut answer = outcome(errors);
        answer["grants"] = json!(grants);
        answer
    }
}

fn outcome(errors: Vec<String>) -> Value {
    json!({ "failed": errors.len(), "why": errors.first().cloned().unwrap_or_default() })
}

/// Returns the processor time of this process, in s.
fn cpu() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    Ok((usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 / 1e6)
}
