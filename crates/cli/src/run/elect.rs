//! `dlock elect`: elects a leader among several candidates, or shows the leader. The leader is the holder of
//! the lock that has the name of the election.

use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dlock_client::{AcquireError, Answer, Inspected};
use serde_json::json;

use crate::args::{Elect, LockArgs};
use crate::exit::{Abort, Error, Failure};
use crate::lock_state::{self, State};
use crate::output::{escape_control, escape_json, print, warn};
use crate::run::session::{Wanted, in_session, unless_signalled};
use crate::run::supervise::Margin;
use crate::run::{self, Held};

/// The interval at which --observe asks the servers, and a candidate's pause while too few servers answer or
/// the queue is full.
const PAUSE: Duration = Duration::from_millis(250);

/// Runs the command while this candidate leads, and stands for election again when the lead is lost.
pub async fn stand(args: &Elect) -> Result<u8, Abort> {
    let margin = Margin::new(args.ttl, args.kill_after)?;
    let lock =
        LockArgs { ttl: args.ttl, fenced: args.fenced, label: args.label.clone(), ..LockArgs::default() };
    let (resources, holder) = (std::slice::from_ref(&args.name), run::name(&args.command[0]));
    in_session(&args.servers, async |session| {
        let (mut has_led, mut has_warned) = (false, false);
        loop {
            let mut was_refused = false;
            let lead = async {
                let wanted = Wanted { resources, args: &lock, holder: &holder };
                let guards = session.acquire(wanted, async |client, lock| {
                    // The client reports a lost lead at least this long before the lease ends.
                    let lock = lock.notice(margin.notice());
                    let lead = client.lock_all([args.name.as_bytes()]).each(|_| lock).acquire().await;
                    was_refused =
                        matches!(lead, Err(AcquireError::QueueFull { .. } | AcquireError::Taken { .. }));
                    lead
                });
                // An election does not re-enter the holds of a parent `dlock run`.
                let held = Held { entered: Vec::new(), guards: Some(guards.await?) };
                (has_led, has_warned) = (true, false);
                run::hold(held, &args.command, &mut session.signals, margin, None).await
            };
            match lead.await {
                Ok(Some(code)) => return Ok(code),
                Ok(None) => warn("standing for election again"),
                // The queue is full, or an operator has ended the wait: a later one may succeed. And a
                // candidate that has led waits for the end of an outage, because its addresses are known to
                // be right.
                Err(Abort::Error(why)) if was_refused || has_led && why.failure == Failure::NoQuorum => {
                    if was_refused && !std::mem::replace(&mut has_warned, true) {
                        warn(format_args!("{why}; standing for election again"));
                    }
                    let pause = async {
                        tokio::time::sleep(PAUSE).await;
                        Ok::<_, Error>(())
                    };
                    unless_signalled(&mut session.signals, pause).await?;
                }
                Err(why) => return Err(why),
            }
        }
    })
    .await
}

/// Prints the current leader, and each change.
#[expect(clippy::disallowed_methods, reason = "the printed time is compared with other logs")]
pub async fn observe(args: &Elect) -> Result<u8, Abort> {
    let client = args.servers.observer().await?;
    let name = escape_control(args.name.display());
    let mut last = None;
    loop {
        let inspected = client.inspect(args.name.as_bytes()).await;
        let state = State::of(&inspected);
        let known = state != State::NoQuorum;
        let held = lock_state::holder(&inspected).filter(|_| state == State::Held);
        let (leader, fence) = held.map(|holding| (holding.holder, holding.fence)).unzip();
        let identity = (known, leader.as_ref().map(|leader| leader.token.clone()));
        if last.as_ref() != Some(&identity) {
            last = Some(identity);
            for Inspected { server, answer } in inspected.iter().filter(|_| !known) {
                if let Answer::Unanswered(why) = answer {
                    warn(format_args!("{server}: {why}"));
                }
            }
            let led_for = Duration::from_millis(leader.as_ref().map_or(0, |leader| leader.held_ms));
            // A clock that is not set starts in 1970. By that clock, the lead may have begun before 1970.
            let since = SystemTime::now().checked_sub(led_for).unwrap_or(UNIX_EPOCH).max(UNIX_EPOCH);
            let since = humantime::format_rfc3339_seconds(since).to_string();
            let shown = leader.as_ref().map(|leader| lock_state::display_name(&leader.label, &leader.token));
            let fence = fence.flatten();
            print(&match (&shown, fence) {
                _ if args.json => escape_json(&json!({
                    "name": args.name.to_string_lossy(), "known": known, "leader": shown, "fence": fence,
                    "address": leader.as_ref().map(|leader| &leader.address), "since": since,
                })),
                (Some(leader), Some(fence)) => format!("{since} {name} is led by {leader} (fence {fence})"),
                (Some(leader), None) => format!("{since} {name} is led by {leader}"),
                _ if known => format!("{since} {name} has no leader"),
                _ => format!("{since} {name} has an unknown leader: too few servers answer"),
            })?;
        }
        tokio::time::sleep(PAUSE).await;
    }
}
