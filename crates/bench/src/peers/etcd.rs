//! etcd through its JSON gateway: a session's lease, and Lock and Unlock as etcdctl calls them.

use std::io::{Error, Result};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use ureq::Agent;

use super::process::Process;
use crate::contend::LockClient;

pub struct Etcd(Process);

/// "lock" in base64, the gateway's form of bytes.
const NAME: &str = "bG9jaw==";

impl Etcd {
    pub fn start(program: &Path) -> Result<Etcd> {
        let mut process = Process::start(program, |folder, port| {
            // The testkit leaves the port 10,000 above to a cluster's bus.
            let [clients, peers] = [port, port + 10_000].map(|port| format!("http://127.0.0.1:{port}"));
            let options = [
                ("--data-dir", folder.join("data").display().to_string()),
                ("--listen-client-urls", clients.clone()),
                ("--advertise-client-urls", clients),
                ("--listen-peer-urls", peers.clone()),
                ("--initial-advertise-peer-urls", peers.clone()),
                ("--initial-cluster", format!("default={peers}")),
                ("--logger", "zap".to_owned()),
                ("--log-level", "error".to_owned()),
            ];
            Ok(options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect())
        })?;
        let port = process.port();
        process.wait_until(|| Client::new(port).map(drop))?;
        Ok(Etcd(process))
    }

    pub fn client(&self) -> Result<Client> {
        Client::new(self.0.port())
    }

    pub fn cpu(&self) -> Option<Duration> {
        self.0.cpu()
    }
}

pub struct Client {
    agent: Agent,
    port: u16,
    lease: Value,
    held: Value,
}

impl Client {
    fn new(port: u16) -> Result<Client> {
        let mut client =
            Client { agent: Agent::new_with_defaults(), port, lease: Value::Null, held: Value::Null };
        // Longer than the bench runs, so that nothing has to keep it alive.
        client.lease = client.call("lease/grant", json!({ "TTL": 3600 }), "ID")?;
        Ok(client)
    }

    fn call(&self, what: &str, request: Value, field: &str) -> Result<Value> {
        let url = format!("http://127.0.0.1:{}/v3/{what}", self.port);
        let mut response = self.agent.post(&url).send(request.to_string()).map_err(Error::other)?;
        let text = response.body_mut().read_to_string().map_err(Error::other)?;
        let mut answer: Value = serde_json::from_str(&text)?;
        match answer.get_mut(field) {
            Some(value) => Ok(value.take()),
            None => Err(Error::other(format!("{what}: etcd says {text}"))),
        }
    }
}

impl LockClient for Client {
    fn acquire(&mut self) -> Result<()> {
        self.held = self.call("lock/lock", json!({ "name": NAME, "lease": self.lease }), "key")?;
        Ok(())
    }

    fn release(&mut self) -> Result<()> {
        self.call("lock/unlock", json!({ "key": self.held }), "header").map(drop)
    }
}
