//! The run around this one, which its environment describes: what it holds is entered again.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::LazyLock;

use dlock_client::{Client, Inspection, Token};

use crate::args::LockArgs;
use crate::exit::{Error, Failure};

/// Whose the locks of this process are, for the search for deadlocks: within the run around it, which waits
/// for this one to end. Another run in there is another owner, for it may run beside this one.
pub static OWNER: LazyLock<OsString> = LazyLock::new(|| {
    let own = format!("{:016x}", rand::random::<u64>());
    let around = env::var_os("DLOCK_OWNER").unwrap_or_default();
    let within = [around.as_bytes(), b"/", own.as_bytes()].concat();
    let is_within = !around.is_empty() && within.len() <= Token::MAX_LEN;
    OsString::from_vec(if is_within { within } else { own.as_bytes().to_vec() })
});

/// A hold of the run around this one.
#[derive(Debug, Clone)]
pub struct Entry {
    pub resource: OsString,
    pub token: OsString,
    pub fence: Option<OsString>,
}

pub struct Around(Vec<Entry>);

impl Around {
    /// What the run around this one says that it holds.
    pub fn from_environment() -> Around {
        let lines = |name| env::var_os(name).map(|text| lines(&text)).unwrap_or_default();
        let (tokens, fences) = (lines("DLOCK_TOKEN"), lines("DLOCK_FENCE"));
        let resources = match env::var_os("DLOCK_RESOURCE") {
            // The name of a single one may have several lines.
            Some(resource) if tokens.len() == 1 => vec![resource],
            _ => lines("DLOCK_RESOURCE"),
        };
        if resources.len() != tokens.len() {
            return Around(Vec::new());
        }
        let holds = resources.into_iter().zip(tokens).enumerate();
        let entry = |(at, (resource, token))| Entry { resource, token, fence: fences.get(at).cloned() };
        Around(holds.map(entry).collect())
    }

    /// Those of the resources that it still holds, in a way that satisfies what is asked for.
    pub async fn enter(
        self,
        client: &Client,
        resources: &[OsString],
        asked: &LockArgs,
    ) -> Result<Vec<Entry>, Error> {
        let mut entered = Vec::new();
        for entry in self.0.into_iter().filter(|entry| resources.contains(&entry.resource)) {
            let name = entry.resource.display();
            let masters = client.inspect(entry.resource.as_bytes()).await;
            let answers: Vec<&Option<Inspection>> =
                masters.iter().filter_map(|seen| seen.answer.found()).collect();
            let token = entry.token.to_string_lossy();
            let held = answers.iter().copied().flatten();
            let held: Vec<&Inspection> =
                held.filter(|lock| lock.holders.iter().any(|holder| holder.token == token)).collect();
            let majority = masters.len() / 2 + 1;
            if held.len() >= majority {
                let satisfied = held.iter().all(|lock| asked.is_satisfied_by(lock));
                if !satisfied || (asked.fenced && entry.fence.is_none()) {
                    return Err(Error::usage(format_args!(
                        "the run around this one holds {name} in another mode: ask for the stronger one there"
                    )));
                }
                entered.push(entry);
            } else if held.len() + masters.len() - answers.len() >= majority {
                let message =
                    format!("too few servers tell whether the run around this one still holds {name}");
                return Err(Error::new(Failure::NoQuorum, message));
            }
        }
        Ok(entered)
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
    text.as_bytes().split(|byte| *byte == b'\n').map(|line| OsStr::from_bytes(line).to_owned()).collect()
}
