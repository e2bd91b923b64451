//! The servers of the bench: servers of the testkit, with the processor times that the kernel reports.

use std::fs;
use std::io::{Error, Result};
use std::ops::Deref;
use std::path::{Path, PathBuf, absolute};
use std::time::Duration;

use dlock_testkit::{ServerKind, preloaded};

use crate::resp::{Conn, unexpected};

/// How to start a server.
pub struct Program {
    kind: ServerKind,
    module: PathBuf,
}

/// A running server.
pub struct Server(dlock_testkit::Server);

impl Program {
    pub fn new(server: &Path, module: &Path) -> Result<Program> {
        // Links are not followed, because a server behaves according to the name that it was started by.
        let command = vec![absolute(server)?.display().to_string()];
        Ok(Program { kind: ServerKind::identify("the server", command), module: module.to_owned() })
    }

    /// Returns a name like "Redis 7.0.15".
    pub fn version(&self) -> String {
        let family = if self.kind.is_valkey { "Valkey" } else { "Redis" };
        format!("{family} {}", self.kind.version)
    }

    /// Returns this program with a C file preloaded: see [`preloaded`].
    pub fn preloading(&self, source: &str, variables: &[(&str, &Path)]) -> Program {
        Program { kind: preloaded(&self.kind, source, variables), module: self.module.clone() }
    }

    /// Starts a server. `options` are lines of redis.conf.
    pub fn start(&self, with_module: bool, options: &[&str]) -> Result<Server> {
        self.start_under(&[], with_module, options)
    }

    /// Like [`Program::start`], under a tool that watches the server, given by its name and arguments.
    pub fn start_under(&self, tool: &[&str], with_module: bool, options: &[&str]) -> Result<Server> {
        let mut command = command_under(tool, &self.kind.command[0]);
        command.extend_from_slice(&self.kind.command[1..]);
        let kind = ServerKind { command, ..self.kind.clone() };
        // No rewrites of the append only file, which would be measured too.
        let mut server = dlock_testkit::Server::options(&kind).without_module();
        server = server.conf("auto-aof-rewrite-percentage 0");
        if with_module {
            server = server.conf(&format!("loadmodule {}", self.module.display()));
        }
        server = options.iter().fold(server, |server, option| server.conf(option));
        let started =
            server.try_start().map_err(|log| Error::other(format!("the server does not start:\n{log}")));
        started.map(Server)
    }
}

/// Returns the words of a command that starts `program` under `tool`. On systems with setpriv, the kernel
/// kills the process when the bench ends, even if the bench was killed.
fn command_under(tool: &[&str], program: &str) -> Vec<String> {
    let setpriv: &[&str] = if Path::new("/usr/bin/setpriv").exists() {
        &["/usr/bin/setpriv", "--pdeathsig", "KILL", "--"]
    } else {
        &[]
    };
    setpriv.iter().chain(tool).copied().chain([program]).map(str::to_owned).collect()
}

impl Server {
    pub fn connect(&self) -> Result<Conn> {
        Conn::open(self.port())
    }

    /// Adds the name of the contender (one of the compared ways to lock) and the end of the server's log to
    /// an error.
    pub fn explain(&self, contender: &str, why: &Error) -> Error {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(20)..].join("\n");
        Error::other(format!("{contender}: {why}; its server's log ends:\n{last}"))
    }

    /// Returns the processor time of the main thread, which does not grow while the thread waits for a busy
    /// processor. `None` if the kernel does not report it.
    pub fn cpu(&self) -> Option<Duration> {
        schedstat(&self.pid().to_string(), 0)
    }

    /// Returns how many bytes the process has read, from files and connections. NaN if the kernel does not
    /// report it.
    pub fn bytes_read(&self) -> f64 {
        let io = fs::read_to_string(format!("/proc/{}/io", self.pid())).unwrap_or_default();
        io.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok()).unwrap_or(f64::NAN)
    }

    /// Returns `used_memory` and the resident set, in bytes.
    pub fn memory(&self) -> Result<[f64; 2]> {
        let read = |field| {
            let bytes = self.info(field);
            bytes.parse().map_err(|_| unexpected(&bytes))
        };
        Ok([read("used_memory")?, read("used_memory_rss")?])
    }

    /// Returns the time that the main thread was ready to run while another process had the processor.
    pub fn processor_wait(&self) -> Duration {
        schedstat(&self.pid().to_string(), 1).unwrap_or_default()
    }
}

impl Deref for Server {
    type Target = dlock_testkit::Server;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// Like [`Server::processor_wait`], for the calling thread.
pub fn thread_processor_wait() -> Duration {
    schedstat("thread-self", 1).unwrap_or_default()
}

/// Reads a time from `/proc/PROCESS/schedstat`. Field 0 is the time on a processor, field 1 the time that the
/// thread was ready to run without one.
fn schedstat(process: &str, field: usize) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{process}/schedstat")).ok()?;
    stat.split_whitespace().nth(field)?.parse().ok().map(Duration::from_nanos)
}
