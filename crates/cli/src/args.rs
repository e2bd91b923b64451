//! What can be said on the command line. The doc comments are what `--help` and the manual show.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::{texts, wrong_call};

/// Locks from one lock server, or from a majority of several.
///
/// The servers are Redis or Valkey servers with the dlock module. One of them is a lock service; several
/// independent ones (3 or 5) are one too, which goes on as long as a majority of them is up. All who want to
/// exclude each other must name the same servers.
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
    /// Take a lock and keep it; print its token and fence
    #[command(long_about = texts::ACQUIRE, after_long_help = texts::ACQUIRE_EXAMPLES)]
    Acquire(Acquire),
    /// Give back a lock that `acquire` took
    #[command(after_long_help = texts::RELEASE_EXAMPLES)]
    Release(Release),
    /// Set the lease of a hold anew
    #[command(after_long_help = texts::EXTEND_EXAMPLES)]
    Extend(Extend),
    /// Show who holds a lock and who waits for it, on every server
    #[command(long_about = texts::INSPECT, after_long_help = texts::INSPECT_EXAMPLES)]
    Inspect(Inspect),
    /// Wait until a lock is free, without taking it
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

/// The command line. Behind `--` stands the command, but a first word there that begins with - is the resource, which no
/// command is called and no option could be told from: `dlock run -- -x ./report.sh`.
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
            run.wanted.resource = resource;
            Ok(Dlock { command: Command::Run(run) })
        }
        _ => parsed,
    }
}

#[derive(Debug, Args)]
pub struct Servers {
    /// A server; give it once for each member of a quorum
    ///
    /// redis://host:port/db, rediss://host:port/db for TLS, unix:///path/to/socket. Without this option: the
    /// file of --servers-file, else the comma-separated list in DLOCK_SERVERS, else the file that
    /// DLOCK_SERVERS_FILE names. A password in an argument can be read by everybody on this machine: put
    /// redis://user:password@host:port into the environment or the file instead.
    #[arg(long = "server", short = 's', value_name = "URL", help_heading = HEADING)]
    pub servers: Vec<String>,

    /// A file with one server's URL on each line
    ///
    /// Empty lines and lines that begin with # are left out. It has at most 64 KiB.
    #[arg(long, value_name = "FILE", conflicts_with = "servers", help_heading = HEADING)]
    pub servers_file: Option<PathBuf>,

    /// How long one server may take for one answer
    #[arg(long, value_name = "TIME", default_value = "250ms", value_parser = duration, help_heading = HEADING)]
    pub node_timeout: Duration,

    /// For rediss://: trust the servers whose certificates this one has signed (PEM)
    #[arg(long, value_name = "FILE", env = "DLOCK_CACERT", hide_env_values = true, help_heading = HEADING)]
    pub cacert: Option<PathBuf>,

    /// For rediss://: the certificate that the servers shall know us by (PEM)
    #[arg(long, value_name = "FILE", env = "DLOCK_CERT", hide_env_values = true, requires = "key")]
    #[arg(help_heading = HEADING)]
    pub cert: Option<PathBuf>,

    /// For rediss://: the key of --cert (PEM)
    #[arg(long, value_name = "FILE", env = "DLOCK_KEY", hide_env_values = true, requires = "cert")]
    #[arg(help_heading = HEADING)]
    pub key: Option<PathBuf>,
}

const HEADING: &str = "Servers";

/// What is wanted of a lock.
#[derive(Debug, Args)]
pub struct Wanted {
    /// What to lock: any text that all agree on, such as invoice:42
    pub resource: OsString,

    /// The lease: how long the lock stays taken should its holder vanish
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub ttl: Duration,

    /// Wait at most so long for the lock; without this option, as long as it takes
    ///
    /// Servers that are down, silent or not ready yet are waited for as well, and it is said once that they are. Only if too few
    /// of them have answered since the start, and without this option, dlock gives up after about a second.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub wait: Option<Duration>,

    /// Do not wait: end with code 75 if somebody else holds the lock
    ///
    /// Over several servers also if others ask in the same moment and the votes are split: then nobody gets
    /// it. Say --wait 2s where somebody must.
    #[arg(long, conflicts_with = "wait")]
    pub no_wait: bool,

    /// Hold it together with others who share it
    #[arg(long)]
    pub shared: bool,

    /// With several servers, get a fence too (one round trip more)
    ///
    /// A fence is a number that is greater for each later hold of the resource. Write it beside what the lock
    /// protects, and refuse lower ones. One server gives a fence to every hold; over several, only this
    /// option does.
    #[arg(long)]
    pub fenced: bool,

    /// Free text for `inspect`, at most 255 bytes; by default, this host and what is run
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,

    /// Should the holder vanish, keep everybody out for so long after its lease
    ///
    /// What it still had under way can land in that time. After an ordinary release there is no delay.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub delay: Option<Duration>,
}

#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    pub wanted: Wanted,

    /// When the lock is lost, how long the command has between SIGTERM and SIGKILL
    ///
    /// By default a sixth of the ttl, 10 s at most. SIGTERM comes so long, and a twentieth of the ttl (1 s at
    /// most) in reserve, before the lease ends; together they fit into half of the ttl.
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
    #[command(flatten)]
    pub wanted: Wanted,

    /// Print JSON: resource, token, fence, valid_ms
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub servers: Servers,
}

/// Whose hold.
#[derive(Debug, Args)]
pub struct Held {
    /// What is locked
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

    /// The lease, from now on
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub ttl: Duration,

    #[command(flatten)]
    pub servers: Servers,
}

#[derive(Debug, Args)]
pub struct Inspect {
    /// The lock to look at
    pub resource: OsString,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub servers: Servers,
}

#[derive(Debug, Args)]
pub struct WaitFree {
    /// What to wait for
    pub resource: OsString,

    /// Wait at most so long; then end with code 75, or 69 if too few servers answer
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub timeout: Option<Duration>,

    #[command(flatten)]
    pub servers: Servers,
}

#[derive(Debug, Args)]
pub struct Break {
    /// The lock to break
    pub resource: OsString,

    /// Do not ask
    #[arg(long, short = 'y')]
    pub yes: bool,

    #[command(flatten)]
    pub servers: Servers,
}

/// 30s, 500ms, 2m, 1h30m.
fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(wrong_call::time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definitions_fit_together() {
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
        assert_eq!((parsed.wanted.ttl, parsed.wanted.wait), (Duration::from_secs(120), None));
        assert!(run(&["r", "ls"]).is_err(), "the command stands behind --");
        assert!(run(&["r", "--"]).is_err(), "there is no command");
    }

    #[test]
    fn a_resource_may_begin_with_a_hyphen() {
        for words in [&["--", "-x", "ls", "-l"][..], &["--no-wait", "--", "-x", "ls", "-l"]] {
            let parsed = run(words).unwrap();
            assert_eq!(
                (parsed.wanted.resource, parsed.command),
                ("-x".into(), vec!["ls".into(), "-l".into()])
            );
        }
        assert!(run(&["--", "-x"]).is_err(), "there is no command");
        assert!(run(&["--", "ls", "-l"]).is_err(), "there is no resource");
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
    fn what_contradicts_is_refused() {
        assert!(run(&["r", "--wait", "1s", "--no-wait", "--", "ls"]).is_err());
        assert!(run(&["r", "--server", "a", "--servers-file", "b", "--", "ls"]).is_err());
        assert!(run(&["r", "--cert", "a", "--", "ls"]).is_err());
    }
}
