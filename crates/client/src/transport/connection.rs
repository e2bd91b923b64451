//! One connection: the server that it leads to, and whether the server answers.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use dlock_protocol::command::table;
use dlock_protocol::error::Class;
use dlock_quorum::{Failure, Fault, FaultKind, Instant};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, Pipeline, PushInfo, RedisError, RedisResult, ServerError, Value};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::clock::now;
use crate::error::NodeState;

use super::address::Address;
use super::reply::{fault, text, without_arguments};
use super::stream::{Intake, Stream};

/// After this number of silences in a row, each as long as the time limit of an answer, the connection is
/// replaced: the network may have lost the connection without closing it.
const MAX_SILENCES: u32 = 2;

/// Largest number, and largest size in bytes, of the requests in one write, such as the renewals of one
/// moment.
const BATCH: usize = 512;
const BATCH_SIZE: usize = 64 << 10;

/// Largest number of requests under way. Others wait for their turn, and their time limit begins with it.
const TURNS: usize = 8 * BATCH;

/// A connection. Clones are the same connection, which closes with the last of them.
#[derive(Clone)]
pub(crate) struct Connection {
    redis: MultiplexedConnection,
    shared: Arc<Shared>,
}

/// The server's run id, or the reason why it is unknown.
type RunId = Result<Arc<str>, Fault>;

/// What the server at an address must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    /// A server that is neither a sentinel nor a node of a cluster. It may be a replica, because an address
    /// may lead to the old master for some time after a failover.
    Server,
    /// The same, and a master: the sentinels named it.
    Master,
    ClusterNode,
}

/// The state that all clones share.
struct Shared {
    run_id: RunId,
    /// If the server was a replica when the connection was opened: the address of its master.
    master: Option<String>,
    /// True if the connection is subscribed to the channel of the waits: the Pub/Sub channel on which the
    /// server publishes the end of each wait of this client.
    is_subscribed: bool,
    closed: CancellationToken,
    opened: Instant,
    /// When the last answer arrived, in ms after `opened`.
    last_answer: AtomicU64,
    /// Number of silences since the last answer.
    silences: AtomicU32,
    /// When the last silence was counted, in ms after `opened`.
    last_silence: AtomicU64,
    /// Longest delay of a RELEASE in ms that the server is known to allow; 0 if none is known.
    longest_delay: AtomicU64,
    intake: Arc<Intake>,
    turns: Semaphore,
    _driver: AbortOnDropHandle<()>,
}

/// A command, or several in one write. The answer to several is an array.
pub(crate) trait Command: Sync {
    fn send(&self, to: &mut MultiplexedConnection) -> impl Future<Output = RedisResult<Value>> + Send;

    fn commands(&self) -> impl Iterator<Item = &Cmd>;

    /// Returns true if the answer is that of one command, and no array of answers.
    fn is_one(&self) -> bool {
        false
    }
}

impl Command for Cmd {
    fn send(&self, to: &mut MultiplexedConnection) -> impl Future<Output = RedisResult<Value>> + Send {
        to.send_packed_command(self)
    }

    fn commands(&self) -> impl Iterator<Item = &Cmd> {
        std::iter::once(self)
    }

    fn is_one(&self) -> bool {
        true
    }
}

impl Command for Pipeline {
    async fn send(&self, to: &mut MultiplexedConnection) -> RedisResult<Value> {
        to.send_packed_commands(self, 0, self.len()).await.map(Value::Array)
    }

    fn commands(&self) -> impl Iterator<Item = &Cmd> {
        self.cmd_iter()
    }
}

/// A question about locks, with one about the role of the server in the same write. A replica may lack locks,
/// so its answer is the error that it returns to a write.
pub(crate) struct OfMaster<'a>(pub(crate) &'a Cmd);

impl Command for OfMaster<'_> {
    async fn send(&self, to: &mut MultiplexedConnection) -> RedisResult<Value> {
        let mut commands = redis::pipe();
        commands.cmd("INFO").arg("replication").add_command(self.0.clone());
        let answers = to.send_packed_commands(&commands, 0, commands.len()).await?;
        let mut answers = answers.into_iter();
        // If the user may not run INFO, the server passes for a master.
        let role = answers.next().and_then(|info| redis::from_redis_value::<String>(info).ok());
        let answer = answers.next().unwrap_or(Value::Nil);
        // An error, such as MOVED, says more about where to ask.
        match is_replica(&role.unwrap_or_default()) && !matches!(answer, Value::ServerError(_)) {
            true => ServerError::try_from(read_only()).map(Value::ServerError),
            false => Ok(answer),
        }
    }

    fn commands(&self) -> impl Iterator<Item = &Cmd> {
        std::iter::once(self.0)
    }

    fn is_one(&self) -> bool {
        true
    }
}

fn read_only() -> RedisError {
    redis::make_extension_error("READONLY".into(), Some("the server is a replica".into()))
}

/// A command, or several, for the node that receives a slot: each follows an ASKING, in the same write.
pub(crate) struct Asking<'a, C>(pub(crate) &'a C);

impl<C: Command> Command for Asking<'_, C> {
    async fn send(&self, to: &mut MultiplexedConnection) -> RedisResult<Value> {
        let mut commands = redis::pipe();
        for command in self.0.commands() {
            commands.cmd("ASKING").add_command(command.clone());
        }
        commands.send(to).await
    }

    fn commands(&self) -> impl Iterator<Item = &Cmd> {
        self.0.commands()
    }
}

impl<C: Command> Asking<'_, C> {
    /// Returns the answer as if nothing had been sent but the command, or the several ones.
    pub(crate) fn answer(&self, answer: Value) -> Option<Value> {
        let Value::Array(answers) = answer else { return None };
        let mut answers = answers.into_iter().skip(1).step_by(2);
        if self.0.is_one() { answers.next() } else { Some(Value::Array(answers.collect())) }
    }
}

impl Connection {
    /// Opens a connection, and subscribes to `channel`, the channel of the waits. Must be called on the
    /// client's own thread, because the task that drives the connection must run there. Cancelling `closed`
    /// closes the connection. If the caller stops waiting, `missing` says what the server has not done yet.
    pub(crate) async fn open(
        address: &Address,
        expected: Expected,
        library_name: &str,
        on_push: impl Fn(&PushInfo) + Send + Sync + 'static,
        channel: Option<&[u8]>,
        closed: CancellationToken,
        missing: &mut &'static str,
    ) -> Result<Connection, ConnectError> {
        let intake = Arc::<Intake>::default();
        // The closure for push messages owns `closed_guard`. When redis drops the closure, however the
        // connection ends, `closed` is cancelled.
        let (closed_guard, pushes) = (closed.clone().drop_guard(), intake.clone());
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(BATCH)
            .set_write_backpressure_boundary(BATCH_SIZE)
            .set_push_sender(move |push: PushInfo| {
                let _ = &closed_guard;
                pushes.pushed();
                on_push(&push);
                Ok::<(), redis::aio::SendError>(())
            });
        let settings = address.info.redis_settings().clone();
        let settings = settings.set_lib_name(library_name, env!("CARGO_PKG_VERSION"));
        let failed = |why: RedisError| match intake.fault() {
            Some(why) => ConnectError::error(why),
            None => intake
                .refusal()
                .and_then(refused_connection)
                .unwrap_or_else(|| connect_error(why, &address.info)),
        };
        let stream =
            Stream::open(address, intake.clone(), missing).await.map_err(|why| failed(why.into()))?;
        *missing = "connected, but no answer";
        let opened = MultiplexedConnection::new_with_config(&settings, stream, config).await;
        let (mut redis, driver) = opened.map_err(failed)?;
        let _driver = AbortOnDropHandle::new(tokio::spawn(driver));
        let answers = identify(&mut redis, channel).await.map_err(failed)?;
        let Identity { run_id, master, is_subscribed } = Identity::of(answers, address, expected)?;
        let (opened, silences) = (now(), AtomicU32::new(0));
        let [last_answer, last_silence, longest_delay] = [0; 3].map(AtomicU64::new);
        let shared = Shared {
            run_id,
            master,
            is_subscribed,
            closed,
            opened,
            last_answer,
            silences,
            last_silence,
            longest_delay,
            intake,
            turns: Semaphore::new(TURNS),
            _driver,
        };
        Ok(Connection { redis, shared: Arc::new(shared) })
    }

    /// Returns the server's run id, or the reason why it is unknown.
    pub(crate) fn try_run_id(&self) -> Result<&Arc<str>, &Fault> {
        self.shared.run_id.as_ref()
    }

    /// Returns the server's run id. `None` means that the server hides its run id. Clients of a quorum refuse
    /// such a server.
    pub(crate) fn run_id(&self) -> Option<Arc<str>> {
        self.try_run_id().ok().cloned()
    }

    /// If the server was a replica when the connection was opened, returns the address of its master.
    pub(crate) fn master(&self) -> Option<&str> {
        self.shared.master.as_deref()
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.shared.closed.is_cancelled()
    }

    /// Returns true if the connection is open, and the server was silent fewer than [`MAX_SILENCES`] times in
    /// a row.
    pub(crate) fn is_good(&self) -> bool {
        self.is_open() && self.shared.silences.load(Ordering::Relaxed) < MAX_SILENCES
    }

    /// Returns true if the connection is open, and the last answer came in time.
    pub(crate) fn answers(&self) -> bool {
        self.is_open() && self.shared.silences.load(Ordering::Relaxed) == 0
    }

    /// Returns why this client has closed the connection: the server sent too long a reply, or too many
    /// messages. `None` means that the server did neither.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        self.shared.intake.fault()
    }

    /// Returns true if the server publishes the end of waits over this connection.
    pub(crate) fn is_subscribed(&self) -> bool {
        self.shared.is_subscribed
    }

    /// Closes the connection for new requests. Requests under way may still be answered.
    pub(crate) fn close(&self) {
        self.shared.closed.cancel();
    }

    /// Returns how long ago the connection was opened.
    pub(crate) fn age(&self) -> Duration {
        now().saturating_since(self.shared.opened)
    }

    /// Cancelled when the connection closes.
    pub(crate) fn closed(&self) -> &CancellationToken {
        &self.shared.closed
    }

    /// Waits for the turn of a request, first come, first served. The turn ends when the returned value is
    /// dropped. Returns `None` if the connection closes meanwhile, or its server falls silent.
    pub(crate) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        let Shared { turns, closed, .. } = &*self.shared;
        if let Ok(turn) = turns.try_acquire() {
            return Some(turn);
        }
        tokio::select! {
            turn = turns.acquire() => turn.ok().filter(|_| self.is_good()),
            () = closed.cancelled() => None,
        }
    }

    /// Sends a command after the earlier ones. Returns `None` if the connection breaks before the answer.
    pub(crate) async fn ask(&self, command: &impl Command) -> Option<Value> {
        let answer = command.send(&mut self.redis.clone()).await;
        // The driver cancels `closed` only after this error, and the next caller must not find the connection
        // open.
        let is_broken = |why: &RedisError| why.is_unrecoverable_error();
        answer.as_ref().is_err_and(is_broken).then(|| self.shared.closed.cancel());
        let answer = answer.ok()?;
        self.shared.intake.answered();
        self.shared.last_answer.store(self.age().as_millis() as u64, Ordering::Relaxed);
        self.shared.silences.store(0, Ordering::Relaxed);
        Some(answer)
    }

    /// Records that the server allows a RELEASE with this delay.
    pub(crate) fn note_delay(&self, delay: Duration) {
        self.shared.longest_delay.fetch_max(delay.as_millis() as u64, Ordering::Relaxed);
    }

    /// Returns true if the server is known to allow a RELEASE with this delay.
    pub(crate) fn allows_delay(&self, delay: Duration) -> bool {
        delay.as_millis() <= self.shared.longest_delay.load(Ordering::Relaxed).into()
    }

    /// Returns when the last answer arrived, or when the connection was opened.
    pub(crate) fn last_answer(&self) -> Instant {
        self.shared.opened + Duration::from_millis(self.shared.last_answer.load(Ordering::Relaxed))
    }

    /// Records that the server has answered nothing for `limit`. Many requests notice one silence, so it
    /// counts once in this time.
    pub(crate) fn note_silence(&self, limit: Duration) {
        let Shared { silences, last_silence, .. } = &*self.shared;
        let (now, last) = (self.age().as_millis() as u64, last_silence.load(Ordering::Relaxed));
        let is_new =
            silences.load(Ordering::Relaxed) == 0 || u128::from(now - last.min(now)) >= limit.as_millis();
        let exchange = last_silence.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed);
        if is_new && exchange.is_ok() {
            silences.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_same(&self, other: &Connection) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

/// Reason why there is no connection.
#[derive(Debug, Clone)]
pub(crate) enum ConnectError {
    Failure(Failure),
    /// The address leads to the server of this other member.
    SameAs(Arc<str>),
}

impl ConnectError {
    pub(crate) fn down(why: impl Into<Arc<str>>) -> Self {
        ConnectError::Failure(Failure::Down(why.into()))
    }

    pub(crate) fn error(why: &str) -> Self {
        Self::fault(FaultKind::Other, why)
    }

    fn fault(kind: FaultKind, why: &str) -> Self {
        ConnectError::Failure(Failure::Error(kind.with(why)))
    }

    pub(crate) fn with_fault(fault: Fault) -> Self {
        ConnectError::Failure(Failure::Error(fault))
    }

    /// The error for a server that has answered that it is no master.
    pub(crate) fn replica(connection: &Connection) -> Self {
        Self::down(match connection.master() {
            Some(master) => format!("is a replica: write {master}, its master"),
            None => "its address leads to a replica".into(),
        })
    }

    /// Adds the address of the server to the text.
    pub(crate) fn of_server(self, server: &str) -> Self {
        match self {
            ConnectError::Failure(Failure::Down(why)) => Self::down(format!("{server} is down: {why}")),
            ConnectError::Failure(Failure::Error(why)) => {
                Self::fault(why.kind, &format!("{server} {}", why.text))
            }
            other => other,
        }
    }

    pub(crate) fn thread_ended() -> Self {
        Self::down("the thread of the client has ended")
    }
}

impl From<ConnectError> for Failure {
    fn from(connect_error: ConnectError) -> Failure {
        match connect_error {
            ConnectError::Failure(failure) => failure,
            ConnectError::SameAs(other) => {
                let text = format!("the same server as {other}: it would vote twice");
                Failure::Error(FaultKind::SameServer.with(text))
            }
        }
    }
}

impl From<ConnectError> for NodeState {
    fn from(connect_error: ConnectError) -> NodeState {
        Failure::from(connect_error).into()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("open", &self.is_open()).finish_non_exhaustive()
    }
}

/// Asks for the server's run id and whether it has the module, begins tracking, and subscribes to the channel
/// of the waits.
async fn identify(redis: &mut MultiplexedConnection, channel: Option<&[u8]>) -> RedisResult<Vec<Value>> {
    let mut questions = redis::pipe();
    questions.cmd("INFO").arg("server").arg("replication").cmd(table::TOKEN.name);
    // Tracking reports at once that a hold is gone. If the user may not run this command, the next renewal
    // notices the loss.
    questions.cmd("CLIENT").arg("TRACKING").arg("ON").arg("NOLOOP");
    if let Some(channel) = channel {
        // If the user may not run SUBSCRIBE, the waits receive no messages, and ask more often.
        questions.cmd("SUBSCRIBE").arg(channel);
    }
    redis.send_packed_commands(&questions, 0, questions.len()).await
}

/// What the server says about itself.
struct Identity {
    run_id: RunId,
    master: Option<String>,
    /// True if the server publishes the end of waits.
    is_subscribed: bool,
}

impl Identity {
    /// Reads the answers to [`identify`].
    fn of(answers: Vec<Value>, address: &Address, expected: Expected) -> Result<Identity, ConnectError> {
        let mut answers = answers.into_iter();
        let (Some(info), Some(token), _tracking) = (answers.next(), answers.next(), answers.next()) else {
            return Err(ConnectError::error("unexpected number of answers"));
        };
        let is_subscribed = matches!(answers.next(), Some(Value::Push { .. }));
        let info = match info {
            Value::ServerError(error) => Err(fault(&error)),
            info => Ok(redis::from_redis_value::<String>(info).unwrap_or_default()),
        };
        // Before the check for the module, because a sentinel has none.
        if let Some(why) = info.as_deref().ok().and_then(|info| unexpected(info, address, expected)) {
            return Err(why);
        }
        // A server without the module reports an unknown command before it checks permissions. So another
        // error, for example about the permission for DLOCK.TOKEN, comes from a server with the module.
        if let Value::ServerError(error) = token
            && Class::of(&text(&error)) == Class::NoModule
        {
            return Err(ConnectError::fault(FaultKind::NoModule, NO_MODULE));
        }
        let master = info.as_deref().ok().and_then(|info| master_of_replica(info, address));
        let run_id = info.and_then(|info| match field(&info, "run_id:") {
            Some(run_id) => Ok(run_id.into()),
            None => Err("INFO has no run_id".into()),
        });
        Ok(Identity { run_id, master, is_subscribed })
    }
}

/// Returns the value of a field of INFO. The name ends with the colon.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim_end)
}

pub(super) fn is_replica(info: &str) -> bool {
    field(info, "role:") == Some("slave")
}

/// If the server is a replica, returns the address of its master.
fn master_of_replica(info: &str, address: &Address) -> Option<String> {
    if !is_replica(info) {
        return None;
    }
    let port = field(info, "master_port:")?.parse().ok()?;
    Some(address.at(field(info, "master_host:")?, port).name.to_string())
}

/// Returns what the server is: `standalone`, `cluster` or `sentinel`. Valkey calls the field `server_mode`,
/// or `redis_mode` if it imitates Redis.
pub(super) fn mode(info: &str) -> Option<&str> {
    field(info, "redis_mode:").or_else(|| field(info, "server_mode:"))
}

/// Returns the error for a server with this answer to INFO, if the server is none that was expected at the
/// address.
fn unexpected(info: &str, address: &Address, expected: Expected) -> Option<ConnectError> {
    let mode = mode(info)?;
    let unsupported = |why: String| Some(ConnectError::fault(FaultKind::Unsupported, &why));
    let replica = || master_of_replica(info, address).filter(|_| expected == Expected::Master);
    match (mode, expected) {
        ("sentinel", _) => unsupported(format!(
            "is a sentinel: write {}?sentinelServiceName=NAME, with the name of the master in `sentinel monitor NAME ..`",
            address.as_kind("sentinel")
        )),
        ("cluster", Expected::Server | Expected::Master) => {
            unsupported(format!("is a node of a cluster: write {}", address.as_kind("cluster")))
        }
        ("standalone", Expected::ClusterNode) => {
            unsupported(format!("is no node of a cluster: write {}", address.name))
        }
        _ => replica()
            .map(|_| ConnectError::down("is a replica, and the sentinels still name it as the master")),
    }
}

/// Returns the reason for which a server that sends this error reply closes a new connection. `None` for
/// other errors.
fn refused_connection(reply: &str) -> Option<ConnectError> {
    match reply.split_once(' ')? {
        ("DENIED", _) => Some(ConnectError::error(PROTECTED)),
        // The server may accept the next connection.
        ("ERR", "max number of clients reached") => Some(ConnectError::down(MANY_CLIENTS)),
        _ => None,
    }
}

/// Returns the reason why a connection could not be opened. The text of the error is left out if it repeats
/// the password, which was sent to the server.
fn connect_error(error: RedisError, server: &redis::ConnectionInfo) -> ConnectError {
    let password = server.redis_settings().password();
    let mut text = without_arguments(&error.to_string());
    if password.is_some_and(|password| !password.is_empty() && text.contains(password)) {
        text = "an error that repeats the password (not shown)".to_string();
    }
    match error.kind() {
        // An error of rustls arrives here as text only, with one of these words.
        ErrorKind::Io
            if ["certificate", "fatal alert", "corrupt message"].iter().any(|word| text.contains(word)) =>
        {
            ConnectError::down(format!("the TLS handshake failed: {text}"))
        }
        ErrorKind::Io => ConnectError::down(text),
        // The server's text explains HELLO, which is not a command that users send.
        _ if error.code() == Some("NOAUTH") => {
            let is_socket = matches!(server.addr(), redis::ConnectionAddr::Unix(_));
            ConnectError::fault(FaultKind::Login, if is_socket { NO_PASSWORD_ON_SOCKET } else { NO_PASSWORD })
        }
        _ if error.code() == Some("WRONGPASS") => ConnectError::fault(FaultKind::Login, WRONG_PASSWORD),
        _ if text.contains("DB index is out of range") => ConnectError::error(NO_DATABASE),
        ErrorKind::Parse => ConnectError::error(ANOTHER_PROTOCOL),
        _ => ConnectError::error(&text),
    }
}

const NO_PASSWORD: &str = "NOAUTH: the server requires a password; put it into the address: \
                           redis://:password@host, or redis://user:password@host for a user of its ACL";

const NO_PASSWORD_ON_SOCKET: &str = "NOAUTH: the server requires a password; put it into the address: \
                                     unix:///path?pass=password, or unix:///path?user=name&pass=password for a \
                                     user of its ACL";

const PROTECTED: &str = "DENIED: the server is in protected mode, in which it accepts connections only from its \
                         own machine: give its default user a password, or set `protected-mode no`";

const MANY_CLIENTS: &str = "max number of clients reached: raise `maxclients` on the server";

const WRONG_PASSWORD: &str = "WRONGPASS: the server does not know this user and password, or the user is off; \
                              check them in the address";

const NO_DATABASE: &str = "DB index is out of range: the server has no database of this number; use a lower one \
                           in the address, or raise `databases` in the server's configuration";

const NO_MODULE: &str = "does not have dlock: load the module (libdlock.so)";

const ANOTHER_PROTOCOL: &str = "does not speak the protocol of Redis: check host and port in the address";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_for_a_sentinel_says_that_it_is_one() {
        for field in ["redis_mode", "server_mode"] {
            let info = format!("# Server\r\nredis_version:7.0.15\r\n{field}:sentinel\r\nrun_id:abc\r\n");
            let unknown = redis::parse_redis_value(b"-ERR unknown command 'DLOCK.TOKEN'\r\n").expect("RESP");
            let answers = vec![Value::BulkString(info.into()), unknown, Value::Okay];
            let address = Address::parse(1, "redis://host:7000/2", &Default::default()).expect("an address");
            let Err(why) = Identity::of(answers, &address, Expected::Server) else {
                panic!("a sentinel is accepted")
            };
            let NodeState::Failed(why) = why.into() else { panic!("no fault") };
            assert_eq!(why.kind, FaultKind::Unsupported);
            assert!(why.text.contains("redis-sentinel://host:7000?sentinelServiceName=NAME"), "{}", why.text);
        }
    }
}
