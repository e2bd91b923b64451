//! `dlock hold`: holds a lock for as long as a process lives.
//!
//! Two processes: the one that is called ends when the lock is held, so that the script goes on; the other
//! one, which it has started, acquires the lock and renews it.

use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::time::Duration;

use dlock_client::{Acquire, Client, Guard};
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::args::Hold;
use crate::descendants::start_of;
use crate::exit::{Error, Failure, complain};
use crate::hold::print;
use crate::lock::{Abort, Wanted, with_lock};
use crate::program::exit_code;
use crate::signals::Signals;

/// The name of the process that holds the lock.
const HOLDING: &str = "dlock-holding";

/// How often to check whether the process lives.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Whether this process is the one that holds the lock.
pub fn is_holding() -> bool {
    std::env::args_os().next().is_some_and(|name| name == HOLDING)
}

/// Starts the process that holds the lock, with the same arguments, and waits until it does.
pub fn start() -> Result<u8, Abort> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(HOLDING).args(std::env::args_os().skip(1)).stdin(Stdio::null()).stdout(Stdio::piped());
    let not_started = |why| Error::system("the lock is not held", why);
    let mut holding = command.spawn().map_err(not_started)?;
    let mut line = String::new();
    if let Some(pipe) = holding.stdout.take() {
        BufReader::new(pipe).read_line(&mut line).map_err(not_started)?;
    }
    if line.is_empty() {
        let status = holding.wait().map_err(not_started)?;
        let signal = status.signal().and_then(|signal| Signal::try_from(signal).ok());
        return signal.map_or_else(|| Ok(exit_code(status)), |signal| Err(Abort::Signal(signal)));
    }
    // If it cannot be printed the lock is held all the same: it ends with the process.
    print(line.trim_end())?;
    Ok(0)
}

/// Acquires the lock, says so, and holds it until the process ends.
pub async fn hold(args: Hold) -> Result<u8, Abort> {
    let pid = Pid::from_raw(args.pid);
    let Some(started) = start_of(pid) else {
        return Err(Error::usage(format_args!("there is no process {pid}")).into());
    };
    let ended = async || {
        while start_of(pid) == Some(started) {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    };
    // Until then nobody has the lock, and it is for nobody without the one who waits for the line.
    follow_parent(true)?;
    let resources = std::slice::from_ref(&args.resource);
    let what = format!("process {pid}");
    let wanted = Wanted { resources, args: &args.lock, what: &what };
    let acquire = async |client: &Client, lock: Acquire| {
        let acquired = tokio::select! {
            acquired = lock.acquire() => acquired,
            () = ended() => return Err(Error::usage(format_args!("process {pid} has ended"))),
        };
        match acquired {
            Ok(guard) => Ok(guard),
            Err(why) => Err(args.lock.refusal(client, resources, why).await),
        }
    };
    let work = async |guard: Guard, signals: &mut Signals| {
        let token = String::from_utf8_lossy(guard.token().as_bytes()).into_owned();
        follow_parent(false)?;
        print(&guard.fence().map_or(token.clone(), |fence| format!("{token} {}", fence.get())))?;
        let ended = ended();
        tokio::pin!(ended);
        loop {
            tokio::select! {
                biased;
                () = &mut ended => {
                    guard.release().await?;
                    return Ok(0);
                }
                why = guard.lost() => {
                    complain(format_args!("the lock is lost: {why}; ending process {pid}"));
                    if start_of(pid) == Some(started) {
                        let _ = kill(pid, Signal::SIGTERM);
                    }
                    return Ok(Failure::Lost.code());
                }
                // The keys of the terminal are for the process, and so is the SIGTERM of a service manager to
                // all of a service: as long as it survives them it needs the lock.
                signal = signals.end() => drop(signal.map_err(|why| Error::system("signals", why))?),
            }
        }
    };
    with_lock(&args.servers, wanted, acquire, work).await
}

/// Whether this process is to end, by SIGTERM, with the one that has started it.
fn follow_parent(follows: bool) -> Result<(), Error> {
    let signal = follows.then_some(Signal::SIGTERM);
    prctl::set_pdeathsig(signal).map_err(|why| Error::system("the end of the parent", why))
}
