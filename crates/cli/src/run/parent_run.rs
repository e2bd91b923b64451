//! The parent run: the `dlock run` that started this process, as the environment describes it. A nested run
//! re-enters the parent's holds instead of waiting for them.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::LazyLock;

use dlock_client::{Client, Inspection, Token, majority};

use crate::args::LockArgs;
use crate::exit::{Error, Failure};

/// The variable with the process id of the command that a run has started.
pub const COMMAND_PID: &str = "DLOCK_COMMAND_PID";

/// The owner of all locks of this process, by which the servers detect deadlocks.
///
/// In `dlock run a -- dlock run b -- ..`, the second run is itself the command of its parent run. It has the
/// parent's owner, because the parent does nothing but wait for it. A run that a script starts has an owner
/// of its own, because the script may start several runs side by side. If one of these waited for another
/// with the same owner, the servers would report a deadlock: they assume that an owner releases nothing while
/// it waits.
pub static OWNER: LazyLock<OsString> =
    LazyLock::new(|| inherited_owner().unwrap_or_else(|| format!("{:016x}", rand::random::<u64>()).into()));

/// The owner of the parent run. `None` if this process is not the command of a run.
pub fn inherited_owner() -> Option<OsString> {
    let inherited = env::var_os("DLOCK_OWNER").filter(|owner| (1..=Token::MAX_LEN).contains(&owner.len()));
    let is_command = env::var(COMMAND_PID).is_ok_and(|pid| pid == std::process::id().to_string());
    inherited.filter(|_| is_command)
}

/// A hold, as the environment of a command describes it.
#[derive(Debug, Clone)]
pub struct Entry {
    pub resource: OsString,
    pub token: OsString,
    pub fence: Option<OsString>,
}

/// The holds of the parent run. Empty without a parent run.
pub struct ParentRun(Vec<Entry>);

impl ParentRun {
    /// Reads the holds from DLOCK_RESOURCE, DLOCK_TOKEN and DLOCK_FENCE, which have one line for each hold.
    /// Ignores them if the numbers of resources and tokens differ.
    pub fn from_environment() -> ParentRun {
        let lines_of = |name| env::var_os(name).map(|text| lines(&text)).unwrap_or_default();
        let (tokens, fences) = (lines_of("DLOCK_TOKEN"), lines_of("DLOCK_FENCE"));
        let resources = match env::var_os("DLOCK_RESOURCE") {
            // The name of a single resource may contain line breaks.
            Some(resource) if tokens.len() == 1 => vec![resource],
            _ => lines_of("DLOCK_RESOURCE"),
        };
        if resources.len() != tokens.len() {
            return ParentRun(Vec::new());
        }
        let holds = resources.into_iter().zip(tokens).enumerate();
        let entry = |(at, (resource, token))| Entry { resource, token, fence: fences.get(at).cloned() };
        ParentRun(holds.map(entry).collect())
    }

    /// Returns the holds of these resources that the parent run still has on a majority of the servers.
    ///
    /// Fails if the mode, the permits or the fence of one of them do not fit `options`, or if too few servers
    /// answer.
    pub async fn live_holds(
        self,
        client: &Client,
        resources: &[OsString],
        options: &LockArgs,
    ) -> Result<Vec<Entry>, Error> {
        let mut live = Vec::new();
        for entry in self.0.into_iter().filter(|entry| resources.contains(&entry.resource)) {
            let name = entry.resource.display();
            let inspected = client.inspect(entry.resource.as_bytes()).await;
            let answers: Vec<_> = inspected.iter().filter_map(|seen| seen.answer.found()).collect();
            let token = entry.token.to_string_lossy();
            let has_hold = |lock: &&Inspection| lock.holders.iter().any(|holder| holder.token == token);
            let held: Vec<_> = answers.iter().filter_map(|lock| lock.as_ref()).filter(has_hold).collect();
            let (majority, unanswered) = (majority(inspected.len()), inspected.len() - answers.len());
            if held.len() >= majority {
                let satisfied = held.iter().all(|lock| options.is_satisfied_by(lock));
                if !satisfied || (options.fenced && entry.fence.is_none()) {
                    return Err(Error::usage(format_args!(
                        "the parent run does not hold {name} as this run asks for it: give the parent run \
                         the same --permits and --fenced, and no --shared unless this run has it"
                    )));
                }
                live.push(entry);
            } else if held.len() + unanswered >= majority {
                let message =
                    format!("too few servers answered to tell whether the parent run still holds {name}");
                return Err(Error::new(Failure::NoQuorum, message));
            }
        }
        Ok(live)
    }
}

impl LockArgs {
    fn is_satisfied_by(&self, lock: &Inspection) -> bool {
        match self.permits {
            Some(permits) => lock.mode == "permits" && lock.permits == u64::from(permits),
            None => lock.mode == "exclusive" || (self.shared && lock.mode == "shared"),
        }
    }
}

fn lines(text: &OsStr) -> Vec<OsString> {
    text.as_bytes().split(|byte| *byte == b'\n').map(|line| OsString::from_vec(line.to_vec())).collect()
}
