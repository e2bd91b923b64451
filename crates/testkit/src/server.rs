//! A server of a test.

use std::path::Path;
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, thread};

use crate::conn::Conn;
use crate::folder::Folder;
use crate::kinds::ServerKind;
use crate::options::Options;
use crate::port::Port;
use crate::process::Process;
use crate::wait::until;

/// A running server on a port and in a folder of its own. When it is dropped it is killed, and when it was
/// not well the test fails: it ended by itself, its log holds a crash report or a Rust panic, a sanitizer
/// wrote a report.
pub struct Server {
    // Ends before the folder goes and the port is free for others.
    process: Mutex<Process>,
    options: Options,
    port: Port,
    folder: Folder,
}

impl Server {
    /// A server with the module, without persistence, with everything else as it comes.
    #[track_caller]
    pub fn start(kind: &ServerKind) -> Server {
        Server::options(kind).start()
    }

    pub fn options(kind: &ServerKind) -> Options {
        Options::new(kind)
    }

    pub(crate) fn new(options: Options, port: Port, folder: Folder, process: Process) -> Server {
        Server { process: Mutex::new(process), options, port, folder }
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

    /// All that it has logged, over all its restarts.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.dir().join("log")).unwrap_or_default()).into_owned()
    }

    #[track_caller]
    pub fn connect(&self) -> Conn {
        Conn::open(self.port())
    }

    /// A field of INFO, of whichever section, modules' sections included.
    #[track_caller]
    pub fn info(&self, field: &str) -> String {
        let info = self.connect().ok("INFO everything").text();
        let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap_or_else(|| panic!("INFO has no field {field}:\n{info}")).trim().to_string()
    }

    /// Ends it by SIGKILL.
    #[track_caller]
    pub fn kill9(&self) {
        assert!(self.is_alive(), "the server ended before it was killed:\n{}", self.log());
        self.process().kill();
        well(self.process().failure());
    }

    /// Waits until the append only file holds all that was answered. With everysec an answer does not wait
    /// for that, and a kill can lose it.
    #[track_caller]
    pub fn wait_written(&self) {
        until("the append only file is written", || self.info("aof_buffer_length") == "0");
    }

    /// Ends it by SIGTERM, in order.
    #[track_caller]
    pub fn terminate(&self) -> ExitStatus {
        let status = self.process().terminate();
        well(self.process().failure());
        status
    }

    /// Waits for an end that the test has caused: SHUTDOWN, DEBUG SEGFAULT, a full disk.
    #[track_caller]
    pub fn expect_exit(&self) -> ExitStatus {
        let status = self.process().wait("what should have ended it");
        well(self.process().panic_or_report());
        status
    }

    /// Starts it again with the same port, folder and options, after an orderly end if it still runs.
    #[track_caller]
    pub fn restart(&mut self) {
        if let Err(log) = self.try_restart() {
            panic!("the server did not start again:\n{log}");
        }
    }

    /// [`Server::restart`] with other options: `server.restart_with(|options| options.conf("appendonly
    /// yes"))`.
    #[track_caller]
    pub fn restart_with(&mut self, change: impl FnOnce(Options) -> Options) {
        self.options = change(self.options.clone());
        self.options.write(self.dir(), self.port());
        self.restart();
    }

    /// [`Server::restart`] that returns the log of a server that refused to start.
    #[track_caller]
    pub fn try_restart(&mut self) -> Result<(), String> {
        if self.is_alive() {
            self.terminate();
        }
        let process = Process::start(&self.options, self.dir(), self.port())?;
        *self.process() = process;
        Ok(())
    }

    /// Stops it in its tracks by SIGSTOP.
    #[track_caller]
    pub fn pause(&self) {
        self.process().pause();
    }

    /// Lets it go on by SIGCONT.
    #[track_caller]
    pub fn resume(&self) {
        self.process().resume();
    }

    /// Makes it a replica of `master` and waits until it has everything.
    #[track_caller]
    pub fn replicate(&self, master: &Server) {
        assert_eq!(self.connect().say(&format!("REPLICAOF 127.0.0.1 {}", master.port())), "OK");
        self.wait_in_sync(master);
    }

    /// Waits until it has received and carried out all that `master` has sent up to now.
    #[track_caller]
    pub fn wait_in_sync(&self, master: &Server) {
        let offset = |server: &Server, field: &str| server.info(field).parse::<i64>().expect("an offset");
        let same = || self.info("master_replid") == master.info("master_replid");
        until("the replica's link is up", || self.info("master_link_status") == "up" && same());
        let sent = offset(master, "master_repl_offset");
        until("the replica has what the master sent", || offset(self, "slave_repl_offset") >= sent);
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fails the test when what has just ended was not well.
#[track_caller]
fn well(failure: Option<String>) {
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
