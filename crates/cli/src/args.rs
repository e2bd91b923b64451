//! The command line: subcommands and options. `--help` and the manual show the doc comments of this folder.

pub mod help;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use help::examples;

/// Locks from one lock server, or from a majority of several.
///
/// The servers are Redis or Valkey servers with the dlock module. A single one is a lock service; so are
/// several independent ones (3 or 5), as long as a majority of them is up. All clients of a lock must name
/// the same servers.
#[derive(Debug, Parser)]
#[command(name = "dlock", version, arg_required_else_help = true)]
#[command(after_help = help::AFTER_HELP, after_long_help = examples(help::AFTER_LONG_HELP))]
pub struct Dlock {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Hold a lock while a command runs
    #[command(long_about = help::RUN, after_long_help = examples(help::RUN_EXAMPLES))]
    Run(Run),
    /// Acquire a lock and keep it; print its token and fence
    #[command(long_about = help::ACQUIRE, after_long_help = examples(help::ACQUIRE_EXAMPLES))]
    Acquire(Acquire),
    /// Hold a lock for as long as a process lives, such as a script
    #[command(long_about = help::HOLD, after_long_help = examples(help::HOLD_EXAMPLES))]
    Hold(Hold),
    /// Elect a leader, which runs a command; or show the leader
    #[command(long_about = help::ELECT, after_long_help = examples(help::ELECT_EXAMPLES))]
    Elect(Elect),
    /// Release a lock acquired with `acquire`
    #[command(after_long_help = examples(help::RELEASE_EXAMPLES))]
    Release(Release),
    /// Extend the lease of a hold
    #[command(after_long_help = examples(help::EXTEND_EXAMPLES))]
    Extend(Extend),
    /// Show the holders and the waiters of a lock, on every server
    #[command(long_about = help::INSPECT, after_long_help = examples(help::INSPECT_EXAMPLES))]
    Inspect(Inspect),
    /// Show all locks: holder, time held, lease left, number of waiters
    #[command(long_about = help::LIST, after_long_help = examples(help::LIST_EXAMPLES))]
    List(List),
    /// Show recent incidents: holds that expired, long waits, deadlocks
    #[command(long_about = help::LOG, after_long_help = examples(help::LOG_EXAMPLES))]
    Log(Log),
    /// Show the state of each server, for health checks
    #[command(long_about = help::STATUS, after_long_help = examples(help::STATUS_EXAMPLES))]
    Status(Status),
    /// Check the servers, and recommend changes
    #[command(long_about = help::DOCTOR, after_long_help = examples(help::DOCTOR_EXAMPLES))]
    Doctor(Doctor),
    /// Print the metrics of the servers, for Prometheus
    #[command(long_about = help::METRICS, after_long_help = examples(help::METRICS_EXAMPLES))]
    Metrics(Metrics),
    /// Serve the metrics of the servers over HTTP, for Prometheus
    #[command(long_about = help::EXPORTER, after_long_help = examples(help::EXPORTER_EXAMPLES))]
    Exporter(Exporter),
    /// Watch servers and locks live, and break a lock after confirmation
    #[command(long_about = help::TOP, after_long_help = examples(help::TOP_EXAMPLES))]
    Top(Top),
    /// Wait until a lock is free, without acquiring it
    #[command(after_long_help = examples(help::WAIT_EXAMPLES))]
    Wait(WaitFree),
    /// For operators: end every hold of a lock
    #[command(long_about = help::BREAK, after_long_help = examples(help::BREAK_EXAMPLES))]
    Break(Break),
    /// Print a completion script for a shell
    #[command(after_long_help = examples(help::COMPLETIONS_EXAMPLES))]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual, or the page of one subcommand
    #[command(after_long_help = examples(help::MAN_EXAMPLES))]
    Man {
        /// The subcommand; without it, the page of dlock itself
        #[arg(value_name = "SUBCOMMAND")]
        page: Option<String>,
    },
}

/// Parses the command line.
///
/// A resource that begins with `-` is given after `--`, because clap takes it for an option anywhere else:
/// `dlock run -- -x ./report.sh` locks `-x`. So if no resource comes before `--`, and the first word after
/// `--` begins with `-`, that word is the resource, and the command follows it.
pub fn parse(mut words: Vec<OsString>) -> Result<Dlock, clap::Error> {
    let parsed = Dlock::try_parse_from(&words);
    let Some(separator) = words.iter().position(|word| word == "--") else { return parsed };
    let first = words.get(separator + 1).filter(|word| word.as_encoded_bytes().starts_with(b"-")).cloned();
    let lacks_resource = matches!(&parsed, Err(why) if why.kind() == ErrorKind::MissingRequiredArgument);
    let (true, Some(resource)) = (lacks_resource, first) else { return parsed };
    words.remove(separator + 1);
    // A placeholder, which clap takes as the resource. The resource itself replaces it below.
    words.insert(separator, "resource".into());
    match Dlock::try_parse_from(&words) {
        Ok(Dlock { command: Command::Run(mut run) }) => {
            run.resources = vec![resource];
            Ok(Dlock { command: Command::Run(run) })
        }
        _ => parsed,
    }
}

#[derive(Debug, Default, Args)]
pub struct LockArgs {
    /// The lease: how long the lock stays held if its holder vanishes
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    #[arg(env = "DLOCK_TTL", hide_env_values = true)]
    pub ttl: Duration,

    /// Wait at most this long for the lock [default: for ever]
    ///
    /// Meanwhile dlock also waits for servers that are down, silent or not ready yet, and reports them once.
    /// Without this option, it gives up after about a second unless a majority of the servers has answered
    /// once.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub wait: Option<Duration>,

    /// Do not wait: exit with code 75 (or --conflict-code) if another owner holds the lock
    ///
    /// With several servers, clients that ask at the same moment can split the votes. They retry until one
    /// of them has the lock. To tell a split vote from a lock that is held, dlock needs the right
    /// +dlock.inspect.
    #[arg(long, conflicts_with = "wait")]
    pub no_wait: bool,

    /// The exit code if another owner holds the lock, or it is closed, until the wait times out [default: 75]
    #[arg(long, short = 'E', value_name = "CODE")]
    pub conflict_code: Option<u8>,

    /// If another owner holds the lock, or it is closed, print no message: only set the exit code
    ///
    /// A full wait queue (dlock.max-waiters-per-key) and a deadlock are always reported, with exit code 75.
    #[arg(long, short = 'q')]
    pub quiet: bool,

    /// Share the lock with other holders that use --shared
    #[arg(long)]
    pub shared: bool,

    /// Acquire only while fewer than N hold the lock (a semaphore)
    ///
    /// N is the limit of this request: beside two holders with --permits 2, one with --permits 3 is granted.
    /// Use the same N everywhere, unless you are changing it; a grant with another N than the one before is
    /// the incident limit-changed of `dlock log`. Requires a single server: majorities cannot count permits.
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

    /// If the holder vanishes, do not grant the lock for this long after its lease
    ///
    /// Requests of the dead holder that are still under way can arrive in that time. A release causes no
    /// delay.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub delay: Option<Duration>,
}

#[derive(Debug, Args)]
pub struct Run {
    /// The lock: any text that all clients agree on, such as invoice:42
    ///
    /// Several resources are acquired all or none, in sorted order, so that runs with overlapping sets do not
    /// deadlock. A nested run re-enters the holds of its parent run (DLOCK_RESOURCE, DLOCK_TOKEN), for as
    /// long as the parent run has them.
    #[arg(value_name = "RESOURCE", required = true, value_parser = resource())]
    pub resources: Vec<OsString>,

    #[command(flatten)]
    pub lock: LockArgs,

    /// End the command, as if the lock were lost, this long after the lock was acquired
    ///
    /// Without this option, a command that hangs holds the lock for ever.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub max_hold: Option<Duration>,

    /// Keep the lock closed until this long after it was acquired, even if the command ends earlier
    ///
    /// For a command that several machines start at the same time by their clocks: if the command ends
    /// before the last machine has started it, that machine would run it again. A lock that is lost is not
    /// kept closed. At most dlock.max-ttl of the servers, like --done-for. Servers older than 0.1.0 do not
    /// know the delay; then the exit code is 64, before the command starts.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub at_least: Option<Duration>,

    /// If the command exits with 0, keep the lock closed for this long after that
    ///
    /// For work that is done once: `dlock run report:2026-11-28 --done-for 24h -- ./report`. If the command
    /// fails, the lock is free (but see --at-least), and the next machine tries.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub done_for: Option<Duration>,

    /// If the lock is lost, time between SIGTERM and SIGKILL [default: a sixth of the ttl, at most 10s]
    ///
    /// SIGKILL is sent a twentieth of the ttl (at most 1 s) before the lease ends, and SIGTERM this time
    /// before SIGKILL. SIGTERM must not be due before half of the ttl has passed.
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
    /// The lock: any text that all clients agree on, such as invoice:42
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

#[derive(Debug, Args)]
pub struct Elect {
    /// The name of the election: any text that all candidates agree on
    #[arg(value_parser = resource())]
    pub name: OsString,

    /// Do not stand for election: print the leader, and each change
    #[arg(long, conflicts_with = "command")]
    pub observe: bool,

    /// With --observe, print JSON: an object per line
    #[arg(long, requires = "observe")]
    pub json: bool,

    /// The lease: how long there is no leader if the leader vanishes
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    #[arg(env = "DLOCK_TTL", hide_env_values = true)]
    pub ttl: Duration,

    /// With several servers, get a fencing token (one more round trip); see `run`
    #[arg(long)]
    pub fenced: bool,

    /// Text for people, at most 255 bytes [default: the command and this host]
    #[arg(long, value_name = "TEXT", env = "DLOCK_LABEL", hide_env_values = true)]
    pub label: Option<String>,

    /// If the lead is lost, time between SIGTERM and SIGKILL [default: a sixth of the ttl, at most 10s]
    #[arg(long, short = 'k', value_name = "TIME", value_parser = duration)]
    pub kill_after: Option<Duration>,

    #[command(flatten)]
    pub servers: Servers,

    /// The command that the leader runs, and its arguments
    #[arg(last = true, required_unless_present = "observe", value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct Hold {
    /// The lock: any text that all clients agree on, such as invoice:42
    #[arg(value_parser = resource())]
    pub resource: OsString,

    /// The process: the lock is held until it ends
    #[arg(long, value_name = "PID", value_parser = process_id)]
    pub pid: i32,

    #[command(flatten)]
    pub lock: LockArgs,

    #[command(flatten)]
    pub servers: Servers,
}

#[derive(Debug, Args)]
pub struct Inspect {
    /// The lock to inspect
    #[arg(value_parser = resource())]
    pub resource: OsString,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub servers: Servers,
}

#[derive(Debug, Args)]
pub struct List {
    /// Only resources that match this pattern, as for KEYS: `invoice:*`
    pub pattern: Option<OsString>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub servers: Servers,
}

#[derive(Debug, Args)]
pub struct Log {
    /// Only incidents of this resource
    #[arg(value_parser = resource())]
    pub resource: Option<OsString>,

    /// At most this many entries of each server
    #[arg(long, short = 'n', value_name = "N", default_value = "50")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub count: u32,

    /// Print the oldest entry first, and then new ones as they come
    #[arg(long, short = 'f')]
    pub follow: bool,

    /// Print JSON: an object per line
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub servers: Servers,
}

#[derive(Debug, Args)]
pub struct Status {
    /// Print JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub servers: Servers,
}

#[derive(Debug, Args)]
pub struct Doctor {
    /// A resource: checks whether this user may lock it
    #[arg(default_value = "dlock:doctor", value_parser = resource())]
    pub resource: OsString,

    /// The longest lease that you want
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    #[arg(env = "DLOCK_TTL", hide_env_values = true)]
    pub ttl: Duration,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub servers: Servers,
}

#[derive(Debug, Args)]
pub struct Break {
    /// The lock to break
    #[arg(value_parser = resource())]
    pub resource: OsString,

    /// Do not ask for confirmation
    #[arg(long, short = 'y')]
    pub yes: bool,

    #[command(flatten)]
    pub servers: Servers,
}

#[derive(Debug, Args)]
pub struct Metrics {
    /// How many resources to show: those with the most waiters first; 0: none
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u16).range(..=1000))]
    pub resources: u16,

    #[command(flatten)]
    pub servers: Servers,
}

#[derive(Debug, Args)]
pub struct Exporter {
    /// The address to listen on
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9736")]
    pub listen: String,

    #[command(flatten)]
    pub metrics: Metrics,
}

#[derive(Debug, Args)]
pub struct Top {
    /// How often to ask the servers
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    pub interval: Duration,

    #[command(flatten)]
    pub servers: Servers,
}

// The servers, and how to connect to them: the same options for all subcommands. (No doc comment: clap would
// show it as the description of each subcommand.)
#[derive(Debug, Args)]
pub struct Servers {
    /// A server; repeat the option for each member of a quorum
    ///
    /// redis://host:port/db, rediss://host:port/db for TLS, unix:///path/to/socket?db=1. A cluster:
    /// redis-cluster://host:port?node=host2:port2. A master that sentinels name:
    /// redis-sentinel://host:port?sentinelServiceName=name&node=host2:port2. Without this option, the servers
    /// come from --servers-file, else from the comma-separated list in DLOCK_SERVERS, else from the file
    /// named by DLOCK_SERVERS_FILE. Every user of this machine can read a password in an argument: put
    /// redis://user:password@host:port or unix:///path?user=name&pass=password into the environment or the
    /// file instead.
    #[arg(long = "server", short = 's', value_name = "URL", help_heading = HEADING)]
    pub servers: Vec<String>,

    /// A file with the URL of one server per line
    ///
    /// Empty lines and lines that begin with # are ignored. The limit is 64 KiB.
    #[arg(long, value_name = "FILE", conflicts_with = "servers", help_heading = HEADING)]
    pub servers_file: Option<PathBuf>,

    /// Time limit for each answer of a server
    #[arg(long, value_name = "TIME", default_value = "250ms", value_parser = duration)]
    #[arg(env = "DLOCK_NODE_TIMEOUT", hide_env_values = true, help_heading = HEADING)]
    pub node_timeout: Duration,

    /// For rediss://: trust servers with certificates that this one has signed (PEM)
    #[arg(long, value_name = "FILE", env = "DLOCK_CACERT", hide_env_values = true, help_heading = HEADING)]
    pub cacert: Option<PathBuf>,

    /// For rediss://: the client certificate (PEM)
    #[arg(long, value_name = "FILE", env = "DLOCK_CERT", hide_env_values = true, requires = "key")]
    #[arg(help_heading = HEADING)]
    pub cert: Option<PathBuf>,

    /// For rediss://: the key of --cert (PEM)
    #[arg(long, value_name = "FILE", env = "DLOCK_KEY", hide_env_values = true, requires = "cert")]
    #[arg(help_heading = HEADING)]
    pub key: Option<PathBuf>,
}

const HEADING: &str = "Servers";

/// The name of a resource. Refuses an empty name, which most likely comes from an unset shell variable.
fn resource() -> impl TypedValueParser<Value = OsString> {
    OsStringValueParser::new().try_map(|name| match name.is_empty() {
        true => Err("the name of a resource must not be empty"),
        false => Ok(name),
    })
}

/// Parses the id of a process that can end. Process 1 is often the parent of a script whose own parent has
/// ended.
fn process_id(text: &str) -> Result<i32, &'static str> {
    match text.parse() {
        Ok(pid @ 2..) => Ok(pid),
        Ok(1) => Err("process 1 ends only with the machine or the container: use `dlock run`"),
        _ => Err("the id of a process is a number above 1"),
    }
}

/// Parses a time with its unit: 30s, 500ms, 2m, 1h30m.
fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(time_error)
}

// Usage errors show no secret. clap repeats the word that it does not understand. With arguments in the wrong
// order, that word may be a token, or an address with a password. So dlock shows the word only if it does not
// look like a secret.

/// Stands in a message for a word that may be a secret.
const REDACTED: &str = "(not shown)";

/// Returns the word if it looks like an option, a subcommand, a time or a shell, else [`REDACTED`]. Addresses
/// and random tokens are longer, or have other characters.
pub fn redact_word(word: &str) -> &str {
    let is_plain = word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if is_plain && word.len() <= 20 { word } else { REDACTED }
}

/// Returns the error without words that may be secret.
pub fn redact(mut error: clap::Error) -> clap::Error {
    // For an unknown argument, InvalidArg is a word of the command line. In other errors, it is the form of
    // an argument, for example `--ttl <TIME>`.
    let argument = (error.kind() == ErrorKind::UnknownArgument).then_some(ContextKind::InvalidArg);
    for part in [ContextKind::InvalidSubcommand, ContextKind::InvalidValue].into_iter().chain(argument) {
        if matches!(error.get(part), Some(ContextValue::String(word)) if redact_word(word) != word) {
            error.insert(part, ContextValue::String(REDACTED.into()));
            // The suggestion ("to pass '...' as a value") repeats the word.
            error.remove(ContextKind::Suggested);
        }
    }
    error
}

/// Adds a tip if the cause of the error may be a command without `--` before it.
pub fn add_tip(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    let runs = words.get(1).is_some_and(|word| word == "run" || word == "elect");
    let kinds = [ErrorKind::MissingRequiredArgument, ErrorKind::UnknownArgument];
    if runs && kinds.contains(&error.kind()) && !words.iter().any(|word| word == "--") {
        let tip = "the command comes after --, as in `dlock run RESOURCE -- COMMAND`";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// The message for an invalid time.
fn time_error(why: humantime::DurationError) -> String {
    let why = match why {
        // humantime's message repeats the unit, which may be any word.
        humantime::DurationError::UnknownUnit { .. } => "unknown time unit".to_string(),
        why => why.to_string(),
    };
    format!("{why}; times are written 30s, 500ms, 2m")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definitions_are_consistent() {
        Dlock::command().debug_assert();
    }

    fn run(words: &[&str]) -> Result<Run, clap::Error> {
        let words = ["dlock", "run"].iter().chain(words);
        parse(words.map(OsString::from).collect()).map(|dlock| match dlock.command {
            Command::Run(run) => run,
            other => panic!("{other:?} is not run"),
        })
    }

    #[test]
    fn a_command_keeps_its_own_options() {
        let parsed = run(&["r", "--ttl", "2m", "--", "ls", "--ttl", "x", "--", "-y"]).unwrap();
        assert_eq!(parsed.command, ["ls", "--ttl", "x", "--", "-y"]);
        assert_eq!((parsed.lock.ttl, parsed.lock.wait), (Duration::from_secs(120), None));
        assert!(run(&["r", "ls"]).is_err(), "a command without -- is refused");
        assert_eq!(run(&["a", "b", "--", "ls"]).unwrap().resources, ["a", "b"]);
        assert!(run(&["a", "", "--", "ls"]).is_err(), "an empty resource is refused");
        assert!(run(&["r", "--"]).is_err(), "a run without a command is refused");
    }

    #[test]
    fn a_resource_may_begin_with_a_hyphen() {
        for words in [&["--", "-x", "ls", "-l"][..], &["--no-wait", "--", "-x", "ls", "-l"]] {
            let parsed = run(words).unwrap();
            assert_eq!(
                (parsed.resources, parsed.command),
                (vec!["-x".into()], vec!["ls".into(), "-l".into()])
            );
        }
        assert!(run(&["--", "-x"]).is_err(), "a run without a command is refused");
        assert!(run(&["--", "ls", "-l"]).is_err(), "a run without a resource is refused");
        assert_eq!(run(&["r", "--", "-x"]).unwrap().command, ["-x"]);
    }

    #[test]
    fn times_have_units() {
        for (text, ms) in [("500ms", 500), ("30s", 30_000), ("2m", 120_000), ("1h30m", 5_400_000), ("0", 0)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "30", "-1s", "1x", "s", "99999999999999999999s"] {
            assert!(duration(text).unwrap_err().contains("30s"), "{text}");
        }
    }

    #[test]
    fn options_that_exclude_or_require_another_are_checked() {
        assert!(run(&["r", "--wait", "1s", "--no-wait", "--", "ls"]).is_err());
        assert!(run(&["r", "--server", "a", "--servers-file", "b", "--", "ls"]).is_err());
        assert!(run(&["r", "--cert", "a", "--", "ls"]).is_err());
    }
}
