//! `dlock run`: a lock is held while a command runs.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;

use dlock_client::{Guard, ReleaseError};
use nix::sys::signal::Signal;

use crate::args::Run;
use crate::exit::{Error, Failure, complain};
use crate::obtain::{Countdown, PositionLine, Stopped, flush, label, tell_unusable, unless_signalled};
use crate::program::{Program, exit_code};
use crate::signals::Signals;
use crate::supervise::{Margin, Outcome, Supervision};

pub async fn run(options: Run) -> Result<u8, Stopped> {
    let wanted = &options.wanted;
    let margin = Margin::new(wanted.ttl, options.kill_after)?;
    let clock = Countdown::begin();
    let mut signals = Signals::listen().map_err(|why| Error::system("signals", why))?;
    let client = unless_signalled(&mut signals, options.servers.client()).await?;
    tell_unusable(&client);

    let mut place = PositionLine::new(&wanted.resource);
    let lock = wanted.lock(&client, &clock, label(&name(&options.command[0]))).notice(margin.notice());
    let obtained = unless_signalled(&mut signals, place.watch(lock).acquire()).await;
    drop(place);
    let done = match obtained {
        Ok(guard) => hold(guard, &options, &mut signals, margin).await,
        Err(obstacle) => Err(obstacle),
    };
    flush(&client, &options.servers).await;
    done
}

/// Runs the command under the lock and releases it.
async fn hold(guard: Guard, options: &Run, signals: &mut Signals, margin: Margin) -> Result<u8, Stopped> {
    let program = Program::start(&options.command, &environment(&guard))
        .map_err(|why| Error::system("the command was not started", why))?;
    let supervision = Supervision { guard: &guard, program, signals, margin };
    let outcome = supervision.watch().await.map_err(|why| Error::system("supervision", why))?;
    let status = match outcome {
        Outcome::Ended(status) => status,
        Outcome::Lost => return Ok(Failure::Lost.code()),
    };
    match guard.release().await {
        Ok(()) => {}
        // Nobody had noticed, but the command was not alone for all of its time.
        Err(why @ ReleaseError::NotHeld(_)) => {
            return Err(Error::new(
                Failure::Lost,
                format_args!("the lock was lost before the command ended: it {why}"),
            )
            .into());
        }
        // The command is done, and the lease ends the hold.
        Err(why) => complain(why),
    }
    match status.signal() {
        // Ctrl-C: a shell around us stops its script only if it sees that we died of it.
        Some(signal) if signal == Signal::SIGINT as i32 => Err(Stopped::Signal(Signal::SIGINT)),
        _ => Ok(exit_code(status)),
    }
}

/// What the command is told about its hold.
fn environment(guard: &Guard) -> [(&'static str, Option<OsString>); 3] {
    let text = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
    [
        ("DLOCK_RESOURCE", Some(text(guard.resource()))),
        ("DLOCK_TOKEN", Some(text(guard.token().as_bytes()))),
        // Without one, not that of a run around this one.
        ("DLOCK_FENCE", guard.fence().map(|fence| fence.get().to_string().into())),
    ]
}

/// The command's name without its folder.
fn name(command: &OsStr) -> String {
    let name = std::path::Path::new(command).file_name().unwrap_or(command);
    name.display().to_string()
}
