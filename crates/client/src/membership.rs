//! Which members a client names. Clients that name others may hold one lock at the same time: their
//! majorities need not meet. The servers know nothing of each other, so each client tells them which members
//! it names, by the name of a channel that it is subscribed to. Whoever comes later sees the channels of
//! those who are there, and tells them its own. A channel ends with the connection: there is no key, and
//! nothing that is out of date after a restart.

use redis::{PushInfo, PushKind, Value};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{join_all, select_all};
use tokio::time::timeout;
use tracing::warn;

use crate::error::OtherMembers;
use crate::node::{Connection, MemberList};

/// How the names of the channels begin.
const PREFIX: &str = "dlock:members:";
pub(crate) const PATTERN: &str = "dlock:members:*";

/// So many characters of a run id tell servers apart.
const ID_LEN: usize = 10;

/// Called when another client names other members.
pub(crate) type OnOtherMembers = Arc<dyn Fn(&OtherMembers) + Send + Sync>;

/// The members that a client names: how many there are, and which servers those are that it is connected to.
/// Addresses tell nothing, as one server may have several.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Members {
    pub(crate) count: usize,
    known: BTreeSet<String>,
}

impl Members {
    pub(crate) fn new<'a>(count: usize, run_ids: impl Iterator<Item = &'a str>) -> Members {
        Members { count, known: run_ids.map(|id| id.chars().take(ID_LEN).collect()).collect() }
    }

    /// Anybody may have made up the name of the channel.
    pub(crate) fn read(channel: &str) -> Option<Members> {
        let (count, ids) = channel.strip_prefix(PREFIX)?.split_once(':')?;
        let count = usize::from(count.parse::<u8>().ok()?);
        let known: BTreeSet<String> = ids.split(',').map(str::to_owned).collect();
        let is_id = |id: &String| id.len() == ID_LEN && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        (known.len() <= count && known.iter().all(is_id)).then_some(Members { count, known })
    }

    /// Whether these cannot be the same: of those that are not connected nothing is known.
    pub(crate) fn differ_from(&self, other: &Members) -> bool {
        self.count != other.count || self.known.union(&other.known).count() > self.count
    }
}

/// The name of the channel.
impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known: Vec<&str> = self.known.iter().map(String::as_str).collect();
        write!(f, "{PREFIX}{}:{}", self.count, known.join(","))
    }
}

/// What other clients name, compared with what this one does.
#[derive(Default)]
pub(crate) struct Comparison {
    own: Mutex<Members>,
    /// The sizes of the lists that were reported.
    reported: Mutex<BTreeSet<usize>>,
    on_other_members: Option<OnOtherMembers>,
}

impl Comparison {
    pub(crate) fn new(on_other_members: Option<OnOtherMembers>) -> Arc<Comparison> {
        Arc::new(Comparison { on_other_members, ..Comparison::default() })
    }

    /// What others publish on the channel of this client.
    pub(crate) fn pushed(&self, server: &Arc<str>, push: &PushInfo) {
        if let (PushKind::Message, [Value::BulkString(to), Value::BulkString(of)]) =
            (&push.kind, push.data.as_slice())
            && to.starts_with(PREFIX.as_bytes())
            && let Ok(of) = str::from_utf8(of)
        {
            self.compare(server, of);
        }
    }

    /// Reports it if the client of this channel names other members: once for each size of their list.
    /// Returns whether it does.
    fn compare(&self, server: &Arc<str>, channel: &str) -> bool {
        let own = lock(&self.own).clone();
        let Some(theirs) = Members::read(channel).filter(|theirs| theirs.differ_from(&own)) else {
            return false;
        };
        if lock(&self.reported).insert(theirs.count) {
            let other = OtherMembers { server: server.clone(), here: own.count, there: theirs.count };
            warn!("{other}");
            self.on_other_members.iter().for_each(|on_other_members| on_other_members(&other));
        }
        true
    }
}

impl fmt::Debug for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Comparison").field("own", &self.own).finish_non_exhaustive()
    }
}

/// Tells every member which ones this client names, again whenever that changes; never returns. A user may
/// lack the permission: then nothing is told.
pub(crate) async fn announce(list: Arc<MemberList>, limit: Duration) {
    let mut announced: Vec<(Connection, String)> = Vec::new();
    loop {
        let connections = list.answering();
        let own = list.members();
        *lock(&list.comparison.own) = own.clone();
        let channel = &own.to_string();
        let (before, comparison) = (&announced, &list.comparison);
        let telling = connections.iter().map(|(server, connection)| async move {
            let old = before.iter().find(|(told, _)| told.is(connection)).map(|(_, channel)| &**channel);
            if old != Some(channel) {
                let _ = timeout(limit, tell(comparison, server, connection, old, channel)).await;
            }
        });
        join_all(telling).await;
        // One that is silent now still has the channel of then.
        announced.retain(|(told, _)| told.is_open() && !connections.iter().any(|(_, it)| it.is(told)));
        announced.extend(connections.into_iter().map(|(_, connection)| (connection, channel.clone())));
        let closed = announced.iter().map(|(connection, _)| Box::pin(connection.closed().cancelled()));
        let mut closed: Vec<_> = closed.collect();
        if closed.is_empty() {
            list.changed.notified().await;
        } else {
            tokio::select! {
                () = list.changed.notified() => {}
                _ = select_all(&mut closed) => {}
            }
        }
    }
}

async fn tell(
    comparison: &Comparison,
    server: &Arc<str>,
    connection: &Connection,
    old: Option<&str>,
    own: &str,
) {
    let mut questions = redis::pipe();
    questions.cmd("SUBSCRIBE").arg(own);
    old.iter().for_each(|old| _ = questions.cmd("UNSUBSCRIBE").arg(old));
    questions.cmd("PUBSUB").arg("CHANNELS").arg(PATTERN);
    let Some(Value::Array(mut answers)) = connection.ask(&questions).await else { return };
    let Some(Value::Array(channels)) = answers.pop() else { return };
    for channel in channels {
        if let Value::BulkString(bytes) = channel
            && let Ok(other) = str::from_utf8(&bytes)
            && comparison.compare(server, other)
        {
            connection.ask(redis::cmd("PUBLISH").arg(other).arg(own)).await;
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(count: usize, ids: &[&str]) -> Members {
        Members::new(count, ids.iter().copied())
    }

    #[test]
    fn members_differ_if_they_cannot_be_the_same() {
        let ids = ["0123456789abc", "1123456789abc", "2123456789abc", "3123456789abc"];
        let all = members(3, &ids[..3]);
        for (other, differ) in [
            (members(3, &ids[..3]), false),
            (members(3, &ids[..1]), false),
            (members(3, &[]), false),
            (members(3, &ids[1..]), true),
            (members(3, &ids[3..]), true),
            (members(5, &ids[..3]), true),
            (members(1, &ids[..1]), true),
        ] {
            assert_eq!((all.differ_from(&other), other.differ_from(&all)), (differ, differ), "{other}");
        }
        assert!(!members(3, &ids[..1]).differ_from(&members(3, &ids[2..])), "the other two may be these");
    }

    #[test]
    fn a_channel_reads_as_it_is_written_and_nothing_else_does() {
        let own = members(3, &["0123456789abc", "1123456789abc"]);
        assert_eq!(own.to_string(), "dlock:members:3:0123456789,1123456789");
        assert_eq!(Members::read(&own.to_string()), Some(own));
        for other in ["", "dlock:members:", "dlock:members:3", "dlock:members:x:0123456789"] {
            assert_eq!(Members::read(other), None, "{other}");
        }
        for other in ["1:0123456789,1123456789", "3:0123", "3:0123456789;", "256:0123456789", "0:0123456789"]
        {
            assert_eq!(Members::read(&format!("dlock:members:{other}")), None, "{other}");
        }
    }
}
