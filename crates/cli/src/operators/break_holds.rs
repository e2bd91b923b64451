//! `dlock break`: ends every hold of a lock, for operators.

use std::ffi::OsStr;
use std::io::{IsTerminal, Write, stderr, stdin};
use std::os::unix::ffi::OsStrExt;

use dlock_client::{Answer, Client, Inspected};

use crate::args::Break;
use crate::exit::{Abort, Error, Failure};
use crate::operators::inspect::View;
use crate::output::{escape_control, print, warn};

pub async fn break_holds(args: Break) -> Result<u8, Abort> {
    let client = args.servers.client().await?;
    let resource = &args.resource;
    if !args.yes && !confirmed(&client, resource).await? {
        return Err(Error::new(Failure::NotAcquired, "nothing was broken").into());
    }
    let broken = client.break_holds(resource.as_bytes()).await;
    for Inspected { server, answer, .. } in &broken {
        match answer {
            Answer::Found(1) => print(&escape_control(format_args!("{server}: ended 1 hold")))?,
            Answer::Found(holds) => print(&escape_control(format_args!("{server}: ended {holds} holds")))?,
            Answer::Unanswered(why) => warn(format_args!("{server}: {why}")),
        }
    }
    let silent = broken.iter().filter(|seen| seen.answer.found().is_none()).count();
    if silent > 0 {
        let message = "the lock was not broken on every server; try again when the others can be reached";
        return Err(Error::new(Failure::NoQuorum, message).into());
    }
    Ok(0)
}

/// Shows the lock and asks for confirmation.
async fn confirmed(client: &Client, resource: &OsStr) -> Result<bool, Error> {
    if !stdin().is_terminal() {
        return Err(Error::usage(
            "cannot ask for confirmation without a terminal; use --yes to break the lock",
        ));
    }
    let question = format!(
        "{}\n\nEnd every hold of {}? [y/N] ",
        View::of(client, resource).await.text(),
        escape_control(resource.display())
    );
    let _ = write!(stderr(), "{question}");
    let mut answer = String::new();
    stdin().read_line(&mut answer).map_err(|why| Error::system("standard input", why))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
