//! How fast the module is beside what one has without it. It starts its own servers; contenders take turns, and only
//! ratios of neighbouring turns count, for a machine changes from minute to minute.
//!
//! It knows nothing of the module but its commands, and checks no behaviour beyond "every acquire was granted, every
//! release ended one".
#![allow(clippy::disallowed_methods, reason = "time is what a bench measures")]

mod contend;
mod contenders;
mod growth;
mod handoff;
mod instructions;
mod lateness;
mod limits;
mod line;
mod many;
mod pairs;
#[cfg(feature = "peers")]
mod peers;
mod ping;
mod plots;
mod processors;
mod quorum;
mod redlocks;
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
    /// The server program; given again: others to measure pairs and instructions on
    #[arg(long, global = true, default_value = "/usr/bin/redis-server")]
    server: Vec<PathBuf>,
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
    /// Draw pictures into this folder
    #[arg(long, global = true)]
    plots: Option<PathBuf>,
}

#[derive(Clone, Subcommand)]
enum What {
    /// Acquire + release pairs a second
    Pairs {
        /// Only variants with one of these words in their names. A load: deep (pipeline depth 32, 50 connections),
        /// long (32, 1), wide (1, 50), lone (1, 1); and what is kept: plain, aof, always, replica. deep-plain is one
        #[arg(long, value_delimiter = ',')]
        variant: Vec<String>,
    },
    /// How long after a release the one who waits has the lock
    Handoff,
    /// Eight and 64 clients that fight for one lock
    Contend,
    /// What a long line of waiters costs
    Line,
    /// How long the server answers nobody while 100,000 of a million holds end, and how late a handoff is then
    Stall,
    /// What a lock over several masters costs, beside one master's and beside Redlock libraries
    Quorum,
    /// What very many holds cost: time, memory, loading
    Growth,
    /// Instructions a pair, counted by callgrind and compared with the kept figures
    Instructions {
        /// Keep these figures
        #[arg(long)]
        keep: bool,
    },
    /// etcd and ZooKeeper beside the lock (`make bench-peers`; not in `all`)
    #[cfg(feature = "peers")]
    Peers(peers::Programs),
    /// Everything
    All,
}

impl What {
    /// The measurements behind it, with what they are called.
    fn measurements(self) -> Vec<(&'static str, Measurement)> {
        match self {
            What::Pairs { variant } => vec![("pairs", Box::new(move |run| pairs::run(run, &variant)))],
            What::Handoff => vec![("handoff", Box::new(handoff::run))],
            What::Contend => vec![("contend", Box::new(contend::run))],
            What::Line => vec![("line", Box::new(line::run))],
            What::Stall => vec![("stall", Box::new(stall::run)), ("lateness", Box::new(lateness::run))],
            What::Quorum => vec![("quorum", Box::new(quorum::run))],
            What::Growth => vec![("growth", Box::new(growth::run))],
            What::Instructions { keep } => {
                vec![("instructions", Box::new(move |run| instructions::run(run, keep)))]
            }
            #[cfg(feature = "peers")]
            What::Peers(programs) => vec![("peers", Box::new(move |run| peers::run(run, &programs)))],
            What::All => {
                let each = [
                    What::Pairs { variant: Vec::new() },
                    What::Handoff,
                    What::Contend,
                    What::Line,
                    What::Stall,
                    What::Quorum,
                    What::Growth,
                    What::Instructions { keep: false },
                ];
                each.into_iter().flat_map(What::measurements).collect()
            }
        }
    }
}

/// What was measured, by the name of its measurement.
type Measurement = Box<dyn Fn(&Run) -> Result<Vec<Report>>>;

/// The measurements that are of interest on every server; the others are made on the first one.
const ON_EACH: [&str; 2] = ["pairs", "instructions"];

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
    let measurements = options.what.measurements();
    let mut results = Vec::new();
    for (nth, server) in options.server.into_iter().enumerate() {
        let program = Program { server, module: module.clone() };
        let run = Run { program, quick: options.quick, form, only: options.only.clone() };
        let mine: Vec<_> =
            measurements.iter().filter(|(name, _)| nth == 0 || ON_EACH.contains(name)).collect();
        let version = run.program.version()?;
        let names: Vec<_> = mine.iter().map(|(name, _)| *name).collect();
        run.say(&format!("{} on {version}{}:\n", names.join(", "), if run.quick { ", quick" } else { "" }));
        let mut reports = Vec::new();
        for (_, measure) in mine {
            reports.extend(measure(&run)?.into_iter().map(|report| report.json));
        }
        if let Some(folder) = &options.plots {
            let folder = folder.join(version.to_lowercase().replace(' ', "-"));
            let files = plots::draw(&version, &reports, &folder)?;
            run.say(&format!("Drawn in {}: {}\n", folder.display(), files.join(", ")));
        }
        results.push(json!({ "server": version, "reports": reports }));
    }
    if form == Form::Json {
        println!("{:#}", json!(results));
    }
    Ok(())
}
