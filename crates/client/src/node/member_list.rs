//! Which server each member is, so that no server votes twice.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::Cmd;
use sha1_smol::Sha1;

use super::{ConnectError, Connection};
use crate::request;
use dlock_quorum::Member;

/// The library name of the clients of a single server.
const LIBRARY: &str = "dlock-client";

/// How many characters of the digest of the run ids are in the name of a client.
const DIGEST_LEN: usize = 8;

/// The last connection of each member.
#[derive(Debug)]
pub(crate) struct MemberList(Mutex<Vec<Entry>>);

#[derive(Debug)]
struct Entry {
    name: Arc<str>,
    connection: Option<Connection>,
    /// The library name that was last sent on the connection.
    sent_name: String,
}

impl MemberList {
    pub(crate) fn new(names: impl IntoIterator<Item = Arc<str>>) -> Arc<Self> {
        let entry = |name| Entry { name, connection: None, sent_name: String::new() };
        Arc::new(MemberList(Mutex::new(names.into_iter().map(entry).collect())))
    }

    /// The name of the client's connections in CLIENT LIST: see
    /// [`Client::library_name`](crate::Client::library_name).
    pub(crate) fn library_name(&self) -> String {
        let entries = self.entries();
        library_name(&entries)
    }

    /// The connections that have another name than the client has now, with the command that changes it.
    /// Counts as sent.
    pub(super) fn outdated_names(&self) -> Vec<(Connection, Cmd)> {
        let mut entries = self.entries();
        let name = library_name(&entries);
        let mut renamed = Vec::new();
        for entry in entries.iter_mut().filter(|entry| entry.sent_name != name) {
            if let Some(connection) = entry.connection.clone().filter(Connection::is_open) {
                entry.sent_name.clone_from(&name);
                renamed.push((connection, request::set_library_name(&name)));
            }
        }
        renamed
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
    pub(super) fn register(
        &self,
        member: Member,
        connection: &Connection,
        sent_name: String,
    ) -> Result<(), ConnectError> {
        let mut entries = self.entries();
        check(&entries, member, connection)?;
        let entry = &mut entries[usize::from(member.0)];
        (entry.connection, entry.sent_name) = (Some(connection.clone()), sent_name);
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

fn library_name(entries: &[Entry]) -> String {
    let members = entries.len();
    if members == 1 {
        return LIBRARY.to_owned();
    }
    let run_id = |entry: &Entry| entry.connection.as_ref()?.server().ok().cloned();
    let Some(mut run_ids) = entries.iter().map(run_id).collect::<Option<Vec<Arc<str>>>>() else {
        return format!("{LIBRARY}(q{members})");
    };
    run_ids.sort();
    let digest = Sha1::from(run_ids.join(",")).digest().to_string();
    format!("{LIBRARY}(q{members}-{})", &digest[..DIGEST_LEN])
}
