//! The command line. `--help` and the manual show these doc comments.

mod keeping;
mod operators;
mod servers;

use std::ffi::OsString;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

pub use keeping::{Elect, Hold};
pub use operators::{Break, Doctor, Exporter, Inspect, List, Log, Metrics, Status, Top};
pub use servers::Servers;

use crate::{texts, wrong_call};

/// Locks from one lock server, or from a majority of several.
///
/// The servers are Redis or Valkey servers with the dlock module. A single one is a lock service; so are
/// several independent ones (3 or 5), as long as a majority of them is up. All clients of a lock must name
/// the same servers.
#[derive(Debug, Parser)]
#[command(name = "dlock", version, arg_required_else_help = true)]
#[command(after_help = texts::AFTER_HELP, after_long_help = texts::AFTER_LONG_HELP)]
pub struct Dlock {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Hold a lock while a command runs
    #[command(long_about = texts::RUN, after_long_help = texts::RUN_EXAMPLES)]
    Run(Run),
    /// Acquire a lock and keep it; print its token and fence
    #[command(long_about = texts::ACQUIRE, after_long_help = texts::ACQUIRE_EXAMPLES)]
    Acquire(Acquire),
    /// Hold a lock for as long as a process lives, such as a script
    #[command(long_about = texts::HOLD, after_long_help = texts::HOLD_EXAMPLES)]
    Hold(Hold),
    /// Elect a leader, which runs a command; or show who leads
    #[command(long_about = texts::ELECT, after_long_help = texts::ELECT_EXAMPLES)]
    Elect(Elect),
    /// Release a lock acquired with `acquire`
    #[command(after_long_help = texts::RELEASE_EXAMPLES)]
    Release(Release),
    /// Extend the lease of a hold
    #[command(after_long_help = texts::EXTEND_EXAMPLES)]
    Extend(Extend),
    /// Show who holds a lock and who waits for it, on every server
    #[command(long_about = texts::INSPECT, after_long_help = texts::INSPECT_EXAMPLES)]
    Inspect(Inspect),
    /// Show all locks: who holds them, since when, how many wait
    #[command(long_about = texts::LIST, after_long_help = texts::LIST_EXAMPLES)]
    List(List),
    /// Show recent incidents: holds that expired, long waits, deadlocks
    #[command(long_about = texts::LOG, after_long_help = texts::LOG_EXAMPLES)]
    Log(Log),
    /// Show the state of each server, for health checks
    #[command(long_about = texts::STATUS, after_long_help = texts::STATUS_EXAMPLES)]
    Status(Status),
    /// Check the servers, and say what to change
    #[command(long_about = texts::DOCTOR, after_long_help = texts::DOCTOR_EXAMPLES)]
    Doctor(Doctor),
    /// Print the metrics of the servers, for Prometheus
    #[command(long_about = texts::METRICS, after_long_help = texts::METRICS_EXAMPLES)]
    Metrics(Metrics),
    /// Serve the metrics of the servers over HTTP, for Prometheus
    #[command(long_about = texts::EXPORTER, after_long_help = texts::EXPORTER_EXAMPLES)]
    Exporter(Exporter),
    /// Watch servers and locks live, and break a lock after confirmation
    #[command(long_about = texts::TOP, after_long_help = texts::TOP_EXAMPLES)]
    Top(Top),
    /// Wait until a lock is free, without acquiring it
    #[command(after_long_help = texts::WAIT_EXAMPLES)]
    Wait(WaitFree),
    /// For operators: end every hold of a lock
    #[command(long_about = texts::BREAK, after_long_help = texts::BREAK_EXAMPLES)]
    Break(Break),
    /// Print a completion script for a shell
    #[command(after_long_help = texts::COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual, or the page of one subcommand
    #[command(after_long_help = texts::MAN_EXAMPLES)]
    Man {
        /// The subcommand; without it, the page of dlock itself
        #[arg(value_name = "SUBCOMMAND")]
        page: Option<String>,
    },
}

/// Parses the command line. The command follows `--`, but if the first word there begins with - and the
/// resource is missing, it is the resource: `dlock run -- -x ./report.sh`. Elsewhere it would look like an
/// option.
pub fn parse(mut words: Vec<OsString>) -> Result<Dlock, clap::Error> {
    let parsed = Dlock::try_parse_from(&words);
    let Some(end) = words.iter().position(|word| word == "--") else { return parsed };
    let moved = words.get(end + 1).filter(|word| word.as_encoded_bytes().starts_with(b"-")).cloned();
    let missing = matches!(&parsed, Err(why) if why.kind() == ErrorKind::MissingRequiredArgument);
    let (true, Some(resource)) = (missing, moved) else { return parsed };
    words.remove(end + 1);
    words.insert(end, "resource".into());
    match Dlock::try_parse_from(&words) {
        Ok(Dlock { command: Command::Run(mut run) }) => {
            run.resources = vec![resource];
            Ok(Dlock { command: Command::Run(run) })
        }
        _ => parsed,
    }
}

#[derive(Debug, Args)]
pub struct LockArgs {
    /// The lease: how long the lock stays held if its holder vanishes
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    #[arg(env = "DLOCK_TTL", hide_env_values = true)]
    pub ttl: Duration,

    /// Wait at most this long for the lock [default: for ever]
    ///
    /// Meanwhile dlock also waits for servers that are down, silent or not ready yet, and reports them once.
    /// Without this option, it gives up after about a second if a majority of the servers has never answered.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub wait: Option<Duration>,

    /// Do not wait: exit with code 75 (or --conflict-code) if somebody else holds the lock
    ///
    /// With several servers, clients that ask at the same moment can split the votes: they retry for a
    /// moment, until one of them has the lock. To see that nobody has it, dlock needs the right
    /// +dlock.inspect.
    #[arg(long, conflicts_with = "wait")]
    pub no_wait: bool,

    /// The exit code if somebody else holds the lock until the wait times out [default: 75]
    #[arg(long, short = 'E', value_name = "CODE")]
    pub conflict_code: Option<u8>,

    /// Print no message in that case, only set the exit code
    #[arg(long, short = 'q')]
    pub quiet: bool,

    /// Share the lock with others that use --shared
    #[arg(long)]
    pub shared: bool,

    /// Allow N holders at a time (a semaphore); all must name the same N
    ///
    /// Requires a single server: majorities cannot count permits.
    #[arg(long, value_name = "N", conflicts_with = "shared")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    pub permits: Option<u32>,

    /// With several servers, get a fencing token (one more round trip)
    ///
    /// The fencing token, or fence, is a number that is greater for each later hold of the resource. Store it
    /// with whatever the lock protects, and reject lower ones. With a single server every hold has one.
    #[arg(long)]
    pub fenced: bool,

    /// Text for people, at most 255 bytes [default: the command and this host]
    #[arg(long, value_name = "TEXT", env = "DLOCK_LABEL", hide_env_values = true)]
    pub label: Option<String>,

    /// If the holder vanishes, grant the lock to nobody for this long after its lease
    ///
    /// Requests of the dead holder that are still under way can arrive in that time. A release causes no
    /// delay.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub delay: Option<Duration>,
}

#[derive(Debug, Args)]
pub struct Run {
    /// What to lock: any text that all clients agree on, such as invoice:42
    ///
    /// Several resources are acquired all or none, in sorted order, so that runs with overlapping sets do not
    /// deadlock. A nested run re-enters what the run around it holds (DLOCK_RESOURCE, DLOCK_TOKEN), for as
    /// long as that run holds it.
    #[arg(value_name = "RESOURCE", required = true, value_parser = resource())]
    pub resources: Vec<OsString>,

    #[command(flatten)]
    pub lock: LockArgs,

    /// End the command, as if the lock were lost, this long after the lock was acquired
    ///
    /// Without this option, a command that hangs holds the lock for ever.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub max_hold: Option<Duration>,

    /// If the lock is lost, time between SIGTERM and SIGKILL [default: a sixth of the ttl, at most 10s]
    ///
    /// SIGTERM is sent this long before the lease ends, plus a reserve of a twentieth of the ttl (at most 1
    /// s). Together they must fit into half of the ttl.
    #[arg(long, short = 'k', value_name = "TIME", value_parser = duration)]
    pub kill_after: Option<Duration>,

    #[command(flatten)]
    pub servers: Servers,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct Acquire {
    /// What to lock: any text that all clients agree on, such as invoice:42
    #[arg(value_parser = resource())]
    pub resource: OsString,

    #[command(flatten)]
    pub lock: LockArgs,

    /// Print JSON: resource, token, fence, valid_ms
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub servers: Servers,
}

#[derive(Debug, Args)]
pub struct Held {
    /// The locked resource
    #[arg(value_parser = resource())]
    pub resource: OsString,

    /// The token that `acquire` printed
    #[arg(env = "DLOCK_TOKEN", hide_env_values = true)]
    pub token: OsString,
}

#[derive(Debug, Args)]
pub struct Release {
    #[command(flatten)]
    pub held: Held,

    #[command(flatten)]
    pub servers: Servers,
}

#[derive(Debug, Args)]
pub struct Extend {
    #[command(flatten)]
    pub held: Held,

    /// The new lease, from now
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    #[arg(env = "DLOCK_TTL", hide_env_values = true)]
    pub ttl: Duration,

    #[command(flatten)]
    pub servers: Servers,
}

#[derive(Debug, Args)]
pub struct WaitFree {
    /// The lock to wait for
    #[arg(value_parser = resource())]
    pub resource: OsString,

    /// Wait at most this long; then exit with code 75, or 69 if too few servers answer
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub timeout: Option<Duration>,

    #[command(flatten)]
    pub servers: Servers,
}

/// Not empty: that is a variable of the script that was not set.
fn resource() -> impl TypedValueParser<Value = OsString> {
    OsStringValueParser::new().try_map(|name| match name.is_empty() {
        true => Err("the name of a resource must not be empty"),
        false => Ok(name),
    })
}

/// 30s, 500ms, 2m, 1h30m.
fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(wrong_call::time)
}

#[cfg(test)]
mod tests;
