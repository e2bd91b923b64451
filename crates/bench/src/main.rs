//! Measures the module against the locks that a server offers without it, on servers that the bench starts.
//!
//! The contenders, which are dlock and the locks that it is compared with, take turns. Only the ratios of
//! neighbouring turns count, because the speed of a shared machine changes every minute. The bench checks
//! only that every acquire was granted and that every release ended a hold; `tests/` checks everything else.
#![allow(clippy::disallowed_methods, reason = "a bench measures time")]

mod cluster;
mod contend;
mod contenders;
mod handoff;
mod holds;
mod instructions;
mod lock_client;
mod memory;
mod pairs;
mod queue_process;
mod quorum;
mod resp;
mod run;
mod server;
mod stall;
mod table;

use std::io::{Error, Result};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde_json::json;

use run::{Format, Report, Run};
use server::Program;

#[derive(Parser)]
#[command(about = "Measures the module against the locks a server offers without it")]
struct Options {
    #[command(subcommand)]
    part: Part,
    /// Server program; repeat it to measure pairs, memory and instructions on others too
    #[arg(long, global = true, default_value = "/usr/bin/redis-server")]
    server: Vec<PathBuf>,
    /// The module [default: libdlock.so in this program's directory]
    #[arg(long, global = true)]
    module: Option<PathBuf>,
    /// Only contenders whose names contain one of these words, NAME,NAME; baselines always run
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
enum Part {
    /// Acquire + release pairs per second
    Pairs {
        /// Only variants whose names contain one of these words. A name is a load and a kind of persistence,
        /// as in deep-plain. Loads: deep (pipeline depth 32, 50 connections), long (32, 1), wide (1, 50),
        /// lone (1, 1). Persistence: plain (none), aof, always, replica
        #[arg(long, value_delimiter = ',')]
        variant: Vec<String>,
    },
    /// Time from a release to the next holder's grant
    Handoff,
    /// 8 and 64 clients contending for one lock
    Contend,
    /// Acquire + release over several masters, compared with one master
    Quorum,
    /// Pairs in a cluster of 1, 2 and 3 masters; what the message of a grant costs the other nodes
    Cluster,
    /// Memory of a hold, compared with a string; memory of a waiter
    Memory,
    /// Longest pause of the server while 100,000 of a million holds expire
    Stall,
    /// Instructions per pair, counted by callgrind and compared with the recorded figures
    Instructions {
        /// Record these figures
        #[arg(long)]
        keep: bool,
    },
    /// Everything
    All,
}

/// The name of a measurement, and the function that makes it, prints its reports and returns them.
type Measurement = (&'static str, Box<dyn Fn(&Run) -> Result<Vec<Report>>>);

impl Part {
    fn measurements(self) -> Vec<Measurement> {
        match self {
            Part::Pairs { variant } => vec![("pairs", Box::new(move |run| pairs::run(run, &variant)))],
            Part::Handoff => vec![("handoff", Box::new(handoff::run))],
            Part::Contend => vec![("contend", Box::new(contend::run))],
            Part::Quorum => vec![("quorum", Box::new(quorum::run))],
            Part::Cluster => vec![("cluster", Box::new(cluster::run))],
            Part::Memory => vec![("memory", Box::new(memory::run))],
            Part::Stall => vec![("stall", Box::new(stall::run))],
            Part::Instructions { keep } => {
                vec![("instructions", Box::new(move |run| instructions::run(run, keep)))]
            }
            Part::All => [
                Part::Pairs { variant: Vec::new() },
                Part::Handoff,
                Part::Contend,
                Part::Quorum,
                Part::Cluster,
                Part::Memory,
                Part::Stall,
                Part::Instructions { keep: false },
            ]
            .into_iter()
            .flat_map(Part::measurements)
            .collect(),
        }
    }
}

/// The measurements made on every server. The others run on the first server only.
const ON_EACH_SERVER: [&str; 3] = ["pairs", "memory", "instructions"];

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
    let format = match (options.json, options.markdown) {
        (true, _) => Format::Json,
        (_, true) => Format::Markdown,
        _ => Format::Plain,
    };
    let measurements = options.part.measurements();
    let mut results = Vec::new();
    for (index, server) in options.server.into_iter().enumerate() {
        let program = Program::new(&server, &module)?;
        let run = Run { program, quick: options.quick, format, only: options.only.clone() };
        let chosen: Vec<_> =
            measurements.iter().filter(|(name, _)| index == 0 || ON_EACH_SERVER.contains(name)).collect();
        if chosen.is_empty() {
            continue;
        }
        let version = run.program.version();
        let names: Vec<_> = chosen.iter().map(|(name, _)| *name).collect();
        run.say(&format!("{} on {version}{}:\n", names.join(", "), if run.quick { ", quick" } else { "" }));
        let mut reports = Vec::new();
        for (_, measure) in chosen {
            reports.extend(measure(&run)?.into_iter().map(|report| report.json));
        }
        results.push(json!({ "server": version, "reports": reports }));
    }
    if format == Format::Json {
        println!("{:#}", json!(results));
    }
    Ok(())
}
