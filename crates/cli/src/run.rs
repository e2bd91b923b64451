//! The subcommands that acquire, keep or release locks. This file is `dlock run`, which holds locks while a
//! command runs.

pub mod elect;
pub mod hold;
pub mod program;
pub mod session;
pub mod steps;
pub mod supervise;

mod descendants;
mod parent_run;
mod position;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use dlock_client::{Guards, ReleaseError};
use nix::sys::signal::Signal;

use crate::args::Run;
use crate::exit::{Abort, Error, Failure};
use crate::output::warn;
use crate::run::parent_run::{Entry, OWNER, ParentRun};
use crate::run::program::{Program, become_command, exit_code};
use crate::run::session::{Session, Wanted, in_session, unless_signalled};
use crate::run::supervise::{Margin, Outcome, Supervision};
use crate::signals::{self, Signals};

/// The holds under which a command runs.
pub struct Held {
    /// The holds that this run re-enters. They belong to the parent run (the `dlock run` that started this
    /// process), which renews and releases them.
    pub entered: Vec<Entry>,
    /// Holds of this run. `None` if the parent run has all the locks.
    pub guards: Option<Guards>,
}

pub async fn run(args: Run) -> Result<u8, Abort> {
    let margin = Margin::new(args.lock.ttl, args.kill_after)?;
    if args.resources.len() > 1 && args.resources.iter().any(|name| name.as_bytes().contains(&b'\n')) {
        let message = "a resource with a line break must be the only one: DLOCK_RESOURCE has a line for each";
        return Err(Error::usage(message).into());
    }
    let code = in_session(&args.servers, async |session| {
        let held = acquire(&args, margin, session).await?;
        hold(held, &args.command, &mut session.signals, margin, args.done_for).await
    });
    Ok(code.await?.unwrap_or(Failure::Lost.code()))
}

async fn acquire(args: &Run, margin: Margin, session: &mut Session) -> Result<Held, Abort> {
    let live_holds = ParentRun::from_environment().live_holds(&session.client, &args.resources, &args.lock);
    let entered = unless_signalled(&mut session.signals, live_holds).await?;
    if !entered.is_empty() && (args.at_least.is_some() || args.done_for.is_some()) {
        let name = entered[0].resource.display();
        let message = format!("the parent run releases {name}: give --at-least and --done-for to that run");
        return Err(Error::usage(message).into());
    }
    let missing = args.resources.iter().filter(|name| entered.iter().all(|entry| entry.resource != **name));
    let missing: Vec<&[u8]> = missing.map(|name| name.as_bytes()).collect();
    if missing.is_empty() {
        return Ok(Held { entered, guards: None });
    }
    let wanted = Wanted { resources: &args.resources, args: &args.lock, holder: &name(&args.command[0]) };
    let guards = session.acquire(wanted, async |client, lock| {
        let mut lock = lock.notice(margin.notice());
        if let Some(longest) = args.max_hold {
            lock = lock.max_hold(longest);
        }
        if let Some(time) = args.at_least {
            lock = lock.at_least(time);
        }
        if let Some(delay) = args.done_for {
            lock = lock.release_delay(delay);
        }
        client.lock_all(missing).each(|_| lock).acquire().await
    });
    Ok(Held { entered, guards: Some(guards.await?) })
}

/// Runs the command under the locks and releases them. If the command exits with 0, the locks stay closed for
/// `done_for`. Returns its exit code, or `None` if the lock was lost.
/// In that case, the loss has been reported and the command has ended.
pub async fn hold(
    held: Held,
    command: &[OsString],
    signals: &mut Signals,
    margin: Margin,
    done_for: Option<Duration>,
) -> Result<Option<u8>, Abort> {
    let Some(guards) = held.guards else {
        // The parent run supervises this process, so this process can become the command.
        signals::unblock().map_err(|why| Error::system("signals", why))?;
        let mut program = Command::new(&command[0]);
        program.args(&command[1..]);
        return Ok(Some(become_command(program)));
    };
    let program = Program::start(command, &environment(&held.entered, &guards))
        .map_err(|why| Error::system("the command was not started", why))?;
    let supervision = Supervision { guards: &guards, program, signals, margin };
    let outcome = supervision.watch().await.map_err(|why| Error::system("supervision", why))?;
    let status = match outcome {
        Outcome::Ended(status) => status,
        Outcome::Lost => return Ok(None),
    };
    let released = match done_for {
        Some(delay) if status.success() => guards.release_with_delay(delay).await,
        _ => guards.release().await,
    };
    match released {
        Ok(()) => {}
        // The loss was not noticed earlier, so the command may have run without the lock.
        Err(why @ ReleaseError::NotHeld(_)) => {
            let message = format!("the lock was lost before the command ended: {why}");
            return Err(Error::new(Failure::Lost, message).into());
        }
        // Only a warning, because the command has ended, and the lease will end the hold.
        Err(why) => warn(why),
    }
    match status.signal() {
        // After Ctrl-C, a shell ends its script only if dlock itself dies of SIGINT.
        Some(signal) if signal == Signal::SIGINT as i32 => Err(Abort::Signal(Signal::SIGINT)),
        _ => Ok(Some(exit_code(status))),
    }
}

/// The variables that describe the holds to the command. All but DLOCK_OWNER have one line for each hold.
fn environment(entered: &[Entry], guards: &Guards) -> [(&'static str, Option<OsString>); 4] {
    let own = guards.iter().map(|guard| Entry {
        resource: OsStr::from_bytes(guard.resource()).to_owned(),
        token: OsStr::from_bytes(guard.token().as_bytes()).to_owned(),
        fence: guard.fence().map(|fence| fence.get().to_string().into()),
    });
    let all: Vec<Entry> = entered.iter().cloned().chain(own).collect();
    let lines = |field: fn(&Entry) -> Option<&OsStr>| {
        let lines: Option<Vec<&[u8]>> = all.iter().map(|entry| field(entry).map(OsStr::as_bytes)).collect();
        lines.map(|lines| OsString::from_vec(lines.join(&b'\n')))
    };
    [
        ("DLOCK_RESOURCE", lines(|entry| Some(&entry.resource))),
        ("DLOCK_TOKEN", lines(|entry| Some(&entry.token))),
        // If one of the holds has no fence, `None` removes the variable, so that the command does not inherit
        // the fence of the parent run.
        ("DLOCK_FENCE", lines(|entry| entry.fence.as_deref())),
        ("DLOCK_OWNER", Some(OWNER.clone())),
    ]
}

/// The command's name without its directory.
pub fn name(command: &OsStr) -> String {
    let name = std::path::Path::new(command).file_name().unwrap_or(command);
    name.display().to_string()
}
