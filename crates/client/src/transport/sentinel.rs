//! Finds a master by its sentinels. A failover is not subscribed to: a connection to the old master breaks,
//! or answers that the server is no master any more, and the next connection asks the sentinels again.

use std::sync::Arc;
use std::time::Duration;
use std::vec;

use dlock_protocol::error::Class;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, Value};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::sync::Mutex;

use super::address::{Address, SentinelAddress};
use super::connection::ConnectError;
use super::reply::text;
use super::stream::{Intake, Stream};

/// The sentinels of one master.
#[derive(Debug)]
pub(crate) struct MasterLocator {
    service: String,
    /// In the order in which they are asked: one that did not answer is asked last.
    sentinels: Mutex<Vec<Arc<Address>>>,
    /// The login, database and TLS of the master.
    master: Address,
}

impl MasterLocator {
    pub(crate) fn new(address: SentinelAddress) -> MasterLocator {
        let SentinelAddress { service, sentinels, master, .. } = address;
        let sentinels = sentinels.into_iter().map(Arc::new).collect();
        MasterLocator { service, sentinels: Mutex::new(sentinels), master }
    }

    /// Begins a search for the master.
    pub(crate) fn search(&self) -> Search<'_> {
        let sentinels = self.sentinels.lock().clone().into_iter();
        Search { locator: self, sentinels, named: Vec::new(), of_sentinel: None, of_master: None }
    }

    fn ask_last(&self, sentinel: &Arc<Address>) {
        let mut sentinels = self.sentinels.lock();
        if let Some(index) = sentinels.iter().position(|other| Arc::ptr_eq(other, sentinel)) {
            let sentinel = sentinels.remove(index);
            sentinels.push(sentinel);
        }
    }
}

/// A search for the master, which asks the sentinels in turn.
pub(crate) struct Search<'a> {
    locator: &'a MasterLocator,
    sentinels: vec::IntoIter<Arc<Address>>,
    /// The hosts and ports that were named.
    named: Vec<(String, u16)>,
    /// The error of a sentinel, with its address.
    of_sentinel: Option<(Arc<str>, Unanswered)>,
    /// The error of a server that was named.
    of_master: Option<ConnectError>,
}

impl Search<'_> {
    /// Returns the address of the master that the next sentinel names, unless an earlier one named it. Asks
    /// each sentinel for at most `limit`. `None` means that no sentinel is left.
    pub(crate) async fn next(&mut self, limit: Duration) -> Option<Address> {
        loop {
            let sentinel = self.sentinels.next()?;
            let answer = timeout(limit, ask(&sentinel, &self.locator.service)).await;
            let why = match answer {
                Ok(Ok(place)) if self.named.contains(&place) => continue,
                Ok(Ok(place)) => {
                    let address = self.locator.master.at(&place.0, place.1);
                    self.named.push(place);
                    return Some(address);
                }
                Ok(Err(why)) => why,
                Err(_) => Unanswered::Down(format!("{} gave no answer in time", sentinel.name)),
            };
            self.locator.ask_last(&sentinel);
            // A fault of the configuration explains more than a sentinel that is down.
            if !matches!(self.of_sentinel, Some((_, Unanswered::Fault(_)))) {
                self.of_sentinel = Some((sentinel.name.clone(), why));
            }
        }
    }

    /// Records that the named server could not be reached, or is no master.
    pub(crate) fn note_failure(&mut self, address: &Address, why: ConnectError) {
        self.of_master = Some(why.of_server(&address.name));
    }

    /// Returns the reason why no master was found.
    pub(crate) fn error(self) -> ConnectError {
        match (self.of_master, self.of_sentinel) {
            (Some(why), _) => why,
            (None, Some((_, Unanswered::Down(why)))) => {
                ConnectError::down(format!("no sentinel names the master {}: {why}", self.locator.service))
            }
            (None, Some((sentinel, Unanswered::Fault(why)))) => {
                ConnectError::error(&format!("{sentinel} {why}"))
            }
            (None, None) => ConnectError::down("no sentinel was asked"),
        }
    }
}

/// Reason why a sentinel named no master.
enum Unanswered {
    Down(String),
    /// A fault of the configuration, with the text that follows the address of the sentinel.
    Fault(String),
}

/// Asks a sentinel for the host and the port of the master.
async fn ask(sentinel: &Address, service: &str) -> Result<(String, u16), Unanswered> {
    let down = |why: String| Unanswered::Down(format!("{}: {why}", sentinel.name));
    let (intake, mut missing) = (Arc::<Intake>::default(), "");
    let stream = Stream::open(sentinel, intake, &mut missing).await.map_err(|why| down(why.to_string()))?;
    let config = redis::AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let settings = sentinel.info.redis_settings();
    let opened = MultiplexedConnection::new_with_config(settings, stream, config).await;
    let (mut redis, driver) =
        opened.map_err(|why| login_error(&why).unwrap_or_else(|| down(why.to_string())))?;
    let _driver = AbortOnDropHandle::new(tokio::spawn(driver));
    let mut question = Cmd::new();
    question.arg("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(service);
    let fault = |why: String| Err(Unanswered::Fault(why));
    match redis.send_packed_command(&question).await.map_err(|why| down(why.to_string()))? {
        Value::Nil => fault(format!(
            "knows no master {service}: write the name in `sentinel monitor NAME ..` as sentinelServiceName"
        )),
        Value::ServerError(error) => {
            let why = text(&error);
            match Class::of(&why) {
                Class::NoModule => fault(format!("is no sentinel: write {} for a server", sentinel.name)),
                Class::Login | Class::Forbidden(_) => fault(LOGIN.into()),
                _ => Err(down(why)),
            }
        }
        answer => match redis::from_redis_value(answer) {
            Ok(place) => Ok(place),
            Err(_) => fault("answers in a form that this client does not know".into()),
        },
    }
}

const LOGIN: &str = "refuses the login: put the user and the password of the sentinels into the address as \
                     sentinelUsername=.. and sentinelPassword=..";

fn login_error(why: &RedisError) -> Option<Unanswered> {
    let is_login = why.kind() == ErrorKind::AuthenticationFailed
        || matches!(why.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"));
    is_login.then(|| Unanswered::Fault(LOGIN.into()))
}
