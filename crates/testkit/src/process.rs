//! A server's process: start it, stop it, and notice when it went wrong.

use std::fs::{self, OpenOptions};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::conn::Conn;
use crate::options::Options;
use crate::value::Value;
use crate::wait::{TIMEOUT, poll, until};

/// A start may have to load much; tests that are slow on purpose are slow here.
const START_TIMEOUT: Duration = Duration::from_secs(60);

pub struct Process {
    child: Child,
    dir: PathBuf,
    /// Where in the log this process begins: the same log goes on over restarts.
    log_from: usize,
    /// The test asked for its end.
    ended: bool,
}

impl Process {
    /// Starts the server on `dir`/server.conf and waits until it answers. The error is its log.
    pub fn start(options: &Options, dir: &Path, port: u16) -> Result<Process, String> {
        let Options { kind, sentinel, .. } = options;
        let log_path = dir.join("log");
        let log =
            OpenOptions::new().create(true).append(true).open(&log_path).expect("the log can be opened");
        let log_from = log.metadata().expect("the log's size").len() as usize;
        let mut command = Command::new(&kind.command[0]);
        command.args(&kind.command[1..]).arg(dir.join("server.conf")).current_dir(dir);
        command.args(sentinel.then_some("--sentinel"));
        command.envs(environment(dir));
        command.stdin(Stdio::null()).stderr(log.try_clone().expect("a second handle")).stdout(log);
        let child =
            command.spawn().unwrap_or_else(|error| panic!("{:?} does not start: {error}", kind.command));
        let mut process = Process { child, dir: dir.to_path_buf(), log_from, ended: false };

        // Its own log tells that it is this server that listens; whoever else answered on the port would not
        // do.
        let started = poll(START_TIMEOUT, || {
            let words = if *sentinel { "Sentinel ID is" } else { "Ready to accept connections" };
            let ready = process.log().contains(words);
            (process.status().is_some() || (ready && answers(port))).then_some(())
        });
        if process.status().is_none() && started.is_some() {
            return Ok(process);
        }
        process.kill();
        match process.sanitizer_report() {
            // A server that refuses to start leaves what it has to the kernel.
            Some(report) if !report.contains("LeakSanitizer") => panic!("{report}"),
            _ => Err(process.log()),
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What this process has logged, standard error included.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.dir.join("log")).unwrap_or_default();
        String::from_utf8_lossy(bytes.get(self.log_from..).unwrap_or_default()).into_owned()
    }

    /// How it ended, or None while it runs.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the state of a child")
    }

    /// Ends it by SIGKILL. Nothing happens when it has ended already.
    pub fn kill(&mut self) -> ExitStatus {
        self.ended = true;
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for")
    }

    /// Ends it by SIGTERM, as an operator does.
    #[track_caller]
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.wait("SIGTERM")
    }

    /// Waits for an end that somebody else caused.
    #[track_caller]
    pub fn wait(&mut self, cause: &str) -> ExitStatus {
        let status = poll(TIMEOUT, || self.status());
        self.ended = true;
        status.unwrap_or_else(|| panic!("the server still runs {TIMEOUT:?} after {cause}:\n{}", self.log()))
    }

    /// Stops it in its tracks.
    pub fn pause(&self) {
        self.signal("STOP");
        until("the server is stopped", || self.state() == 'T');
    }

    pub fn resume(&self) {
        self.signal("CONT");
        until("the server goes on", || self.state() != 'T');
    }

    /// Ends it for good at the end of a test, whatever its state, and tells what was wrong with it, if
    /// anything.
    pub fn finish(&mut self) -> Option<String> {
        if self.ended {
            return self.sanitizer_report();
        }
        if let Some(status) = self.status() {
            return Some(format!(
                "the server ended by itself: {status}\n{}",
                self.failure().unwrap_or_default()
            ));
        }
        // A leak is only reported at an orderly end, which takes the server a tenth of a second.
        if sanitized() {
            self.signal("TERM");
            poll(TIMEOUT, || self.status());
        }
        let status = self.kill();
        // It may have been about to die of its own as the kill came.
        let orderly = status.success() || status.signal() == Some(9);
        self.failure().or_else(|| (!orderly).then(|| format!("the server ended by itself: {status}")))
    }

    /// What a server that was well does not leave behind.
    pub fn failure(&self) -> Option<String> {
        self.logged("BUG REPORT START").or_else(|| self.panic_or_report())
    }

    /// [`Process::failure`] for a server that was meant to crash.
    pub fn panic_or_report(&self) -> Option<String> {
        self.logged("panicked at").or_else(|| self.sanitizer_report())
    }

    fn logged(&self, words: &str) -> Option<String> {
        let log = self.log();
        let line = log.lines().find(|line| line.contains(words))?;
        Some(format!("the server's log says: {line}"))
    }

    fn sanitizer_report(&self) -> Option<String> {
        let mut files = fs::read_dir(&self.dir).expect("the server's folder").flatten();
        let report = files.find(|file| file.file_name().to_string_lossy().starts_with("sanitizer"))?;
        Some(fs::read_to_string(report.path()).expect("the sanitizer's report"))
    }

    /// Std can only kill; the other signals go by the shell.
    fn signal(&self, name: &str) {
        let status = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.id())]).status();
        assert!(status.expect("sh runs").success(), "SIG{name} could not be sent to {}", self.id());
    }

    /// The letter of proc(5): R, S, T...
    fn state(&self) -> char {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id())).expect("the process exists");
        // pid (name) state: the name may hold anything, the last parenthesis ends it
        stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).expect("a state")
    }
}

/// Any answer but "still loading": a server that wants a password is up as well.
fn answers(port: u16) -> bool {
    match Conn::open(port).say("PING") {
        Value::Error(line) => !line.starts_with("LOADING"),
        _ => true,
    }
}

/// `DLOCK_TEST_SERVER_ENV="NAME=value NAME=value"`, where {dir} stands for the server's folder.
pub fn environment(dir: &Path) -> Vec<(String, String)> {
    let given = std::env::var("DLOCK_TEST_SERVER_ENV").unwrap_or_default();
    let given = given.replace("{dir}", &dir.to_string_lossy());
    let pairs = given.split_whitespace().map(|pair| {
        let pair = pair.split_once('=');
        let (name, value) = pair.expect("DLOCK_TEST_SERVER_ENV wants NAME=value NAME=value");
        (name.to_string(), value.to_string())
    });
    pairs.collect()
}

fn sanitized() -> bool {
    std::env::var_os("DLOCK_TEST_SERVER_ENV").is_some()
}
