//! How fast the module is, compared with the locks that a server offers without it. The bench starts servers
//! of its own. Contenders take turns, and only ratios of neighbouring turns count: a machine's speed changes
//! every minute.
//!
//! It knows nothing of the module but its commands, and checks only that every acquire was granted and every
//! release ended a hold.
#![allow(clippy::disallowed_methods, reason = "time is what a bench measures")]

mod append;
mod clients;
mod contend;
mod contenders;
mod crowd;
mod growth;
mod guarded;
mod handoff;
mod instructions;
mod lateness;
mod limits;
mod listing;
mod load;
mod many;
mod memory;
mod millions;
mod pairs;
#[cfg(feature = "peers")]
mod peers;
mod ping;
mod plots;
mod positions;
mod processors;
mod queue;
mod queued;
mod quorum;
mod redlocks;
mod resp;
mod run;
mod search;
mod server;
mod stall;
mod table;
mod turns;
mod waiters;
mod waits;

use std::io::{Error, Result};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde_json::json;

use run::{Form, Report, Run};
use server::Program;

#[derive(Parser)]
#[command(about = "Measures the module against the locks a server offers without it")]
struct Options {
    #[command(subcommand)]
    what: What,
    /// Server program; repeat it to measure pairs and instructions on others too
    #[arg(long, global = true, default_value = "/usr/bin/redis-server")]
    server: Vec<PathBuf>,
    /// The module [default: libdlock.so in this program's directory]
    #[arg(long, global = true)]
    module: Option<PathBuf>,
    /// Only contenders whose names contain one of these words, NAME,NAME; baselines always run
    #[arg(long, global = true, value_delimiter = ',')]
    only: Vec<String>,
    /// Measure everything on each server, not only what is compared between them
    #[arg(long, global = true)]
    each: bool,
    /// Fewer and shorter rounds
    #[arg(long, global = true)]
    quick: bool,
    /// Print JSON
    #[arg(long, global = true, conflicts_with = "markdown")]
    json: bool,
    /// Print Markdown
    #[arg(long, global = true)]
    markdown: bool,
    /// Draw plots into this folder
    #[arg(long, global = true)]
    plots: Option<PathBuf>,
}

#[derive(Clone, Subcommand)]
enum What {
    /// Acquire + release pairs per second
    Pairs {
        /// Only variants whose names contain one of these words. A name is a load and what is kept, as in
        /// deep-plain. Loads: deep (pipeline depth 32, 50 connections), long (32, 1), wide (1, 50), lone (1,
        /// 1). Kept: plain (nothing), aof, always, replica
        #[arg(long, value_delimiter = ',')]
        variant: Vec<String>,
    },
    /// What a write by GUARD or FENCED costs, compared with the same write alone
    Guarded,
    /// How soon after a release the waiter has the lock
    Handoff,
    /// 8 and 64 clients contending for one lock
    Contend,
    /// Ten thousand waits of one process over one connection (QUEUE)
    Waits,
    /// What a long wait queue costs
    Queue,
    /// What an operation costs by the number of sharers, permits or queued waiters on its key
    Crowd,
    /// What a walk over all locks costs (LIST)
    Listing,
    /// What the search for a deadlock costs
    Search,
    /// What the append only file grows by
    Append,
    /// How long the server stalls while 100,000 of a million holds expire, and how late a handoff is then
    Stall,
    /// What a lock over several masters costs, compared with one master and with Redlock libraries
    Quorum,
    /// What millions of holds cost: time, memory
    Growth,
    /// How long a file of a million holds takes to load, compared with strings
    Load,
    /// What a hold takes of the server's memory, compared with a string
    Memory,
    /// Ten million holds (2.3 GB): to acquire them, a pair beside them, and how they expire
    Millions,
    /// Instructions per pair, counted by callgrind and compared with the recorded figures
    Instructions {
        /// Record these figures
        #[arg(long)]
        keep: bool,
    },
    /// dlock compared with etcd and ZooKeeper (`make bench-peers`; not in `all`)
    #[cfg(feature = "peers")]
    Peers(peers::Programs),
    /// Everything
    All,
}

impl What {
    /// The measurements of this subcommand, by name.
    fn measurements(self) -> Vec<(&'static str, Measurement)> {
        match self {
            What::Pairs { variant } => vec![("pairs", Box::new(move |run| pairs::run(run, &variant)))],
            What::Guarded => vec![("guarded", Box::new(guarded::run))],
            What::Handoff => vec![("handoff", Box::new(handoff::run))],
            What::Contend => vec![("contend", Box::new(contend::run))],
            What::Waits => vec![("waits", Box::new(waits::run))],
            What::Queue => vec![("queue", Box::new(queue::run))],
            What::Crowd => vec![("crowd", Box::new(crowd::run))],
            What::Listing => vec![("listing", Box::new(listing::run))],
            What::Search => vec![("search", Box::new(search::run))],
            What::Append => vec![("append", Box::new(append::run))],
            What::Stall => vec![("stall", Box::new(stall::run)), ("lateness", Box::new(lateness::run))],
            What::Quorum => vec![("quorum", Box::new(quorum::run))],
            What::Growth => vec![("growth", Box::new(growth::run))],
            What::Load => vec![("load", Box::new(load::run))],
            What::Memory => vec![("memory", Box::new(memory::run))],
            What::Millions => vec![("millions", Box::new(millions::run))],
            What::Instructions { keep } => {
                vec![("instructions", Box::new(move |run| instructions::run(run, keep)))]
            }
            #[cfg(feature = "peers")]
            What::Peers(programs) => vec![("peers", Box::new(move |run| peers::run(run, &programs)))],
            What::All => {
                let each = [
                    What::Pairs { variant: Vec::new() },
                    What::Guarded,
                    What::Handoff,
                    What::Contend,
                    What::Waits,
                    What::Queue,
                    What::Crowd,
                    What::Listing,
                    What::Search,
                    What::Append,
                    What::Stall,
                    What::Quorum,
                    What::Growth,
                    What::Load,
                    What::Memory,
                    What::Millions,
                    What::Instructions { keep: false },
                ];
                each.into_iter().flat_map(What::measurements).collect()
            }
        }
    }
}

/// One measurement; it returns its reports.
type Measurement = Box<dyn Fn(&Run) -> Result<Vec<Report>>>;

/// The measurements made on every server; the others run on the first one only, but for `--each`.
const ON_EACH: [&str; 3] = ["pairs", "memory", "instructions"];

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
        let program = Program::new(&server, &module)?;
        let run = Run { program, quick: options.quick, form, only: options.only.clone() };
        let mine: Vec<_> = measurements
            .iter()
            .filter(|(name, _)| nth == 0 || options.each || ON_EACH.contains(name))
            .collect();
        if mine.is_empty() {
            continue;
        }
        let version = run.program.version();
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
