//! Which servers, and how to speak to them: the same for all subcommands.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::duration;

#[derive(Debug, Args)]
pub struct Servers {
    /// A server; repeat the option for each member of a quorum
    ///
    /// redis://host:port/db, rediss://host:port/db for TLS, unix:///path/to/socket. Without this option, the
    /// servers come from --servers-file, else from the comma-separated list in DLOCK_SERVERS, else from the
    /// file named by DLOCK_SERVERS_FILE. Everybody on this machine can read a password in an argument: put
    /// redis://user:password@host:port into the environment or the file instead.
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

    /// For rediss://: trust servers whose certificates this one has signed (PEM)
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
