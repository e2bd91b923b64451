//! The bench's own servers: each a process on a free port, with a folder that is removed when it ends.

use std::ffi::OsStr;
use std::fs;
use std::io::{Error, Result};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::resp::{self, Conn, Value};

/// How servers are started.
pub struct Program {
    pub server: PathBuf,
    pub module: PathBuf,
}

/// A running server.
pub struct Server {
    process: Child,
    pub port: u16,
    folder: PathBuf,
}

impl Program {
    /// `options`: pairs as on the command line, `--appendonly yes`.
    pub fn start(&self, with_module: bool, options: &[&str]) -> Result<Server> {
        self.start_under(&[], with_module, options)
    }

    /// As [`Program::start`], under a tool that watches it: its name and arguments.
    pub fn start_under(&self, tool: &[&str], with_module: bool, options: &[&str]) -> Result<Server> {
        let port = free_port()?;
        let folder = std::env::temp_dir().join(format!("dlock-bench-{}-{port}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let mut command = dies_with_us(tool, &self.server);
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"]).arg(&folder);
        // Only what is measured: no snapshots, no rewrites of the append only file.
        command.args(["--save", "", "--auto-aof-rewrite-percentage", "0", "--logfile", "log"]);
        command.args(options);
        if with_module {
            command.arg("--loadmodule").arg(&self.module);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process =
            command.spawn().map_err(|why| Error::other(format!("{}: {why}", self.server.display())))?;
        let mut server = Server { process, port, folder };
        server.wait_until_ready()?;
        Ok(server)
    }

    /// As the server says it: "Redis 7.0.15".
    pub fn version(&self) -> Result<String> {
        let output = Command::new(&self.server).arg("--version").output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = text.split(' ').find_map(|word| word.strip_prefix("v=")).unwrap_or("?");
        let name = if text.starts_with("Valkey") { "Valkey" } else { "Redis" };
        Ok(format!("{name} {version}"))
    }
}

/// The server ends even if the bench is killed, where the system has setpriv.
pub fn dies_with_us(tool: &[&str], server: &Path) -> Command {
    let setpriv: &[&str] = if Path::new("/usr/bin/setpriv").exists() {
        &["/usr/bin/setpriv", "--pdeathsig", "KILL", "--"]
    } else {
        &[]
    };
    let mut words = setpriv.iter().chain(tool).map(OsStr::new).chain([server.as_os_str()]);
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command
}

/// Below the range of the kernel's ephemeral ports.
pub fn free_port() -> Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = (std::process::id() % 8_000) as u16;
    for _ in 0..8_000 {
        let port = 21_000 + (start + NEXT.fetch_add(1, Ordering::Relaxed)) % 8_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    Err(Error::other("no free port"))
}

impl Server {
    fn wait_until_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(30) {
            if let Some(status) = self.process.try_wait()? {
                return Err(Error::other(format!("the server ended with {status}:\n{}", self.log())));
            }
            let ours = format!("process_id:{}\r\n", self.process.id());
            let info = Conn::open(self.port).and_then(|mut conn| conn.call(&["INFO", "server"]));
            if matches!(info, Ok(Value::Text(text)) if text.contains(&ours)) {
                return Ok(());
            }
            sleep(Duration::from_millis(10));
        }
        Err(Error::other(format!("the server does not answer:\n{}", self.log())))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Adds the contender's name and the end of the server's log to an error.
    pub fn explain(&self, who: &str, why: &Error) -> Error {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(20)..].join("\n");
        Error::other(format!("{who}: {why}; its server's log ends:\n{last}"))
    }

    /// Stops or continues it; while stopped, it accepts connections and stays silent.
    pub fn freeze(&self, frozen: bool) -> Result<()> {
        let signal = if frozen { Signal::SIGSTOP } else { Signal::SIGCONT };
        Ok(kill(Pid::from_raw(self.process.id() as i32), signal)?)
    }

    /// Ends it as an operator would, so that a tool that watches it can say what it saw.
    pub fn shut_down(mut self) -> Result<()> {
        self.connect()?.send(&resp::Command::new(&["SHUTDOWN", "NOSAVE"]).on_key(0))?;
        self.process.wait()?;
        Ok(())
    }

    pub fn connect(&self) -> Result<Conn> {
        Conn::open(self.port)
    }

    /// Makes it a replica of `master` and waits until it has caught up.
    pub fn follow(&self, master: &Server) -> Result<()> {
        let mut conn = self.connect()?;
        conn.call(&["REPLICAOF", "127.0.0.1", &master.port.to_string()])?;
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(30) {
            let info = conn.call(&["INFO", "replication"])?;
            if matches!(info, Value::Text(text) if text.contains("master_link_status:up")) {
                return Ok(());
            }
            sleep(Duration::from_millis(20));
        }
        Err(Error::other("the replica does not catch up"))
    }

    /// The processor time that its main thread has used, without waits for a busy machine.
    pub fn cpu(&self) -> Option<Duration> {
        schedstat(&self.process.id().to_string(), 0)
    }

    /// How long its main thread was ready to run while another process had the processor.
    pub fn kept_waiting(&self) -> Duration {
        schedstat(&self.process.id().to_string(), 1).unwrap_or_default()
    }
}

/// As [`Server::kept_waiting`], for the calling thread.
pub fn kept_us_waiting() -> Duration {
    schedstat("thread-self", 1).unwrap_or_default()
}

fn schedstat(process: &str, field: usize) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{process}/schedstat")).ok()?;
    stat.split_whitespace().nth(field)?.parse().ok().map(Duration::from_nanos)
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
