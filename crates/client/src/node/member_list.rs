//! Which server each member is, so that no server votes twice.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{ConnectError, Connection};
use crate::quorum::Member;

/// The connection of each member, as long as it is open.
#[derive(Debug)]
pub(crate) struct MemberList(Mutex<Vec<Entry>>);

#[derive(Debug)]
struct Entry {
    name: Arc<str>,
    connection: Option<Connection>,
}

impl MemberList {
    pub(crate) fn new(names: impl IntoIterator<Item = Arc<str>>) -> Arc<Self> {
        let entries = names.into_iter().map(|name| Entry { name, connection: None }).collect();
        Arc::new(MemberList(Mutex::new(entries)))
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
        Ok(())
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
