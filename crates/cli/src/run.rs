//! `dlock run`: holds a lock while a command runs.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;

use dlock_client::{Guard, ReleaseError};
use nix::sys::signal::Signal;

use crate::args::Run;
use crate::exit::{Error, Failure, complain};
use crate::lock::{Abort, with_lock};
use crate::program::{Program, exit_code};
use crate::signals::Signals;
use crate::supervise::{Margin, Outcome, Supervision};

pub async fn run(args: Run) -> Result<u8, Abort> {
    let margin = Margin::new(args.lock.ttl, args.kill_after)?;
    let work = async |guard, signals: &mut _| hold(guard, &args, signals, margin).await;
    let name = name(&args.command[0]);
    with_lock(&args.lock, &args.servers, &name, |lock| lock.notice(margin.notice()), work).await
}

/// Runs the command under the lock and releases it.
async fn hold(guard: Guard, args: &Run, signals: &mut Signals, margin: Margin) -> Result<u8, Abort> {
    let program = Program::start(&args.command, &environment(&guard))
        .map_err(|why| Error::system("the command was not started", why))?;
    let supervision = Supervision { guard: &guard, program, signals, margin };
    let outcome = supervision.watch().await.map_err(|why| Error::system("supervision", why))?;
    let status = match outcome {
        Outcome::Ended(status) => status,
        Outcome::Lost => return Ok(Failure::Lost.code()),
    };
    match guard.release().await {
        Ok(()) => {}
        // Nobody noticed, but the command may have run without the lock.
        Err(why @ ReleaseError::NotHeld(_)) => {
            let message = format!("the lock was lost before the command ended: it {why}");
            return Err(Error::new(Failure::Lost, message).into());
        }
        // The command is done, and the lease ends the hold.
        Err(why) => complain(why),
    }
    match status.signal() {
        // Ctrl-C: a shell stops its script only if it sees that dlock died of the signal.
        Some(signal) if signal == Signal::SIGINT as i32 => Err(Abort::Signal(Signal::SIGINT)),
        _ => Ok(exit_code(status)),
    }
}

/// Describes the hold to the command.
fn environment(guard: &Guard) -> [(&'static str, Option<OsString>); 3] {
    let text = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
    [
        ("DLOCK_RESOURCE", Some(text(guard.resource()))),
        ("DLOCK_TOKEN", Some(text(guard.token().as_bytes()))),
        // If there is none, that of an outer dlock must not show through.
        ("DLOCK_FENCE", guard.fence().map(|fence| fence.get().to_string().into())),
    ]
}

/// The command's name without its directory.
fn name(command: &OsStr) -> String {
    let name = std::path::Path::new(command).file_name().unwrap_or(command);
    name.display().to_string()
}
