//! The program that runs under the lock: its start, its signals, its end.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus};

use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, getpgid, getpgrp, getppid};

use crate::exit::{Error, flush_stderr};
use crate::output::warn;
use crate::run::descendants::Descendants;
use crate::run::parent_run::COMMAND_PID;
use crate::signals::{self, STOPS};

/// The name (`argv[0]`) of a process that is about to become the program: see [`become_program`].
const STARTING: &str = "dlock-starting";

/// A running program.
pub struct Program {
    child: Child,
    descendants: Descendants,
    ended: Option<ExitStatus>,
}

impl Program {
    /// Starts a process that becomes the program: see [`become_program`]. If the program cannot be executed,
    /// that process ends with the exit code 126 or 127.
    ///
    /// The calling thread must live as long as the program, because the kernel kills the program when that
    /// thread ends.
    pub fn start(words: &[OsString], environment: &[(&str, Option<OsString>)]) -> io::Result<Program> {
        let descendants = Descendants::track()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(STARTING).arg(Pid::this().to_string()).args(words);
        for (name, value) in environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Ok(Program { child: command.spawn()?, descendants, ended: None })
    }

    /// The exit status of the program. `None` while it runs.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.ended
    }

    /// Reaps children that have ended. Returns whether a stop signal of a terminal (Ctrl-Z) has stopped the
    /// program.
    pub fn reap(&mut self) -> io::Result<bool> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        // Orphans of the program become children of dlock. Each is reaped by its pid, because a wait for any
        // child could consume the status that try_wait returns.
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

    /// Sends a signal to the program, unless it has ended.
    pub fn signal(&self, signal: Signal) {
        // A pid that has been reaped may belong to another process by now.
        if self.ended.is_none() {
            let _ = kill(self.pid(), signal);
        }
    }

    /// Returns whether the program is still in dlock's process group, which receives the signals of the
    /// terminal.
    pub fn shares_our_group(&self) -> bool {
        getpgid(Some(self.pid())) == Ok(getpgrp())
    }

    /// Returns the program, if it lives, and every live process that it has started.
    pub fn alive(&self) -> io::Result<Vec<Pid>> {
        self.descendants.alive()
    }

    /// Sends a signal to the program, and to every live process that it has started. The program is first,
    /// because the search for the others takes a while on a busy machine.
    pub fn signal_all(&self, signal: Signal) -> io::Result<()> {
        self.signal(signal);
        for pid in self.alive()?.into_iter().filter(|pid| *pid != self.pid()) {
            // Fails if the process has ended or belongs to another user. Callers check afterwards which
            // processes are alive.
            let _ = kill(pid, signal);
        }
        Ok(())
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }
}

/// After an error or a panic, kills the program with its descendants. Does nothing if the program has ended.
impl Drop for Program {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let _ = self.signal_all(Signal::SIGKILL);
        }
    }
}

/// In a process that [`Program::start`] started, executes the program, or returns an exit code if that fails.
/// Returns `None` in any other process.
///
/// dlock executes itself first, and sets up the process here. Setting it up between fork and exec, as is
/// usual, would need `unsafe` code.
pub fn become_program() -> Option<ExitCode> {
    let mut words = std::env::args_os();
    if words.next().as_deref() != Some(OsStr::new(STARTING)) {
        return None;
    }
    let parent = words.next()?;
    let program = words.next()?;
    // Makes the kernel kill the program when dlock dies, because no other process would end the program
    // before the lease ends. This setting survives the exec, unless the program is set-user-ID. Children of
    // the program do not inherit the setting.
    let is_set_up = prctl::set_pdeathsig(Signal::SIGKILL).is_ok() && signals::unblock().is_ok();
    // If dlock ended before the setting was made, the setting has no effect, and this process has another
    // parent.
    if !is_set_up || parent != *getppid().to_string() {
        return Some(Error::system("the command was not started", "dlock has ended").report());
    }
    let mut command = Command::new(program);
    // This process keeps its id when it becomes the program.
    command.args(words).env(COMMAND_PID, std::process::id().to_string());
    Some(become_command(command).into())
}

/// Replaces this process by the command. Returns only if that fails, with the exit code of shells: 127 if the
/// program is not found, else 126.
pub fn become_command(mut command: Command) -> u8 {
    flush_stderr();
    let why = command.exec();
    warn(format_args!("{}: {why}", command.get_program().display()));
    if why.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
}

/// The exit code of a program, or 128 + n if signal n killed it, as in a shell.
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| code.try_into().ok()).unwrap_or(u8::MAX)
}
