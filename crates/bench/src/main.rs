//! How fast the module is beside what one has without it. It starts its own servers; contenders take turns, and only
//! ratios of neighbouring turns count, for a machine changes from minute to minute.
//!
//! It knows nothing of the module but its commands, and checks no behaviour beyond "every acquire was granted, every
//! release ended one".
#![allow(clippy::disallowed_methods, reason = "time is what a bench measures")]

mod contend;
mod contenders;
mod handover;
mod lateness;
mod limits;
mod line;
mod many;
mod pairs;
mod ping;
mod resp;
mod rivals;
mod run;
mod server;
mod stall;
mod table;
mod waiters;

use std::io::{Error, Result};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde_json::json;

use run::{Form, Report, Run};
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
    /// Only contenders with one of these words in their names, NAME,NAME; those that ratios refer to always run
    #[arg(long, global = true, value_delimiter = ',')]
    only: Vec<String>,
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

#[derive(Clone, Subcommand)]
enum What {
    /// Acquire + release pairs a second
    Pairs {
        /// Only variants with one of these words in their names: deep-plain, wide-plain, deep-aof, wide-aof,
        /// deep-replica, wide-replica
        #[arg(long, value_delimiter = ',')]
        variant: Vec<String>,
    },
    /// How long after a release the one who waits has the lock
    Handover,
    /// Eight and 64 clients that fight for one lock
    Contend,
    /// What a long line of waiters costs
    Line,
    /// How long the server answers nobody while 100,000 of a million holds end, and how late a hand-over is then
    Stall,
    /// Everything
    All,
}

impl What {
    /// The measurements behind it, with what they are called.
    fn measurements(self) -> Vec<(&'static str, Measurement)> {
        match self {
            What::Pairs { variant } => vec![("pairs", Box::new(move |run| pairs::run(run, &variant)))],
            What::Handover => vec![("handover", Box::new(handover::run))],
            What::Contend => vec![("contend", Box::new(contend::run))],
            What::Line => vec![("line", Box::new(line::run))],
            What::Stall => vec![("stall", Box::new(stall::run)), ("lateness", Box::new(lateness::run))],
            What::All => {
                let each = [
                    What::Pairs { variant: Vec::new() },
                    What::Handover,
                    What::Contend,
                    What::Line,
                    What::Stall,
                ];
                each.into_iter().flat_map(What::measurements).collect()
            }
        }
    }
}

type Measurement = Box<dyn Fn(&Run) -> Result<Vec<Report>>>;

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
    let program = Program { server: options.server, module };
    let run = Run { program, quick: options.quick, form, only: options.only };
    let version = run.program.version()?;
    let measurements = options.what.measurements();
    let names: Vec<_> = measurements.iter().map(|(name, _)| *name).collect();
    run.say(&format!("{} on {version}{}:\n", names.join(", "), if run.quick { ", quick" } else { "" }));
    let mut reports = Vec::new();
    for (_, measure) in measurements {
        reports.extend(measure(&run)?);
    }
    if form == Form::Json {
        let reports: Vec<_> = reports.into_iter().map(|report| report.json).collect();
        println!("{:#}", json!({ "server": version, "reports": reports }));
    }
    Ok(())
}
