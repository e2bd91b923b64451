//! Records to which server the address of each member leads, so that no server votes twice.

use std::sync::Arc;

use dlock_quorum::{Failure, FaultKind, Member, Quorum, Vote};
use redis::Cmd;
use sha1_smol::Sha1;

use crate::request;
use crate::sync::Mutex;
use crate::transport::{ConnectError, Connection};

/// Library name of a client of a single server.
const LIBRARY: &str = "dlock-client";

/// Length in characters of the digest of all run ids, a part of the library name of a client of a quorum.
const DIGEST_LEN: usize = 8;

/// The last connection of each member.
#[derive(Debug)]
pub(crate) struct MemberList {
    quorum: Quorum,
    entries: Mutex<Vec<Entry>>,
}

#[derive(Debug)]
struct Entry {
    name: Arc<str>,
    connection: Option<Connection>,
    /// Library name that was last sent on the connection.
    sent_name: String,
}

impl Entry {
    fn run_id(&self) -> Option<Arc<str>> {
        self.connection.as_ref()?.run_id()
    }
}

impl MemberList {
    pub(crate) fn new(quorum: Quorum, names: impl IntoIterator<Item = Arc<str>>) -> Arc<Self> {
        let entry = |name| Entry { name, connection: None, sent_name: String::new() };
        Arc::new(MemberList { quorum, entries: Mutex::new(names.into_iter().map(entry).collect()) })
    }

    /// Returns the name of the client's connections in CLIENT LIST: see
    /// [`Client::library_name`](crate::Client::library_name).
    pub(crate) fn library_name(&self) -> String {
        let entries = self.entries.lock();
        library_name(&entries)
    }

    /// Returns the run id of the server that was last registered for the member.
    pub(crate) fn run_id(&self, of: Member) -> Option<Arc<str>> {
        self.entries.lock()[usize::from(of.0)].run_id()
    }

    /// Returns the connections with an outdated name, each with the command that changes it, and records the
    /// new name as sent.
    pub(crate) fn take_outdated_names(&self) -> Vec<(Connection, Cmd)> {
        let mut entries = self.entries.lock();
        let name = library_name(&entries);
        let mut outdated = Vec::new();
        for entry in entries.iter_mut().filter(|entry| entry.sent_name != name) {
            if let Some(connection) = entry.connection.clone().filter(Connection::is_open) {
                entry.sent_name.clone_from(&name);
                outdated.push((connection, request::set_library_name(&name)));
            }
        }
        outdated
    }

    /// Returns true if a majority of the members is connected and answers.
    pub(crate) fn has_majority(&self) -> bool {
        let entries = self.entries.lock();
        let answers = |entry: &&Entry| entry.connection.as_ref().is_some_and(Connection::answers);
        entries.iter().filter(answers).count() >= self.quorum.majority()
    }

    /// In a quorum, returns an error if another member has an open connection to the same server as this
    /// connection of `member`, or if the run id of the server is unknown.
    pub(crate) fn check(&self, member: Member, connection: &Connection) -> Result<(), ConnectError> {
        check(&self.entries.lock(), member, connection)
    }

    /// Like [`check`](Self::check), and records the server as that of `member`.
    pub(crate) fn register(
        &self,
        member: Member,
        connection: &Connection,
        sent_name: String,
    ) -> Result<(), ConnectError> {
        let mut entries = self.entries.lock();
        check(&entries, member, connection)?;
        let entry = &mut entries[usize::from(member.0)];
        (entry.connection, entry.sent_name) = (Some(connection.clone()), sent_name);
        Ok(())
    }
}

fn check(entries: &[Entry], member: Member, connection: &Connection) -> Result<(), ConnectError> {
    if entries.len() == 1 {
        return Ok(());
    }
    let run_id = connection.try_run_id().map_err(|why| {
        ConnectError::Failure(Failure::Error(why.kind.with(format!(
            "cannot tell whether it is the same server as another member: let its user run INFO ({})",
            why.text
        ))))
    })?;
    for (index, entry) in entries.iter().enumerate() {
        // A closed connection proves nothing: an address may move from server to server.
        let known = entry.connection.as_ref().filter(|known| known.is_open());
        if index != usize::from(member.0) && known.is_some_and(|known| known.try_run_id() == Ok(run_id)) {
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
    let Some(mut run_ids) = entries.iter().map(Entry::run_id).collect::<Option<Vec<Arc<str>>>>() else {
        return format!("{LIBRARY}(q{members})");
    };
    run_ids.sort();
    let digest = Sha1::from(run_ids.join(",")).digest().to_string();
    format!("{LIBRARY}(q{members}-{})", &digest[..DIGEST_LEN])
}

const VOTED_ALREADY: &str = "the same server as another member: it would vote twice";

const CHANGED: &str = "its address leads to another server than the one that voted before";

/// The servers that have granted in one operation. [`MemberList`] refuses two open connections to one server.
/// But once a connection has closed, the address of another member can lead to the same server.
#[derive(Debug, Default)]
pub(crate) struct Voters(Mutex<Vec<(Member, Arc<str>)>>);

impl Voters {
    /// Returns the vote that `server` has cast as `member`. A grant becomes a failure if `server` has already
    /// granted as another member, or if another server has granted as `member`. `server` is a run id, and
    /// `None` only in a client of a single server.
    pub(crate) fn admit<G>(&self, member: Member, server: Option<Arc<str>>, vote: Vote<G>) -> Vote<G> {
        let (Vote::Granted(_), Some(server)) = (&vote, server) else { return vote };
        let mut counted = self.0.lock();
        let why = match counted.iter().find(|(known, voter)| *known == member || *voter == server) {
            None => {
                counted.push((member, server));
                return vote;
            }
            Some((known, voter)) if *known == member && *voter == server => return vote,
            Some((known, _)) if *known == member => CHANGED,
            Some(_) => VOTED_ALREADY,
        };
        Vote::Failed(Failure::Error(FaultKind::SameServer.with(why)))
    }
}
