//! The program that runs under the lock: started, signalled, looked after.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus};

use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, getpgid, getpgrp, getppid};

use crate::descendants::Descendants;
use crate::exit::{Error, complain};
use crate::signals::{self, STOPS};

/// What this program is called while it is on its way to become another one: see [`become_program`].
const ON_THE_WAY: &str = "dlock-starting";

/// A program under way.
pub struct Program {
    child: Child,
    descendants: Descendants,
    ended: Option<ExitStatus>,
}

impl Program {
    /// Starts it. Whether there is such a program is found out by [`become_program`]: then it ends with 126 or 127.
    ///
    /// The thread that calls this must live as long as the program: when it ends, the kernel ends the program.
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

    /// How it ended; None while it runs.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.ended
    }

    /// Takes note of children that ended or stopped. Answers whether the program was stopped as terminals do it.
    pub fn look(&mut self) -> io::Result<bool> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        // What the program has left behind is ours to reap. One by one: a wait for any child could take away what
        // try_wait is to answer.
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
        // A pid that was waited for may be somebody else's by now.
        if self.ended.is_none() {
            let _ = kill(self.pid(), signal);
        }
    }

    /// Whether it is still in our process group, the one that the keys of a terminal reach.
    pub fn shares_our_group(&self) -> bool {
        getpgid(Some(self.pid())) == Ok(getpgrp())
    }

    /// Everything that it has started and that is alive, itself included.
    pub fn alive(&self) -> io::Result<Vec<Pid>> {
        self.descendants.alive()
    }

    /// Sends a signal to all of them.
    pub fn signal_all(&self, signal: Signal) -> io::Result<()> {
        for pid in self.alive()? {
            // Gone meanwhile, or another user's: whoever must know looks who is alive afterwards.
            let _ = kill(pid, signal);
        }
        Ok(())
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }
}

/// Whoever lets go of the program early, by an error or a panic, leaves no program behind.
impl Drop for Program {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
    }
}

/// Becomes the program, if this process was started for it by [`Program::start`]; None if it was not.
///
/// What must happen between fork and exec happens here, in a process that is in order, instead of in the
/// half-process that a fork leaves, which only `unsafe` code may enter.
pub fn become_program() -> Option<ExitCode> {
    let mut words = std::env::args_os();
    if words.next().as_deref() != Some(OsStr::new(ON_THE_WAY)) {
        return None;
    }
    let parent = words.next()?;
    let program = words.next()?;
    // Should dlock be killed, so is the program: nobody else would end it when the lease is over. It stays set over
    // the exec, but not over the exec of a set-user-ID program, and not for what the program starts.
    let tied = prctl::set_pdeathsig(Signal::SIGKILL).is_ok() && signals::unblock().is_ok();
    if !tied || parent != *getppid().to_string() {
        return Some(Error::system("the command was not started", "dlock is gone").report());
    }
    let why = Command::new(&program).args(words).exec();
    complain(format_args!("{}: {why}", program.display()));
    // As shells, env and nohup have it.
    Some(if why.kind() == io::ErrorKind::NotFound { 127 } else { 126 }.into())
}

/// The exit code as a shell gives it: 128 + n for a program that was ended by signal n.
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| code.try_into().ok()).unwrap_or(u8::MAX)
}
