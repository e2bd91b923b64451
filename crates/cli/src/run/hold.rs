//! `dlock hold`: holds a lock for as long as another process lives.
//!
//! There are two dlock processes. The foreground process, which the script calls, returns as soon as the lock
//! is held. It has started the background process, which acquires the lock, renews it, and releases it when
//! the watched process ends.

use std::fs::File;
use std::io::{BufRead, BufReader, Stderr, stderr};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{SFlag, fstat};
use nix::unistd::{Pid, dup2_stderr};

use crate::args::Hold;
use crate::exit::{Abort, Error, Failure, PRINT_TIMEOUT};
use crate::output::{print, wait_printed, warn};
use crate::run::descendants::start_of;
use crate::run::program::exit_code;
use crate::run::session::{Wanted, in_session};
use crate::signals::no_proc;

/// The name (`argv[0]`) of the background process.
const BACKGROUND: &str = "dlock-holding";

/// How often to check whether the watched process lives.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Returns whether this process is the background process.
pub fn is_background_process() -> bool {
    std::env::args_os().next().is_some_and(|name| name == BACKGROUND)
}

/// Starts the background process with the arguments of this one, and waits until it holds the lock.
pub fn start() -> Result<u8, Abort> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(BACKGROUND).args(std::env::args_os().skip(1)).stdin(Stdio::null()).stdout(Stdio::piped());
    let not_started = |why| Error::system("the lock is not held", why);
    let mut background = command.spawn().map_err(|why| not_started(no_proc(why)))?;
    let mut line = String::new();
    if let Some(pipe) = background.stdout.take() {
        BufReader::new(pipe).read_line(&mut line).map_err(not_started)?;
    }
    if line.is_empty() {
        // The background process has ended without the lock, so this process ends in the same way.
        let status = background.wait().map_err(not_started)?;
        let signal = status.signal().and_then(|signal| Signal::try_from(signal).ok());
        return signal.map_or_else(|| Ok(exit_code(status)), |signal| Err(Abort::Signal(signal)));
    }
    // If printing fails, the lock stays held nevertheless, until the watched process ends.
    print(line.trim_end())?;
    Ok(0)
}

/// The background process: acquires the lock, prints its token, and holds it until the watched process ends.
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
    // Until the lock is held, this process ends when the foreground process ends. If a script kills the
    // foreground process while it waits, for example after a timeout, this process must not acquire the lock
    // later.
    end_with_parent(true)?;
    let resources = std::slice::from_ref(&args.resource);
    let holder = format!("process {pid}");
    in_session(&args.servers, async |session| {
        let wanted = Wanted { resources, args: &args.lock, holder: &holder };
        let guard = tokio::select! {
            acquired = session.acquire(wanted, async |_, lock| lock.acquire().await) => acquired?,
            () = ended() => return Err(Error::usage(format_args!("process {pid} has ended")).into()),
        };
        let token = String::from_utf8_lossy(guard.token().as_bytes()).into_owned();
        end_with_parent(false)?;
        print(&guard.fence().map_or(token.clone(), |fence| format!("{token} {}", fence.get())))?;
        leave_stderr()?;
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
                    warn(format_args!("the lock is lost: {why}; ending process {pid}"));
                    if start_of(pid) == Some(started) {
                        let _ = kill(pid, Signal::SIGTERM);
                    }
                    return Ok(Failure::Lost.code());
                }
                // Ctrl-C and the SIGTERM of a service manager also reach the watched process. This process
                // ignores both, because the watched process needs the lock until it ends.
                signal = session.signals.end() => drop(signal.map_err(|why| Error::system("signals", why))?),
            }
        }
    })
    .await
}

/// Replaces standard error by /dev/null, unless it is a terminal or a file. The reader of a pipe, such as a
/// shell in `$(dlock hold .. 2>&1)`, waits until the last process has closed it.
fn leave_stderr() -> Result<(), Error> {
    let has_reader = |error: &Stderr| {
        let kind = fstat(error).map(|file| SFlag::from_bits_truncate(file.st_mode) & SFlag::S_IFMT);
        matches!(kind, Ok(kind) if kind == SFlag::S_IFIFO || kind == SFlag::S_IFSOCK)
    };
    if has_reader(&stderr()) {
        wait_printed(PRINT_TIMEOUT);
        let null = File::options().write(true).open("/dev/null");
        let replaced = null.and_then(|null| Ok(dup2_stderr(null)?));
        replaced.map_err(|why| Error::system("standard error", why))?;
    }
    Ok(())
}

/// Sets whether the kernel sends SIGTERM to this process when its parent process ends.
fn end_with_parent(ends: bool) -> Result<(), Error> {
    let signal = ends.then_some(Signal::SIGTERM);
    prctl::set_pdeathsig(signal).map_err(|why| Error::system("the end of the parent", why))
}
