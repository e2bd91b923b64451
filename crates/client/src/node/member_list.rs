//! Which server each member is, so that no server votes twice.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::{ConnectError, Connection};
use crate::membership::{Comparison, Members};
use crate::quorum::Member;

/// The connection of each member, as long as it is open.
#[derive(Debug)]
pub(crate) struct MemberList {
    entries: Mutex<Vec<Entry>>,
    /// Notified when a member is connected.
    pub(crate) changed: Notify,
    pub(crate) comparison: Arc<Comparison>,
}

#[derive(Debug)]
struct Entry {
    name: Arc<str>,
    connection: Option<Connection>,
}

impl MemberList {
    pub(crate) fn new(names: impl IntoIterator<Item = Arc<str>>, comparison: Arc<Comparison>) -> Arc<Self> {
        let entries = names.into_iter().map(|name| Entry { name, connection: None }).collect();
        Arc::new(MemberList { entries: Mutex::new(entries), changed: Notify::new(), comparison })
    }

    /// The last connection of each member that had one.
    pub(crate) fn connections(&self) -> Vec<(Member, Connection)> {
        let connected = |(entry, member): (&Entry, u8)| Some((Member(member), entry.connection.clone()?));
        self.entries().iter().zip(0..).filter_map(connected).collect()
    }

    /// The members as far as they are known.
    pub(crate) fn members(&self) -> Members {
        let connections = self.connections();
        let answering = connections.iter().filter(|(_, connection)| connection.answers());
        let ids = answering.filter_map(|(_, connection)| Some(&**connection.server().ok()?));
        Members::new(self.entries().len(), ids)
    }

    /// Whether a majority of the members is connected and answers.
    pub(super) fn has_majority(&self) -> bool {
        let entries = self.entries();
        let answers = |entry: &&Entry| entry.connection.as_ref().is_some_and(Connection::answers);
        entries.iter().filter(answers).count() > entries.len() / 2
    }

    /// Rejects a connection of `member` to a server that is another member.
    pub(super) fn check(&self, member: Member, connection: &Connection) -> Result<(), ConnectError> {
        check(&self.entries(), member, connection)
    }

    /// [`check`](Self::check), and records the server as `member`.
    pub(super) fn register(&self, member: Member, connection: &Connection) -> Result<(), ConnectError> {
        let mut entries = self.entries();
        check(&entries, member, connection)?;
        entries[usize::from(member.0)].connection = Some(connection.clone());
        self.changed.notify_one();
        Ok(())
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check(entries: &[Entry], member: Member, connection: &Connection) -> Result<(), ConnectError> {
    if entries.len() == 1 {
        return Ok(());
    }
    let server = connection.server().map_err(|why| {
        ConnectError::error(format!(
            "cannot tell which server it is, and whether it votes twice: let its user run INFO ({why})"
        ))
    })?;
    for (index, entry) in entries.iter().enumerate() {
        // A closed connection proves nothing: an address may move from server to server.
        let known = entry.connection.as_ref().filter(|known| known.is_open());
        if index != usize::from(member.0) && known.is_some_and(|known| known.server() == Ok(server)) {
            return Err(ConnectError::SameAs(entry.name.clone()));
        }
    }
    Ok(())
}
