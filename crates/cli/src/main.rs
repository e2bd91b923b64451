//! The command `dlock`: locks for shells, cron and people. What a lock is and who holds it is `dlock-client`'s affair;
//! here are words, processes and signals.
#![forbid(unsafe_code)]

mod args;
mod break_holds;
mod descendants;
mod exit;
mod hold;
mod inspect;
mod obtain;
mod pages;
mod program;
mod run;
mod servers;
mod shown;
mod signals;
mod supervise;
mod texts;
mod wrong_call;

use std::process::ExitCode;

use args::Command;
use exit::{Error, Failure};
use obtain::Stopped;

fn main() -> ExitCode {
    if let Some(code) = program::become_program() {
        return code;
    }
    let dlock = match args::parse(std::env::args_os().collect()) {
        Ok(dlock) => dlock,
        Err(answer) => {
            let answer = wrong_call::discreet(answer);
            let _ = answer.print();
            // Help and version are answers too.
            return if answer.use_stderr() { Failure::Usage.code().into() } else { ExitCode::SUCCESS };
        }
    };
    match carry_out(dlock.command) {
        Ok(code) => code.into(),
        Err(Stopped::Error(why)) => why.report(),
        Err(Stopped::Signal(signal)) => {
            signals::die_by(signal);
            (128 + signal as u8).into()
        }
    }
}

fn carry_out(command: Command) -> Result<u8, Stopped> {
    match command {
        Command::Completions { shell } => return Ok(pages::completions(shell)?),
        Command::Man { page } => return Ok(pages::man(page.as_deref())?),
        // Before the runtime has threads.
        Command::Run(_) | Command::Acquire(_) => {
            signals::block().map_err(|why| Error::system("signals", why))?;
        }
        _ => {}
    }
    // One thread, which lasts: with the thread that has started it, a program that is run would be ended.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|why| Error::system("the runtime", why))?;
    let done = runtime.block_on(async {
        match command {
            Command::Run(options) => run::run(options).await,
            Command::Acquire(options) => hold::acquire(options).await,
            Command::Release(options) => hold::release(options).await,
            Command::Extend(options) => hold::extend(options).await,
            Command::Wait(options) => hold::wait(options).await,
            Command::Inspect(options) => inspect::inspect(options).await,
            Command::Break(options) => break_holds::break_holds(options).await,
            Command::Completions { .. } | Command::Man { .. } => unreachable!("carried out above"),
        }
    });
    // A name that is still being looked up must not hold us up.
    runtime.shutdown_background();
    done
}
