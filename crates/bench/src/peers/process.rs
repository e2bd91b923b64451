//! A peer's server: a process, with a folder that is removed when it ends.

use std::fs;
use std::io::{Error, Result};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use dlock_testkit::{Folder, Port};

use crate::server::dies_with_us;

pub struct Process {
    child: Child,
    folder: Folder,
    port: Port,
}

impl Process {
    /// `arguments` gets the folder and the port, and may write into the folder.
    pub fn start(
        program: &Path,
        arguments: impl FnOnce(&Path, u16) -> Result<Vec<String>>,
    ) -> Result<Process> {
        let (port, folder) = (Port::claim(), Folder::fresh());
        let log = fs::File::create(folder.path().join("log"))?;
        let words = dies_with_us(&[], &program.display().to_string());
        let child = Command::new(&words[0])
            .args(&words[1..])
            .args(arguments(folder.path(), port.number())?)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .map_err(|why| Error::other(format!("{}: {why}", program.display())))?;
        Ok(Process { child, folder, port })
    }

    /// Asks again until the server answers.
    pub fn wait_until<T>(&mut self, mut answers: impl FnMut() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        loop {
            let why = match answers() {
                Ok(answer) => return Ok(answer),
                Err(why) => why,
            };
            let ended = self.child.try_wait()?;
            if ended.is_some() || start.elapsed() > Duration::from_secs(60) {
                let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
                return Err(Error::other(format!("the server does not answer: {why}; its log:\n{log}")));
            }
            sleep(Duration::from_millis(100));
        }
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The processor time all its threads have used, in the kernel's ticks of 10 ms.
    pub fn cpu(&self) -> Option<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?;
        // Fields count from after the name, which may contain anything.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |nth: usize| fields.get(nth)?.parse::<u64>().ok();
        Some(Duration::from_millis(10 * (ticks(11)? + ticks(12)?)))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
