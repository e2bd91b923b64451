//! A server's process: its start, its end, its failures.

use std::fs::{self, OpenOptions};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::conn::Conn;
use crate::value::Value;
use crate::wait::{TIMEOUT, poll, until};

/// Time limit of a start, which may load a large file. Only a start that hangs reaches this limit.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Log line of a server that refuses an RDB file and begins its own check of the file (valkey-check-rdb).
const OWN_CHECK: &str = "Internal error in RDB reading";

/// Time limit of that check, which takes milliseconds. It never ends if a module value lacks its end marker
/// (Valkey 8.0.1, also without this module).
const OWN_CHECK_TIMEOUT: Duration = Duration::from_secs(5);

pub struct Process {
    child: Child,
    dir: PathBuf,
    /// Position in the log where the output of this process begins. Restarts append to the same log.
    log_from: usize,
    /// True once the test has ended the process.
    ended: bool,
}

impl Process {
    /// Starts a server with `dir`/server.conf and waits until it answers. The error is its log. `program` is
    /// the path of the program with its first arguments.
    pub fn start(program: &[String], sentinel: bool, dir: &Path, port: u16) -> Result<Process, String> {
        let log_path = dir.join("log");
        let log =
            OpenOptions::new().create(true).append(true).open(&log_path).expect("the log can be opened");
        let log_from = log.metadata().expect("the log's size").len() as usize;
        let mut command = Command::new(&program[0]);
        command.args(&program[1..]).arg(dir.join("server.conf")).current_dir(dir);
        command.args(sentinel.then_some("--sentinel"));
        command.envs(environment(dir));
        command.stdin(Stdio::null()).stderr(log.try_clone().expect("the handle can be copied")).stdout(log);
        let child = command.spawn().unwrap_or_else(|error| panic!("{program:?} does not start: {error}"));
        let mut process = Process { child, dir: dir.to_path_buf(), log_from, ended: false };

        // An answer alone does not count, because it may come from another program on the port.
        let has_started = poll(START_TIMEOUT, || {
            let words = if sentinel { "Sentinel ID is" } else { "Ready to accept connections" };
            let log = process.log();
            if process.status().is_some() || log.contains(OWN_CHECK) {
                return Some(false);
            }
            (log.contains(words) && answers(port)).then_some(true)
        });
        if has_started == Some(true) {
            return Ok(process);
        }
        poll(OWN_CHECK_TIMEOUT, || process.status());
        process.kill();
        match process.sanitizer_report() {
            // Leaks do not count, because a server that refuses to start does not free its memory.
            Some(report) if !report.contains("LeakSanitizer") => panic!("{report}"),
            _ => Err(process.log()),
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the log of this process, with its standard error.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.dir.join("log")).unwrap_or_default();
        String::from_utf8_lossy(bytes.get(self.log_from..).unwrap_or_default()).into_owned()
    }

    /// Returns the exit status. `None` while the process runs.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the child can be waited for")
    }

    /// Ends the process by SIGKILL, if it still runs.
    pub fn kill(&mut self) -> ExitStatus {
        self.ended = true;
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for")
    }

    /// Ends the process by SIGTERM.
    #[track_caller]
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.wait("SIGTERM")
    }

    /// Waits for the end of the process. The message of a timeout names `cause` as the reason for the end.
    #[track_caller]
    pub fn wait(&mut self, cause: &str) -> ExitStatus {
        let status = poll(TIMEOUT, || self.status());
        self.ended = true;
        status.unwrap_or_else(|| panic!("the server still runs {TIMEOUT:?} after {cause}:\n{}", self.log()))
    }

    /// Stops the process by SIGSTOP.
    pub fn pause(&self) {
        self.signal("STOP");
        until("the server is stopped", || self.state() == 'T');
    }

    pub fn resume(&self) {
        self.signal("CONT");
        until("the server continues", || self.state() != 'T');
    }

    /// Ends the process at the end of a test, in any state. Returns its failure, if there was one.
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
        // The sanitizer reports leaks only at an orderly end, which takes a tenth of a second.
        if has_sanitizer() {
            self.signal("TERM");
            poll(TIMEOUT, || self.status());
        }
        let status = self.kill();
        // Any other status means that the server ended by itself just before the signal arrived.
        let ended_by_signal = status.success() || status.signal() == Some(9);
        self.failure().or_else(|| (!ended_by_signal).then(|| format!("the server ended by itself: {status}")))
    }

    /// Returns a crash report, a panic or a sanitizer's report, if there is one.
    pub fn failure(&self) -> Option<String> {
        self.logged("BUG REPORT START").or_else(|| self.panic_or_report())
    }

    /// Like [`Process::failure`], but without crash reports: for a server that the test makes crash.
    pub fn panic_or_report(&self) -> Option<String> {
        self.logged("panicked at").or_else(|| self.sanitizer_report())
    }

    fn logged(&self, words: &str) -> Option<String> {
        let log = self.log();
        let line = log.lines().find(|line| line.contains(words))?;
        Some(format!("the server's log has: {line}"))
    }

    fn sanitizer_report(&self) -> Option<String> {
        let mut files = fs::read_dir(&self.dir).expect("the server's folder").flatten();
        let report = files.find(|file| file.file_name().to_string_lossy().starts_with("sanitizer"))?;
        Some(fs::read_to_string(report.path()).expect("the sanitizer's report"))
    }

    /// Sends a signal by the shell, because std can only send SIGKILL.
    fn signal(&self, name: &str) {
        let status = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.id())]).status();
        assert!(status.expect("sh runs").success(), "SIG{name} could not be sent to {}", self.id());
    }

    /// Returns the state letter of proc(5): R, S, T...
    fn state(&self) -> char {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id())).expect("the process exists");
        // "pid (name) state": the name may contain parentheses, so the last one ends it.
        stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).expect("a state")
    }
}

/// Returns true unless the server is still loading. An error, such as a missing password, counts as an
/// answer.
fn answers(port: u16) -> bool {
    match Conn::open(port).say("PING") {
        Value::Error(line) => !line.starts_with("LOADING"),
        _ => true,
    }
}

/// Returns the variables of `DLOCK_TEST_SERVER_ENV="NAME=value NAME=value"`. {dir} stands for the server's
/// folder.
pub fn environment(dir: &Path) -> Vec<(String, String)> {
    let given = std::env::var("DLOCK_TEST_SERVER_ENV").unwrap_or_default();
    let given = given.replace("{dir}", &dir.to_string_lossy());
    let pairs = given.split_whitespace().map(|pair| {
        let pair = pair.split_once('=');
        let (name, value) = pair.expect("DLOCK_TEST_SERVER_ENV is NAME=value NAME=value");
        (name.to_string(), value.to_string())
    });
    pairs.collect()
}

/// Returns whether the servers run with a sanitizer. Only such runs set the variable.
fn has_sanitizer() -> bool {
    std::env::var_os("DLOCK_TEST_SERVER_ENV").is_some()
}
