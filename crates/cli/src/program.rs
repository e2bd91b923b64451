//! The program that runs under the lock: its start, its signals, its end.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus};

use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, getpgid, getpgrp, getppid};

use crate::descendants::Descendants;
use crate::exit::{Error, complain, flush_complaints};
use crate::signals::{self, STOPS};

/// The name of this process while it turns into the program: see [`become_program`].
const ON_THE_WAY: &str = "dlock-starting";

/// A running program.
pub struct Program {
    child: Child,
    descendants: Descendants,
    ended: Option<ExitStatus>,
}

impl Program {
    /// Starts it. If the program cannot be executed, [`become_program`] exits with 126 or 127.
    ///
    /// The calling thread must live as long as the program: when it ends, the kernel kills the program.
    pub fn start(words: &[OsString], environment: &[(&str, Option<OsString>)]) -> io::Result<Program> {
        let descendants = Descendants::keep()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(ON_THE_WAY).arg(Pid::this().to_string()).args(words);
        for (name, value) in environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Ok(Program { child: command.spawn()?, descendants, ended: None })
    }

    /// How it ended; `None` while it runs.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.ended
    }

    /// Reaps children that have ended. Returns whether a stop signal of a terminal has stopped the program.
    pub fn look(&mut self) -> io::Result<bool> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        // Orphans of the program are ours to reap. One by one: waiting for any child could take away the
        // status that try_wait is to return.
        for orphan in self.descendants.dead_children()? {
            if orphan != self.pid() {
                let _ = waitpid(orphan, Some(WaitPidFlag::WNOHANG));
            }
        }
        let stopped = match self.ended {
            None => waitid(Id::Pid(self.pid()), WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG),
            Some(_) => Ok(WaitStatus::StillAlive),
        };
        Ok(matches!(stopped, Ok(WaitStatus::Stopped(_, signal)) if STOPS.contains(&signal)))
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        // A pid that has been reaped may belong to another process by now.
        if self.ended.is_none() {
            let _ = kill(self.pid(), signal);
        }
    }

    /// Whether it is still in our process group, which the keys of the terminal reach.
    pub fn shares_our_group(&self) -> bool {
        getpgid(Some(self.pid())) == Ok(getpgrp())
    }

    /// Every live process that it has started, including itself.
    pub fn alive(&self) -> io::Result<Vec<Pid>> {
        self.descendants.alive()
    }

    /// Sends a signal to all of them.
    pub fn signal_all(&self, signal: Signal) -> io::Result<()> {
        for pid in self.alive()? {
            // It may be gone, or belong to another user: the caller checks which are alive afterwards.
            let _ = kill(pid, signal);
        }
        Ok(())
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }
}

/// If the program is dropped early, by an error or a panic, nothing of it stays behind.
impl Drop for Program {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let _ = self.signal_all(Signal::SIGKILL);
            self.signal(Signal::SIGKILL);
        }
    }
}

/// Executes the program, if [`Program::start`] started this process for it; `None` otherwise.
///
/// What must happen between fork and exec happens here, in a normal process. Between fork and exec itself
/// only `unsafe` code could do it.
pub fn become_program() -> Option<ExitCode> {
    let mut words = std::env::args_os();
    if words.next().as_deref() != Some(OsStr::new(ON_THE_WAY)) {
        return None;
    }
    let parent = words.next()?;
    let program = words.next()?;
    // If dlock is killed, so is the program: nobody else would end it when the lease ends. This survives the
    // exec, unless the program is set-user-ID, and is not inherited by its children.
    let tied = prctl::set_pdeathsig(Signal::SIGKILL).is_ok() && signals::unblock().is_ok();
    if !tied || parent != *getppid().to_string() {
        return Some(Error::system("the command was not started", "dlock has ended").report());
    }
    Some(execute(&program, words).into())
}

/// Replaces this process by the program, or returns an exit code as shells, env and nohup do.
pub fn execute(program: &OsStr, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> u8 {
    flush_complaints();
    let why = Command::new(program).args(words).exec();
    complain(format_args!("{}: {why}", program.display()));
    if why.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
}

/// The exit code as in a shell: 128 + n for a program that was killed by signal n.
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| code.try_into().ok()).unwrap_or(u8::MAX)
}
