//! Which members a client names. Clients that name others may hold one lock at the same time: their
//! majorities need not meet. The servers know nothing of each other, so each client tells them which members
//! it names, by the name of a channel that it is subscribed to. Whoever comes later sees the channels of
//! those who are there, and tells them its own. A channel ends with the connection: there is no key, and
//! nothing that is out of date after a restart.

use redis::{PushInfo, PushKind, Value};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures_util::future::{join_all, select_all};
use tokio::time::timeout;
use tracing::warn;

use crate::error::{NodeState, OtherMembers};
use crate::node::{Channel, Connection, MemberList, Node};
use crate::quorum::Member;
use crate::reading;

/// How the names of the channels begin.
const PREFIX: &str = "dlock:members:";

/// So many others are told at once.
const MOST_TOLD: usize = 100;

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

    /// The name of the channel of those whose locks are in this database.
    pub(crate) fn channel(&self, database: i64) -> String {
        let known: Vec<&str> = self.known.iter().map(String::as_str).collect();
        format!("{PREFIX}{database}:{}:{}", self.count, known.join(","))
    }

    /// Anybody may have made up the name of the channel. `None` too if it is of another database.
    pub(crate) fn read(database: i64, channel: &str) -> Option<Members> {
        let channel = channel.strip_prefix(PREFIX)?.strip_prefix(&database.to_string())?;
        let (count, ids) = channel.strip_prefix(':')?.split_once(':')?;
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

/// The channels of the clients that are connected to a server, and whose locks are in the same database.
pub(crate) async fn named(node: &Arc<Node>) -> Result<Vec<String>, NodeState> {
    let mut question = redis::cmd("PUBSUB");
    question.arg("CHANNELS").arg(format!("{PREFIX}{}:*", node.database()));
    // Anybody may have subscribed to more than a connection may bring.
    Channel::apart(node).await?.find(&question, reading::texts).await
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
    pub(crate) fn pushed(&self, server: &Arc<str>, database: i64, push: &PushInfo) {
        if let (PushKind::Message, [Value::BulkString(to), Value::BulkString(of)]) =
            (&push.kind, push.data.as_slice())
            && to.starts_with(PREFIX.as_bytes())
            && let Ok(of) = str::from_utf8(of)
        {
            self.compare(server, database, of);
        }
    }

    /// Reports it if the client of this channel names other members: once for each size of their list.
    /// Returns whether it does.
    fn compare(&self, server: &Arc<str>, database: i64, channel: &str) -> bool {
        let own = lock(&self.own).clone();
        let Some(theirs) = Members::read(database, channel).filter(|theirs| theirs.differ_from(&own)) else {
            return false;
        };
        if lock(&self.reported).insert(theirs.count) {
            let other = OtherMembers { server: server.clone(), here: own.count, there: theirs.count };
            warn!("{other}");
            if let Some(on_other_members) = self.on_other_members.clone() {
                // By itself: if it panics, the connection lives on.
                tokio::spawn(async move { on_other_members(&other) });
            }
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
/// lack the permission: then nothing is told. It must not keep the nodes, and with them its own thread, for
/// longer than it asks them.
pub(crate) async fn announce(list: Arc<MemberList>, members: Vec<Weak<Node>>) {
    let mut announced: Vec<(Connection, String)> = Vec::new();
    loop {
        let Some(nodes) = members.iter().map(Weak::upgrade).collect::<Option<Vec<_>>>() else { return };
        let (connections, silent): (Vec<_>, Vec<_>) =
            list.connections().into_iter().partition(|(_, connection)| connection.answers());
        let own = list.members();
        *lock(&list.comparison.own) = own.clone();
        let channel = |member: Member| own.channel(nodes[usize::from(member.0)].database());
        let (before, comparison) = (&announced, &list.comparison);
        let telling = connections.iter().map(|(member, connection)| {
            let (node, channel) = (&nodes[usize::from(member.0)], channel(*member));
            async move {
                let old = before.iter().find(|(told, _)| told.is(connection)).map(|(_, channel)| &**channel);
                // One that is subscribed to nothing is so for a reason.
                if old != Some(&*channel) && connection.listens() {
                    tell(comparison, node, connection, old, &channel).await;
                }
            }
        });
        join_all(telling).await;
        // One that is silent now still has the channel of then. One that another has replaced must close.
        announced.retain(|(told, _)| told.is_open() && silent.iter().any(|(_, it)| it.is(told)));
        announced.extend(connections.into_iter().map(|(member, connection)| (connection, channel(member))));
        drop(nodes);
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
    node: &Arc<Node>,
    connection: &Connection,
    old: Option<&str>,
    own: &str,
) {
    let mut subscribing = redis::pipe();
    subscribing.cmd("SUBSCRIBE").arg(own);
    old.iter().for_each(|old| _ = subscribing.cmd("UNSUBSCRIBE").arg(old));
    let _ = timeout(node.limit, connection.ask(&subscribing)).await;
    let others = named(node).await.unwrap_or_default();
    let others = others.iter().filter(|other| comparison.compare(&node.name, node.database(), other));
    for other in others.take(MOST_TOLD) {
        let _ = timeout(node.limit, connection.ask(redis::cmd("PUBLISH").arg(other).arg(own))).await;
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
            assert_eq!((all.differ_from(&other), other.differ_from(&all)), (differ, differ), "{other:?}");
        }
        assert!(!members(3, &ids[..1]).differ_from(&members(3, &ids[2..])), "the other two may be these");
    }

    #[test]
    fn a_channel_reads_as_it_is_written_and_nothing_else_does() {
        let own = members(3, &["0123456789abc", "1123456789abc"]);
        assert_eq!(own.channel(1), "dlock:members:1:3:0123456789,1123456789");
        assert_eq!(Members::read(1, &own.channel(1)), Some(own.clone()));
        assert_eq!(Members::read(1, &own.channel(11)), None, "of another database");
        for other in ["", "dlock:members:", "dlock:members:1:3", "dlock:members:1:x:0123456789"] {
            assert_eq!(Members::read(1, other), None, "{other}");
        }
        for other in ["1:0123456789,1123456789", "3:0123", "3:0123456789;", "256:0123456789", "0:0123456789"]
        {
            assert_eq!(Members::read(1, &format!("dlock:members:1:{other}")), None, "{other}");
        }
    }
}
