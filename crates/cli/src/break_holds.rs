//! `dlock break`: for operators.

use std::ffi::OsStr;
use std::io::{IsTerminal, Write, stderr, stdin};
use std::os::unix::ffi::OsStrExt;

use dlock_client::{Answer, Client, Inspected};

use crate::args::Break;
use crate::exit::{Error, Failure, complain};
use crate::hold::print;
use crate::inspect::View;
use crate::obtain::Stopped;
use crate::shown::plain;

pub async fn break_holds(options: Break) -> Result<u8, Stopped> {
    let client = options.servers.client().await?;
    let resource = &options.resource;
    if !options.yes && !confirmed(&client, resource).await? {
        return Err(Error::new(Failure::NotObtained, "nothing was broken").into());
    }
    let broken = client.break_holds(resource.as_bytes()).await;
    for Inspected { server, answer } in &broken {
        match answer {
            Answer::Found(1) => print(&plain(format_args!("{server}: ended 1 hold")))?,
            Answer::Found(holds) => print(&plain(format_args!("{server}: ended {holds} holds")))?,
            Answer::Unanswered(why) => complain(format_args!("{server}: {why}")),
        }
    }
    let silent = broken.iter().filter(|seen| seen.answer.found().is_none()).count();
    if silent > 0 {
        let story = "not every server has done it; break again when those can be reached that were not";
        return Err(Error::new(Failure::NoQuorum, story).into());
    }
    Ok(0)
}

/// Shows what is about to be broken, and asks.
async fn confirmed(client: &Client, resource: &OsStr) -> Result<bool, Error> {
    if !stdin().is_terminal() {
        return Err(Error::usage("there is no terminal to ask on; say --yes to break the lock without"));
    }
    let question = format!(
        "{}\n\nEnd every hold of {}? [y/N] ",
        View::of(client, resource).await.text(),
        plain(resource.display())
    );
    let _ = write!(stderr(), "{question}");
    let mut answer = String::new();
    stdin().read_line(&mut answer).map_err(|why| Error::system("standard input", why))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
