//! A server of a test: its settings, its start, its end.

use std::path::Path;
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, thread};

use crate::conn::Conn;
use crate::folder::Folder;
use crate::kinds::ServerKind;
use crate::port::Port;
use crate::process::Process;
use crate::project::module_path;
use crate::wait::until;

/// A running server on a port and in a folder of its own.
///
/// Dropping it kills the server. It also fails the test if the server ended by itself, logged a crash report
/// or a Rust panic, or left a sanitizer's report.
pub struct Server {
    // Dropped first, so that the server ends before its folder is removed and its port is free.
    process: Mutex<Process>,
    options: Options,
    port: Port,
    folder: Folder,
}

impl Server {
    /// Starts a server with the module and without persistence, with defaults otherwise.
    #[track_caller]
    pub fn start(kind: &ServerKind) -> Server {
        Server::options(kind).start()
    }

    /// Like [`Server::start`], with a connection.
    #[track_caller]
    pub fn connected(kind: &ServerKind) -> (Server, Conn) {
        let server = Server::start(kind);
        let conn = server.connect();
        (server, conn)
    }

    /// Starts a server and its replica, both with defaults.
    #[track_caller]
    pub fn with_replica(kind: &ServerKind) -> (Server, Server) {
        let (master, replica) = (Server::start(kind), Server::start(kind));
        replica.replicate(&master);
        (master, replica)
    }

    pub fn options(kind: &ServerKind) -> Options {
        Options::new(kind)
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub fn dir(&self) -> &Path {
        self.folder.path()
    }

    pub fn kind(&self) -> &ServerKind {
        &self.options.kind
    }

    pub fn pid(&self) -> u32 {
        self.process().id()
    }

    pub fn is_alive(&self) -> bool {
        self.process().status().is_none()
    }

    /// Returns the log over all restarts.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.dir().join("log")).unwrap_or_default()).into_owned()
    }

    #[track_caller]
    pub fn connect(&self) -> Conn {
        Conn::open(self.port())
    }

    /// Opens a connection as the user `app`, which then has these ACL rules and no others.
    #[track_caller]
    pub fn user(&self, rules: &str) -> Conn {
        assert_eq!(self.connect().ok(&format!("ACL SETUSER app reset on >secret {rules}")), "OK");
        let mut conn = self.connect();
        assert_eq!(conn.ok("AUTH app secret"), "OK");
        conn
    }

    /// Opens a RESP3 connection that is subscribed to a channel. [`Conn::message`] returns what it receives.
    #[track_caller]
    pub fn subscriber(&self, channel: &str) -> Conn {
        let mut conn = self.connect();
        conn.hello3();
        conn.send(&["SUBSCRIBE", channel]);
        assert_eq!(conn.read().items()[0], "subscribe");
        conn
    }

    /// Returns a field of INFO, of any section, including those of modules.
    #[track_caller]
    pub fn info(&self, field: &str) -> String {
        let info = self.connect().ok("INFO everything").text();
        let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap_or_else(|| panic!("INFO has no field {field}:\n{info}")).trim().to_string()
    }

    /// Returns a field of INFO that is a whole number.
    #[track_caller]
    pub fn number(&self, field: &str) -> i64 {
        let text = self.info(field);
        text.parse().unwrap_or_else(|_| panic!("{field} is {text:?}, not a number"))
    }

    /// Returns several fields of INFO that are whole numbers.
    #[track_caller]
    pub fn numbers<const N: usize>(&self, fields: [&str; N]) -> [i64; N] {
        fields.map(|field| self.number(field))
    }

    /// Ends the server by SIGKILL, starts it again, and connects.
    #[track_caller]
    pub fn kill_and_restart(&mut self) -> Conn {
        self.kill9();
        self.restart();
        self.connect()
    }

    /// Ends the server by SIGKILL.
    #[track_caller]
    pub fn kill9(&self) {
        assert!(self.is_alive(), "the server ended before it was killed:\n{}", self.log());
        self.process().kill();
        assert_no_failure(self.process().failure());
    }

    /// Waits until the append only file contains every answered command. With `appendfsync everysec`, a reply
    /// does not wait for the write, and a kill can lose the command.
    #[track_caller]
    pub fn wait_written(&self) {
        until("the append only file is written", || self.info("aof_buffer_length") == "0");
    }

    /// Rewrites the append only file and waits for the end of the rewrite.
    #[track_caller]
    pub fn rewrite(&self) {
        let before = self.number("aof_rewrites");
        self.connect().ok("BGREWRITEAOF");
        until("the rewrite has ended", || self.number("aof_rewrites") > before);
        self.wait_rewritten();
        assert_eq!(self.info("aof_last_bgrewrite_status"), "ok");
    }

    /// Waits until no rewrite of the append only file is scheduled or in progress.
    #[track_caller]
    pub fn wait_rewritten(&self) {
        until("no rewrite is pending", || {
            self.numbers(["aof_rewrite_scheduled", "aof_rewrite_in_progress"]) == [0, 0]
        });
    }

    /// Ends the server by SIGTERM.
    #[track_caller]
    pub fn terminate(&self) -> ExitStatus {
        let status = self.process().terminate();
        assert_no_failure(self.process().failure());
        status
    }

    /// Waits for an end that the test caused by SHUTDOWN, DEBUG SEGFAULT or a full disk.
    #[track_caller]
    pub fn expect_exit(&self) -> ExitStatus {
        let status = self.process().wait("the command or fault that should end it");
        assert_no_failure(self.process().panic_or_report());
        status
    }

    /// Starts the server again with the same port, folder and options. Ends it by SIGTERM first if it still
    /// runs.
    #[track_caller]
    pub fn restart(&mut self) {
        if let Err(log) = self.try_restart() {
            panic!("the server did not start again:\n{log}");
        }
    }

    /// Like [`Server::restart`], with other options: `server.restart_with(|options| options.conf("appendonly
    /// yes"))`.
    #[track_caller]
    pub fn restart_with(&mut self, change: impl FnOnce(Options) -> Options) {
        self.options = change(self.options.clone());
        self.options.write(self.dir(), self.port());
        self.restart();
    }

    /// Like [`Server::restart`]. Returns the log if the server refuses to start.
    #[track_caller]
    pub fn try_restart(&mut self) -> Result<(), String> {
        if self.is_alive() {
            self.terminate();
        }
        let process = self.options.start_process(self.dir(), self.port())?;
        *self.process() = process;
        Ok(())
    }

    /// Stops the server by SIGSTOP.
    #[track_caller]
    pub fn pause(&self) {
        self.process().pause();
    }

    /// Continues the server by SIGCONT.
    #[track_caller]
    pub fn resume(&self) {
        self.process().resume();
    }

    /// Waits until the server's periodic task has run. Only this task updates `lru_clock`, once a second.
    #[track_caller]
    pub fn wait_for_tick(&self) {
        let clock = self.info("lru_clock");
        until("the periodic task has run", || self.info("lru_clock") != clock);
    }

    /// Makes the server a replica of `master` and waits until it is in sync.
    #[track_caller]
    pub fn replicate(&self, master: &Server) {
        assert_eq!(self.connect().say(&format!("REPLICAOF 127.0.0.1 {}", master.port())), "OK");
        self.wait_in_sync(master);
    }

    /// Waits until this replica has applied everything that `master` has sent up to now.
    #[track_caller]
    pub fn wait_in_sync(&self, master: &Server) {
        let same_history = || self.info("master_replid") == master.info("master_replid");
        until("the replica's link is up", || self.info("master_link_status") == "up" && same_history());
        let sent = master.number("master_repl_offset");
        until("the replica has applied what the master sent", || self.number("slave_repl_offset") >= sent);
    }

    /// Makes this replica a master.
    #[track_caller]
    pub fn promote(&self) {
        assert_eq!(self.connect().ok("REPLICAOF NO ONE"), "OK");
    }

    /// Exchanges the roles of this master and its replica by FAILOVER.
    #[track_caller]
    pub fn fail_over(&self, replica: &Server) {
        assert_eq!(self.connect().ok("FAILOVER TIMEOUT 60000"), "OK");
        self.wait_failed_over(replica);
    }

    /// Waits until this master and its replica have exchanged their roles.
    #[track_caller]
    pub fn wait_failed_over(&self, replica: &Server) {
        let swapped = || replica.info("role") == "master" && self.info("role") == "slave";
        until("the servers have exchanged their roles", swapped);
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The settings of a server to start: `Server::options(kind).conf("appendonly
/// yes").module_args("...").start()`.
#[derive(Clone)]
#[must_use]
pub struct Options {
    kind: ServerKind,
    conf: Vec<String>,
    /// Arguments after the module's path in `loadmodule`. `None` means without the module.
    module: Option<String>,
    sentinel: bool,
}

impl Options {
    fn new(kind: &ServerKind) -> Options {
        Options { kind: kind.clone(), conf: Vec::new(), module: Some(String::new()), sentinel: false }
    }

    /// Uses the settings for another kind of server.
    pub fn on(mut self, kind: &ServerKind) -> Options {
        self.kind = kind.clone();
        self
    }

    /// Adds a line of redis.conf. Later lines win, also over the lines that every server gets.
    pub fn conf(mut self, line: &str) -> Options {
        self.conf.push(line.to_string());
        self
    }

    /// Adds several lines of redis.conf.
    pub fn confs(self, lines: &[&str]) -> Options {
        lines.iter().fold(self, |options, line| options.conf(line))
    }

    /// Switches the append only file on, and syncs it before each reply, so that no acknowledged command is
    /// lost.
    pub fn synced(self) -> Options {
        self.confs(&["appendonly yes", "appendfsync always"])
    }

    /// Sets the arguments of the module, in place of earlier ones.
    pub fn module_args(mut self, arguments: &str) -> Options {
        self.module = Some(arguments.to_string());
        self
    }

    /// Leaves out the module.
    pub fn without_module(mut self) -> Options {
        self.module = None;
        self
    }

    /// Makes the server a sentinel. `conf` names the masters that it watches.
    pub fn sentinel(mut self) -> Options {
        self.sentinel = true;
        self.without_module()
    }

    /// Starts the server and waits until it answers. Panics with its log if it does not.
    #[track_caller]
    pub fn start(self) -> Server {
        match self.launch() {
            Ok(server) => server,
            Err((log, folder)) => panic!("the server did not start in {}:\n{log}", folder.path().display()),
        }
    }

    /// Starts the server and waits until it answers. Returns its log if it refuses to start.
    pub fn try_start(self) -> Result<Server, String> {
        self.launch().map_err(|(log, _)| log)
    }

    fn launch(self) -> Result<Server, (String, Folder)> {
        let folder = Folder::fresh();
        loop {
            let port = Port::claim();
            self.write(folder.path(), port.number());
            match self.start_process(folder.path(), port.number()) {
                Ok(process) => {
                    return Ok(Server { process: Mutex::new(process), options: self, port, folder });
                }
                // Another program, which does not claim its ports, has taken this one.
                Err(log) if log.contains("Address already in use") => continue,
                Err(log) => return Err((log, folder)),
            }
        }
    }

    fn start_process(&self, dir: &Path, port: u16) -> Result<Process, String> {
        Process::start(&self.kind.command, self.sentinel, dir, port)
    }

    /// Writes server.conf.
    fn write(&self, dir: &Path, port: u16) {
        let mut lines = vec![
            format!("port {port}"),
            format!("dir {}", dir.display()),
            "bind 127.0.0.1".to_string(),
            "save \"\"".to_string(),
            "enable-debug-command yes".to_string(),
            "enable-module-command yes".to_string(),
            // A memory test would delay a crash report.
            "crash-memcheck-enabled no".to_string(),
            // The master serves a replica at once, without waiting 5 s for others.
            "repl-diskless-sync-delay 0".to_string(),
        ];
        if let Some(arguments) = &self.module {
            lines.push(format!("loadmodule {} {arguments}", module_path().display()));
        }
        lines.extend(self.conf.iter().cloned());
        fs::write(dir.join("server.conf"), lines.join("\n") + "\n").expect("server.conf can be written");
    }
}

/// Fails the test if the ended process had a failure.
#[track_caller]
fn assert_no_failure(failure: Option<String>) {
    if let Some(failure) = failure {
        panic!("{failure}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let failure = self.process().finish();
        if !thread::panicking() && failure.is_none() {
            return;
        }
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let end = lines[lines.len().saturating_sub(60)..].join("\n");
        let kind = &self.kind().name;
        let failure = failure.unwrap_or_else(|| "the end of the server's log".to_string());
        let report = format!("{kind} in {}: {failure}\n{end}\n", self.dir().display());
        if thread::panicking() {
            eprintln!("{report}");
        } else {
            panic!("{report}");
        }
    }
}
