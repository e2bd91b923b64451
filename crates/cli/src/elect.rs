//! `dlock elect`: a leader among many, and who it is. The leader holds the lock of that name.

use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dlock_client::{Acquire, Answer, Client, Inspected, Inspection};
use serde_json::json;

use crate::args::{Elect, LockArgs};
use crate::exit::{Error, Failure, complain};
use crate::hold::print;
use crate::inspect::State;
use crate::list;
use crate::lock::{Abort, Session, Wanted, flush, unless_signalled};
use crate::run::{self, Held};
use crate::shown::{self, plain};
use crate::supervise::Margin;

/// How often --observe asks, and how long a candidate pauses while servers are missing.
const PAUSE: Duration = Duration::from_millis(250);

/// Runs the command while it leads; stands again when it has lost the lead.
pub async fn stand(args: &Elect) -> Result<u8, Abort> {
    let margin = Margin::new(args.ttl, args.kill_after)?;
    let lock = LockArgs {
        ttl: args.ttl,
        wait: None,
        no_wait: false,
        conflict_code: None,
        quiet: false,
        shared: false,
        permits: None,
        fenced: args.fenced,
        label: args.label.clone(),
        delay: None,
    };
    let (resources, what) = (std::slice::from_ref(&args.name), run::name(&args.command[0]));
    let mut session = Session::open(&args.servers).await?;
    let mut has_led = false;
    let code = loop {
        let wanted = Wanted { resources, args: &lock, what: &what };
        let acquire = async |client: &Client, acquire: Acquire| {
            let acquire = acquire.notice(margin.notice());
            match client.lock_all([args.name.as_bytes()]).each(|_| acquire).acquire().await {
                Ok(guards) => Ok(Held { entered: Vec::new(), guards: Some(guards) }),
                Err(why) => Err(lock.refusal(client, resources, why).await),
            }
        };
        let work = async |held, signals: &mut _| {
            has_led = true;
            run::hold(held, &args.command, signals, margin).await
        };
        match session.with_lock(wanted, acquire, work).await {
            Ok(Some(code)) => break Ok(code),
            Ok(None) => complain("standing for election again"),
            // The addresses are right: a candidate outlasts an outage.
            Err(Abort::Error(why)) if has_led && why.failure == Failure::NoQuorum => {
                let pause = async {
                    tokio::time::sleep(PAUSE).await;
                    Ok::<_, Error>(())
                };
                unless_signalled(&mut session.signals, pause).await?;
            }
            Err(why) => break Err(why),
        }
    };
    flush(&session.client, &args.servers).await;
    code
}

/// Says which servers do not answer.
fn why_unknown(masters: &[Inspected<Option<Inspection>>]) {
    for Inspected { server, answer } in masters {
        if let Answer::Unanswered(why) = answer {
            complain(format_args!("{server}: {why}"));
        }
    }
}

/// Prints who leads, and each change.
#[expect(clippy::disallowed_methods, reason = "people compare the time with that of their own logs")]
pub async fn observe(args: &Elect) -> Result<u8, Abort> {
    let client = args.servers.observer().await?;
    let name = plain(args.name.display());
    let mut last = None;
    loop {
        let masters = client.inspect(args.name.as_bytes()).await;
        let state = State::of(&masters);
        let known = state != State::NoQuorum;
        let held = list::holder(&masters).filter(|_| state == State::Held);
        let (leader, fence) = held.map(|it| (it.holder, it.fence)).unzip();
        let identity = (known, leader.as_ref().map(|leader| leader.token.clone()));
        if last.as_ref() != Some(&identity) {
            last = Some(identity);
            if !known {
                why_unknown(&masters);
            }
            let led_for = Duration::from_millis(leader.as_ref().map_or(0, |leader| leader.held_ms));
            // A clock that is not set yet may be at 1970.
            let since = SystemTime::now().checked_sub(led_for).unwrap_or(UNIX_EPOCH).max(UNIX_EPOCH);
            let since = humantime::format_rfc3339_seconds(since).to_string();
            let who = leader.as_ref().map(list::who);
            let fence = fence.flatten();
            print(&match (&who, fence) {
                _ if args.json => shown::json(&json!({
                    "name": args.name.to_string_lossy(), "known": known, "leader": who, "fence": fence,
                    "address": leader.as_ref().map(|leader| &leader.address), "since": since,
                })),
                (Some(who), Some(fence)) => format!("{since} {name} is led by {who} (fence {fence})"),
                (Some(who), None) => format!("{since} {name} is led by {who}"),
                _ if known => format!("{since} {name} has no leader"),
                _ => format!("{since} {name} has an unknown leader: too few servers answer"),
            })?;
        }
        tokio::time::sleep(PAUSE).await;
    }
}
