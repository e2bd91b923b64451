//! The subcommands of operators.

use std::ffi::OsString;

use clap::Args;

use super::Servers;

#[derive(Debug, Args)]
pub struct Inspect {
    /// The lock to inspect
    #[arg(value_parser = super::resource())]
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
    #[arg(value_parser = super::resource())]
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
    #[arg(default_value = "dlock:doctor", value_parser = super::resource())]
    pub resource: OsString,

    /// The longest lease that you want
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = super::duration)]
    #[arg(env = "DLOCK_TTL", hide_env_values = true)]
    pub ttl: std::time::Duration,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub servers: Servers,
}

#[derive(Debug, Args)]
pub struct Break {
    /// The lock to break
    #[arg(value_parser = super::resource())]
    pub resource: OsString,

    /// Do not ask for confirmation
    #[arg(long, short = 'y')]
    pub yes: bool,

    #[command(flatten)]
    pub servers: Servers,
}

#[derive(Debug, Args)]
pub struct Metrics {
    /// How many of the resources that somebody waits for to show; 0: none
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = most_resources)]
    pub resources: usize,

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

/// Each is a time series of its own.
fn most_resources(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number <= 1000);
    number.ok_or_else(|| "a number from 0 to 1000".into())
}

#[derive(Debug, Args)]
pub struct Top {
    /// How often to ask the servers
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = super::duration)]
    pub interval: std::time::Duration,

    #[command(flatten)]
    pub servers: Servers,
}
