//! The subcommands that keep a lock besides `run`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use super::{LockArgs, Servers, duration, resource};

#[derive(Debug, Args)]
pub struct Elect {
    /// The name of the election: any text that all candidates agree on
    #[arg(value_parser = resource())]
    pub name: OsString,

    /// Do not stand for election: print who leads, and each change
    #[arg(long, conflicts_with = "command")]
    pub observe: bool,

    /// With --observe, print JSON: an object per line
    #[arg(long, requires = "observe")]
    pub json: bool,

    /// The lease: how long nobody leads if the leader vanishes
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

    /// What the leader runs
    #[arg(last = true, required_unless_present = "observe", value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct Hold {
    /// What to lock: any text that all clients agree on, such as invoice:42
    #[arg(value_parser = resource())]
    pub resource: OsString,

    /// The process: the lock is held until it ends
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: i32,

    #[command(flatten)]
    pub lock: LockArgs,

    #[command(flatten)]
    pub servers: Servers,
}
