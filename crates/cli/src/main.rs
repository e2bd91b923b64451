//! The command `dlock`: locks for shells, cron and people. The locks themselves are in `dlock-client`; this
//! crate handles arguments, processes and signals.
#![forbid(unsafe_code)]

mod args;
mod around;
mod break_holds;
mod descendants;
mod doctor;
mod elect;
mod exit;
mod exporter;
mod hold;
mod hold_for;
mod inspect;
mod list;
mod lock;
mod log;
mod metrics;
mod pages;
mod program;
mod run;
mod servers;
mod shown;
mod signals;
mod status;
mod supervise;
mod table;
mod texts;
mod top;
mod wrong_call;

use std::ffi::OsString;
use std::io::{Write, stdout};
use std::process::ExitCode;

use args::Command;
use exit::{Error, Failure};
use hold::not_printed;
use lock::{Abort, unless_ended};

fn main() -> ExitCode {
    let code = program::become_program().unwrap_or_else(dlock);
    exit::flush_complaints();
    code
}

fn dlock() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let done = match args::parse(words.clone()) {
        Ok(dlock) => execute(dlock.command),
        Err(answer) => say(&wrong_call::explain(wrong_call::redact(answer), &words)),
    };
    match done {
        Ok(code) => code.into(),
        Err(Abort::Error(why)) => why.report(),
        Err(Abort::Signal(signal)) => exit::end_by(signal).into(),
    }
}

/// Prints an answer of clap. Help and version are not errors.
fn say(answer: &clap::Error) -> Result<u8, Abort> {
    let printed = answer.print().and_then(|()| stdout().flush());
    if answer.use_stderr() {
        return Ok(Failure::Usage.code());
    }
    printed.map_err(not_printed)?;
    Ok(0)
}

fn execute(command: Command) -> Result<u8, Abort> {
    match command {
        Command::Completions { shell } => return pages::completions(shell),
        Command::Man { page } => return pages::man(page.as_deref()),
        // Before the runtime has threads.
        Command::Hold(_) if !hold_for::is_holding() => return hold_for::start(),
        Command::Run(_)
        | Command::Acquire(_)
        | Command::Hold(_)
        | Command::Elect(_)
        | Command::Wait(_)
        | Command::Log(_)
        | Command::Exporter(_) => {
            signals::block().map_err(|why| Error::system("signals", why))?;
        }
        _ => {}
    }
    // A single thread that lasts: the kernel ends a program that is run with the thread that started it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|why| Error::system("the runtime", why))?;
    let done = runtime.block_on(async {
        match command {
            Command::Run(args) => run::run(args).await,
            Command::Acquire(args) => hold::acquire(args).await,
            Command::Hold(args) => hold_for::hold(args).await,
            Command::Elect(args) if args.observe => unless_ended(elect::observe(&args)).await,
            Command::Elect(args) => elect::stand(&args).await,
            Command::Release(args) => hold::release(args).await,
            Command::Extend(args) => hold::extend(args).await,
            Command::Wait(args) => unless_ended(hold::wait(args)).await,
            Command::Inspect(args) => inspect::inspect(args).await,
            Command::List(args) => list::list(args).await,
            Command::Log(args) => unless_ended(log::log(args)).await,
            Command::Status(args) => status::status(args).await,
            Command::Doctor(args) => doctor::doctor(args).await,
            Command::Metrics(args) => metrics::metrics(args).await,
            Command::Exporter(args) => unless_ended(exporter::exporter(args)).await,
            Command::Top(args) => top::top(args).await,
            Command::Break(args) => break_holds::break_holds(args).await,
            Command::Completions { .. } | Command::Man { .. } => unreachable!("executed above"),
        }
    });
    // A pending name lookup must not delay the exit.
    runtime.shutdown_background();
    done
}
