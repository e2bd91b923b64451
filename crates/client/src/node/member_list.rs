//! Who the members are, so that no server votes twice.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{ConnectError, Connection};
use crate::quorum::Member;

/// Behind each member's address: its connection, as long as that is open.
#[derive(Debug)]
pub(crate) struct MemberList(Mutex<Vec<Seat>>);

#[derive(Debug)]
struct Seat {
    name: Arc<str>,
    connection: Option<Connection>,
}

impl MemberList {
    pub(crate) fn new(names: impl IntoIterator<Item = Arc<str>>) -> Arc<Self> {
        let seats = names.into_iter().map(|name| Seat { name, connection: None }).collect();
        Arc::new(MemberList(Mutex::new(seats)))
    }

    /// Refuses a connection of `member` that leads to the server of another member.
    pub(super) fn check(&self, member: Member, connection: &Connection) -> Result<(), ConnectError> {
        check(&self.seats(), member, connection)
    }

    /// [`check`](Self::check), and from now on the server is `member`.
    pub(super) fn seat(&self, member: Member, connection: &Connection) -> Result<(), ConnectError> {
        let mut seats = self.seats();
        check(&seats, member, connection)?;
        seats[usize::from(member.0)].connection = Some(connection.clone());
        Ok(())
    }

    fn seats(&self) -> MutexGuard<'_, Vec<Seat>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check(seats: &[Seat], member: Member, connection: &Connection) -> Result<(), ConnectError> {
    if seats.len() == 1 {
        return Ok(());
    }
    let server = connection.server().map_err(|why| {
        ConnectError::error(format!(
            "cannot tell which server it is, and whether it votes twice; let its user run INFO ({why})"
        ))
    })?;
    for (place, seat) in seats.iter().enumerate() {
        // What has closed is nobody any more: addresses may be moved from server to server.
        let seated = seat.connection.as_ref().filter(|seated| seated.is_open());
        if place != usize::from(member.0) && seated.is_some_and(|seated| seated.server() == Ok(server)) {
            return Err(ConnectError::SameAs(seat.name.clone()));
        }
    }
    Ok(())
}
