//! Finds a master by its sentinels, whenever the client connects.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use std::vec;

use dlock_protocol::error::Class;
use dlock_quorum::{Fault, FaultKind};
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, ServerError, Value};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::error::NodeState;
use crate::inspect::{Answer, Inspected, Sentinel};
use crate::reading;
use crate::sync::Mutex;

use super::address::{Address, SentinelAddress};
use super::connection::{Command, ConnectError, mode};
use super::reply::text;
use super::stream::{Intake, Stream};

/// The sentinels of one master.
#[derive(Debug)]
pub(crate) struct MasterLocator {
    service: String,
    /// In the order in which they are asked: one that did not answer is asked last.
    pub(super) sentinels: Mutex<Vec<Arc<Address>>>,
    /// The login, database and TLS of the master.
    pub(crate) master: Address,
    /// Cancelled when the present master has a successor.
    term: Mutex<CancellationToken>,
}

impl MasterLocator {
    pub(crate) fn new(address: SentinelAddress) -> MasterLocator {
        let SentinelAddress { service, sentinels, master, .. } = address;
        let sentinels = sentinels.into_iter().map(Arc::new).collect();
        MasterLocator { service, sentinels: Mutex::new(sentinels), master, term: Mutex::default() }
    }

    /// Returns a token for a connection to the present master. It is cancelled when the master has a
    /// successor.
    pub(crate) fn term(&self) -> CancellationToken {
        self.term.lock().child_token()
    }

    /// Closes all connections to the present master, which has a successor.
    pub(crate) fn end_term(&self) {
        std::mem::take(&mut *self.term.lock()).cancel();
    }

    /// Begins a search for the master.
    pub(crate) fn search(&self) -> Search<'_> {
        let sentinels = self.sentinels.lock().clone().into_iter();
        Search { locator: self, sentinels, named: Vec::new(), of_sentinel: None, of_master: None }
    }

    /// Asks every sentinel, those of the address and those that they know, what it says about the master.
    /// Asks each for at most `limit`.
    pub(crate) async fn survey(&self, limit: Duration) -> Vec<Inspected<Sentinel>> {
        let mut question = redis::pipe();
        question.cmd("SENTINEL").arg("MYID");
        question.cmd("SENTINEL").arg("MASTER").arg(&self.service);
        question.cmd("SENTINEL").arg("SENTINELS").arg(&self.service);
        let mut next = self.sentinels.lock().clone();
        let (mut names, mut ids, mut seen) = (HashSet::new(), HashSet::new(), Vec::new());
        while !next.is_empty() {
            names.extend(next.iter().map(|sentinel| sentinel.name.clone()));
            let asked =
                next.iter().map(|sentinel| timeout(limit, consult(sentinel, &question, &self.service)));
            let (answers, mut others) = (join_all(asked).await, Vec::new());
            for (sentinel, answer) in next.iter().zip(answers) {
                let answer = answer.unwrap_or_else(|_| Err(Unanswered::Down("no answer in time".into())));
                let answer = answer.map_err(NodeState::from).map(|opinion| {
                    ids.insert(opinion.id);
                    let others_of = |(id, place): (_, String)| Some((id, sentinel.at_node(&place)?));
                    others.extend(opinion.others.into_iter().filter_map(others_of));
                    opinion.says
                });
                seen.push(Inspected::new(sentinel.name.clone(), Answer::of(answer)));
            }
            others.retain(|(id, address)| ids.insert(id.clone()) && names.insert(address.name.clone()));
            next = others.into_iter().map(|(_, address)| Arc::new(address)).collect();
        }
        seen
    }

    /// Returns the replicas of the master that the first sentinel knows that answers, as `host:port`.
    pub(crate) async fn replicas(&self, limit: Duration) -> Vec<String> {
        let mut question = redis::cmd("SENTINEL");
        question.arg("REPLICAS").arg(&self.service);
        let sentinels = self.sentinels.lock().clone();
        for sentinel in sentinels {
            if let Ok(Ok(Value::Array(replicas))) = timeout(limit, ask(&sentinel, &question)).await {
                return replicas
                    .into_iter()
                    .filter_map(|replica| Some(Fields::of(replica)?.place()))
                    .collect();
            }
        }
        Vec::new()
    }

    fn ask_last(&self, sentinel: &Arc<Address>) {
        let mut sentinels = self.sentinels.lock();
        if let Some(index) = sentinels.iter().position(|other| Arc::ptr_eq(other, sentinel)) {
            sentinels[index..].rotate_left(1);
        }
    }

    pub(super) fn ask_first(&self, sentinel: &Arc<Address>) {
        let mut sentinels = self.sentinels.lock();
        if let Some(index) = sentinels.iter().position(|other| Arc::ptr_eq(other, sentinel)) {
            sentinels[..=index].rotate_right(1);
        }
    }

    /// Asks a sentinel for the host and the port of the master.
    pub(super) async fn locate(
        &self,
        sentinel: &Address,
        session: &mut Session,
    ) -> Result<(String, u16), Unanswered> {
        let (mut question, service) = (redis::cmd("SENTINEL"), &self.service);
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(service);
        match session.ask(&question).await? {
            Value::Nil => Err(no_master(service)),
            Value::ServerError(error) => Err(refusal(sentinel, &error, service).await),
            answer => redis::from_redis_value(answer).map_err(|_| Unanswered::Fault(UNREADABLE.into())),
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
            let asking = async {
                let mut session = Session::open(&sentinel, None).await?;
                self.locator.locate(&sentinel, &mut session).await
            };
            let answer = timeout(limit, asking).await;
            let why = match answer {
                Ok(Ok(place)) if self.named.contains(&place) => continue,
                Ok(Ok(place)) => {
                    let address = self.locator.master.at(&place.0, place.1);
                    self.named.push(place);
                    return Some(address);
                }
                Ok(Err(why)) => why,
                Err(_) => Unanswered::Down("no answer in time".into()),
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
            (None, Some((sentinel, Unanswered::Down(why)))) => {
                let service = &self.locator.service;
                ConnectError::down(format!("no sentinel names the master {service}: {sentinel}: {why}"))
            }
            (None, Some((sentinel, Unanswered::Fault(why)))) => {
                ConnectError::with_fault(why).of_server(&sentinel)
            }
            (None, None) => ConnectError::down("no sentinel was asked"),
        }
    }
}

/// Reason why a sentinel gave no answer.
pub(super) enum Unanswered {
    Down(String),
    /// A fault of the configuration, with the text that follows the address of the sentinel.
    Fault(Fault),
}

impl From<Unanswered> for NodeState {
    fn from(why: Unanswered) -> NodeState {
        match why {
            Unanswered::Down(why) => NodeState::Down(why.into()),
            Unanswered::Fault(why) => NodeState::Failed(why),
        }
    }
}

/// What a sentinel says about the master, and about the other sentinels.
struct Opinion {
    id: String,
    says: Sentinel,
    /// The other sentinels: id, and `host:port`.
    others: Vec<(String, String)>,
}

impl Opinion {
    /// Reads the answers to MYID, MASTER and SENTINELS.
    fn of([id, master, others]: [Value; 3]) -> Option<Opinion> {
        let (id, master) = (reading::text(id)?, Fields::of(master)?);
        let Value::Array(others) = others else { return None };
        let others = others.into_iter().filter_map(Fields::of);
        let others: Vec<(String, String)> =
            others.map(|other| (other.text("runid").to_owned(), other.place())).collect();
        let number = |name| master.text(name).parse().unwrap_or(0);
        let says = Sentinel {
            master: master.place(),
            quorum: number("quorum"),
            sentinels: number("num-other-sentinels") + 1,
            down_after_ms: number("down-after-milliseconds"),
        };
        Some(Opinion { id, says, others })
    }
}

/// What a sentinel says about a server, as names and values in turn.
struct Fields(Vec<String>);

impl Fields {
    fn of(answer: Value) -> Option<Fields> {
        matches!(answer, Value::Array(_) | Value::Map(_)).then(|| reading::texts(answer).map(Fields))?
    }

    fn text(&self, name: &str) -> &str {
        let pairs = self.0.chunks_exact(2);
        pairs.filter(|pair| pair[0] == name).map(|pair| pair[1].as_str()).next().unwrap_or_default()
    }

    fn place(&self) -> String {
        format!("{}:{}", self.text("ip"), self.text("port"))
    }
}

/// Asks a sentinel for its opinion, by MYID, MASTER and SENTINELS.
async fn consult(sentinel: &Address, question: &impl Command, service: &str) -> Result<Opinion, Unanswered> {
    let answers: Vec<Value> = match ask(sentinel, question).await? {
        Value::Array(answers) => answers,
        _ => Vec::new(),
    };
    let refused = answers.iter().find_map(|answer| match answer {
        Value::ServerError(error) => Some(error),
        _ => None,
    });
    if let Some(error) = refused {
        return Err(refusal(sentinel, error, service).await);
    }
    let opinion = answers.try_into().ok().and_then(Opinion::of);
    opinion.ok_or_else(|| Unanswered::Fault(UNREADABLE.into()))
}

/// Returns what the error reply of a sentinel means.
async fn refusal(sentinel: &Address, error: &ServerError, service: &str) -> Unanswered {
    let why = text(error);
    match Class::of(&why) {
        Class::NoModule => no_sentinel(sentinel).await,
        Class::Login => Unanswered::Fault(FaultKind::Login.with(LOGIN)),
        // The text names the right. The login is good.
        Class::Forbidden(denied) => {
            Unanswered::Fault(FaultKind::Forbidden(denied).with(format!("answers {why}")))
        }
        _ if why.contains("No such master") => no_master(service),
        _ => Unanswered::Down(why),
    }
}

/// Returns the error for a server that is no sentinel, with the right form of its address.
async fn no_sentinel(server: &Address) -> Unanswered {
    let mut question = redis::cmd("INFO");
    question.arg("server");
    let info = ask(server, &question).await.ok();
    let info = info.and_then(|info| redis::from_redis_value::<String>(info).ok()).unwrap_or_default();
    Unanswered::Fault(FaultKind::Unsupported.with(match mode(&info) {
        Some("cluster") => format!("is no sentinel: write {} for a cluster", server.as_kind("cluster")),
        _ => format!("is no sentinel: write {} for a server", server.name),
    }))
}

fn no_master(service: &str) -> Unanswered {
    Unanswered::Fault(FaultKind::UnknownMaster.with(format!(
        "knows no master {service}: write the name in `sentinel monitor NAME ..` as sentinelServiceName"
    )))
}

/// Sends a question over a connection of its own.
pub(super) async fn ask(sentinel: &Address, question: &impl Command) -> Result<Value, Unanswered> {
    Session::open(sentinel, None).await?.ask(question).await
}

/// A connection for questions to a sentinel, or to a server.
pub(super) struct Session {
    redis: MultiplexedConnection,
    intake: Arc<Intake>,
    _driver: AbortOnDropHandle<()>,
}

impl Session {
    /// Opens a connection. Calls `on_push` for each message, and when the connection breaks.
    pub(super) async fn open(
        sentinel: &Address,
        on_push: Option<Box<dyn Fn() + Send + Sync>>,
    ) -> Result<Session, Unanswered> {
        let down = Unanswered::Down;
        let (intake, mut missing) = (Arc::<Intake>::default(), "");
        let mut config =
            redis::AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let mut settings = sentinel.info.redis_settings().clone();
        if let Some(on_push) = on_push {
            let pushes = intake.clone();
            settings = settings.set_protocol(redis::ProtocolVersion::RESP3);
            config = config.set_push_sender(move |_| {
                pushes.pushed();
                on_push();
                Ok::<(), redis::aio::SendError>(())
            });
        }
        let opened = Stream::open(sentinel, intake.clone(), &mut missing).await;
        let stream = opened.map_err(|why| down(why.to_string()))?;
        let opened = MultiplexedConnection::new_with_config(&settings, stream, config).await;
        let (redis, driver) =
            opened.map_err(|why| login_error(&why).unwrap_or_else(|| down(why.to_string())))?;
        Ok(Session { redis, intake, _driver: AbortOnDropHandle::new(tokio::spawn(driver)) })
    }

    pub(super) async fn ask(&mut self, question: &impl Command) -> Result<Value, Unanswered> {
        let answer = question.send(&mut self.redis).await;
        self.intake.answered();
        answer.map_err(|why| Unanswered::Down(why.to_string()))
    }
}

const UNREADABLE: &str = "answers in a form that this client does not know";

const LOGIN: &str = "refuses the login: put the user and the password of the sentinels into the address as \
                     sentinelUsername=.. and sentinelPassword=..";

fn login_error(why: &RedisError) -> Option<Unanswered> {
    let is_login = why.kind() == ErrorKind::AuthenticationFailed
        || matches!(why.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"));
    is_login.then(|| Unanswered::Fault(FaultKind::Login.with(LOGIN)))
}
