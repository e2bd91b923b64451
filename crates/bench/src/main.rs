//! How fast the module is beside what one has without it. It starts its own servers; contenders take turns, and only
//! ratios of neighbouring turns count, for a machine changes from minute to minute.
//!
//! It knows nothing of the module but its commands, and checks no behaviour beyond "every acquire was granted, every
//! release ended one".
#![allow(clippy::disallowed_methods, reason = "time is what a bench measures")]

mod contenders;
mod pairs;
mod resp;
mod run;
mod server;
mod table;

use std::io::{Error, Result};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde_json::json;

use run::{Form, Run};
use server::Program;

#[derive(Parser)]
#[command(about = "How fast the module is beside what one has without it")]
struct Options {
    #[command(subcommand)]
    what: What,
    /// The server program
    #[arg(long, global = true, default_value = "/usr/bin/redis-server")]
    server: PathBuf,
    /// The module; by default the one built beside this program
    #[arg(long, global = true)]
    module: Option<PathBuf>,
    /// Fewer and shorter rounds
    #[arg(long, global = true)]
    quick: bool,
    /// Print JSON
    #[arg(long, global = true, conflicts_with = "markdown")]
    json: bool,
    /// Print Markdown
    #[arg(long, global = true)]
    markdown: bool,
}

#[derive(Clone, Copy, Subcommand)]
enum What {
    /// Acquire + release pairs a second
    Pairs,
}

fn main() -> ExitCode {
    match measure(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("dlock-bench: {why}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: Options) -> Result<()> {
    let module = match options.module {
        Some(module) => module,
        None => std::env::current_exe()?.with_file_name("libdlock.so"),
    };
    let module = module.canonicalize().map_err(|why| Error::other(format!("{}: {why}", module.display())))?;
    let form = match (options.json, options.markdown) {
        (true, _) => Form::Json,
        (_, true) => Form::Markdown,
        _ => Form::Plain,
    };
    let run = Run { program: Program { server: options.server, module }, quick: options.quick, form };
    let version = run.program.version()?;
    if form != Form::Json {
        println!("On {version}:\n");
    }
    let reports = match options.what {
        What::Pairs => pairs::run(&run)?,
    };
    if form == Form::Json {
        let reports: Vec<_> = reports.into_iter().map(|report| report.json).collect();
        println!("{:#}", json!({ "server": version, "reports": reports }));
    }
    Ok(())
}
