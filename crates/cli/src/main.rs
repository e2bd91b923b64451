//! The command `dlock`: locks for shells, cron and operators.
//!
//! This crate parses arguments, runs and ends processes, reads signals, and prints. It decides nothing about
//! locks: `dlock-client` acquires, renews and releases them.
//!
//! Where to start:
//! - [`args::Command`]: the subcommands and their options; `--help` shows its doc comments.
//! - [`run::session::Session`]: a client, and the signals that interrupt an acquisition. `run`, `elect`,
//!   `acquire` and `hold` work in a session.
//! - [`run::supervise::Supervision`]: a command that runs under a lock, and ends before the lease does.
//! - [`operators`]: `status`, `list`, `doctor` and the others that read the servers.
//! - [`lock_state::State`]: the state of a lock over all servers, from the answer of each.
//! - [`exit::Error`], [`exit::Failure`]: messages and exit codes.
#![forbid(unsafe_code)]

mod args;
mod exit;
mod lock_state;
mod manual;
mod operators;
mod output;
mod run;
mod servers;
mod signals;

use std::ffi::OsString;
use std::io::{Write, stdout};
use std::process::ExitCode;

use args::Command;
use exit::{Abort, Error, Failure};
use operators::{doctor, exporter, inspect, list, log, metrics, top};
use output::NotPrinted;
use run::session::exit_on_signal;
use run::{elect, hold, program, steps};

fn main() -> ExitCode {
    // `run` starts a second dlock process. There, this call replaces dlock by the user's command. In every
    // other process, the call returns `None`.
    let code = program::become_program().unwrap_or_else(dlock);
    exit::flush_stderr();
    code
}

fn dlock() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let done = match args::parse(words.clone()) {
        Ok(dlock) => execute(dlock.command),
        Err(answer) => print_answer(&args::add_tip(args::redact(answer), &words)),
    };
    match done {
        Ok(code) => code.into(),
        Err(Abort::Error(why)) => why.report(),
        Err(Abort::Signal(signal)) => exit::end_by(signal).into(),
    }
}

/// Prints an answer of clap: help, the version (exit code 0), or a usage error.
fn print_answer(answer: &clap::Error) -> Result<u8, Abort> {
    let printed = answer.print().and_then(|()| stdout().flush());
    if answer.use_stderr() {
        return Ok(Failure::Usage.code());
    }
    printed.map_err(NotPrinted)?;
    Ok(0)
}

fn execute(command: Command) -> Result<u8, Abort> {
    match command {
        Command::Completions { shell } => return manual::completions(shell),
        Command::Man { page } => return manual::man(page.as_deref()),
        // Only starts the background process, and waits for its first line.
        Command::Hold(_) if !hold::is_background_process() => return hold::start(),
        _ => {}
    }
    // Current-thread, so that this thread starts the program of `run` and outlives it. The kernel kills the
    // program when the thread that started it ends (PR_SET_PDEATHSIG).
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|why| Error::system("the runtime", why))?;
    let done = runtime.block_on(async {
        match command {
            Command::Run(args) => run::run(args).await,
            Command::Acquire(args) => steps::acquire(args).await,
            Command::Hold(args) => hold::hold(args).await,
            Command::Elect(args) if args.observe => exit_on_signal(elect::observe(&args)).await,
            Command::Elect(args) => elect::stand(&args).await,
            Command::Release(args) => steps::release(args).await,
            Command::Extend(args) => steps::extend(args).await,
            Command::Wait(args) => exit_on_signal(steps::wait(args)).await,
            Command::Inspect(args) => inspect::inspect(args).await,
            Command::List(args) => list::list(args).await,
            Command::Log(args) => exit_on_signal(log::log(args)).await,
            Command::Status(args) => operators::status::status(args).await,
            Command::Doctor(args) => doctor::doctor(args).await,
            Command::Metrics(args) => metrics::metrics(args).await,
            Command::Exporter(args) => exit_on_signal(exporter::exporter(args)).await,
            Command::Top(args) => top::top(args).await,
            Command::Break(args) => inspect::break_holds(args).await,
            Command::Completions { .. } | Command::Man { .. } => unreachable!("executed above"),
        }
    });
    // Does not wait for a name lookup that is still under way.
    runtime.shutdown_background();
    done
}
