//! ZooKeeper by its lock recipe: an ephemeral sequential node, and a watch on the one before.

use std::fs;
use std::io::{Error, Result};
use std::path::Path;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use zookeeper_client::{Acls, CreateMode, LockPrefix};

use super::process::Process;
use crate::contend::LockClient;

pub struct Zookeeper(Process);

const FOLDER: &str = "/lock";

impl Zookeeper {
    pub fn start(program: &Path) -> Result<Zookeeper> {
        let mut process = Process::start(program, |folder, port| {
            let file = folder.join("zoo.cfg");
            let lines = format!(
                "tickTime=2000\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n\
                 admin.enableServer=false\n",
                folder.display()
            );
            fs::write(&file, lines)?;
            Ok(vec![file.display().to_string()])
        })?;
        let port = process.port();
        let first = process.wait_until(|| Client::new(port))?;
        let made = first.runtime.block_on(async {
            let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
            first.client.create(FOLDER, &[], &options).await.map(drop)
        });
        made.map_err(Error::other)?;
        Ok(Zookeeper(process))
    }

    pub fn client(&self) -> Result<Client> {
        Client::new(self.0.port())
    }

    pub fn cpu(&self) -> Option<Duration> {
        self.0.cpu()
    }
}

pub struct Client {
    runtime: Runtime,
    client: zookeeper_client::Client,
    held: String,
}

impl Client {
    fn new(port: u16) -> Result<Client> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let mut connector = zookeeper_client::Client::connector();
        // The client keeps its session alive only while in use, and the other contenders take their turns in
        // between.
        connector = connector.with_session_timeout(Duration::from_secs(40));
        let client =
            runtime.block_on(connector.connect(&format!("127.0.0.1:{port}"))).map_err(Error::other)?;
        Ok(Client { runtime, client, held: String::new() })
    }
}

impl LockClient for Client {
    fn acquire(&mut self) -> Result<()> {
        self.held = self
            .runtime
            .block_on(async {
                let prefix = LockPrefix::new_curator(FOLDER, "latch-")?;
                let lock = self.client.lock(prefix, &[], Acls::anyone_all()).await?;
                let path = lock.lock_path().to_owned();
                // Dropped, it would be released some time later.
                std::mem::forget(lock);
                Ok::<_, zookeeper_client::Error>(path)
            })
            .map_err(Error::other)?;
        Ok(())
    }

    fn release(&mut self) -> Result<()> {
        self.runtime.block_on(self.client.delete(&self.held, None)).map_err(Error::other)
    }
}
