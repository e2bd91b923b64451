//! One connection: which server it leads to, and whether it is alive.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dlock_protocol::command::table;
use dlock_protocol::error::Class;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, Value};
use tokio_util::sync::CancellationToken;

use super::ConnectError;
use super::reply::{text, without_arguments};
use crate::watch::Watched;

/// After this many late answers in a row a connection is suspect: a new one may reach the master where this
/// one hangs.
const MAX_SILENCES: u32 = 2;

/// A connection. Clones are the same connection, which closes with the last of them.
#[derive(Clone)]
pub(crate) struct Connection {
    redis: MultiplexedConnection,
    life: Arc<Life>,
}

struct Life {
    /// The server's run id, or why it is not known.
    server: Result<Arc<str>, Arc<str>>,
    closed: CancellationToken,
    silences: AtomicU32,
}

impl Connection {
    pub(super) async fn open(
        redis: &redis::Client,
        watched: Arc<Watched>,
    ) -> Result<Connection, ConnectError> {
        let closed = CancellationToken::new();
        // Dropped with the receiver of push messages, however the connection ends.
        let end = closed.clone().drop_guard();
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_push_sender(move |push: redis::PushInfo| {
                let _ = &end;
                watched.pushed(&push);
                Ok::<(), redis::aio::SendError>(())
            });
        let opened = redis.get_multiplexed_async_connection_with_config(&config).await;
        drop(config);
        let password = redis.get_connection_info().redis_settings().password();
        let mut redis = opened.map_err(|why| connect_error(why, password))?;
        let server = identify(&mut redis, password).await?;
        Ok(Connection { redis, life: Arc::new(Life { server, closed, silences: AtomicU32::new(0) }) })
    }

    /// The server's run id, or why it is not known.
    pub(super) fn server(&self) -> Result<&Arc<str>, &Arc<str>> {
        self.life.server.as_ref()
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.life.closed.is_cancelled()
    }

    /// Open, and not silent lately.
    pub(crate) fn is_good(&self) -> bool {
        self.is_open() && self.life.silences.load(Ordering::Relaxed) < MAX_SILENCES
    }

    /// Open, and the last answer came in time.
    pub(crate) fn answers(&self) -> bool {
        self.is_open() && self.life.silences.load(Ordering::Relaxed) == 0
    }

    /// Cancelled when the connection closes.
    pub(crate) fn closed(&self) -> &CancellationToken {
        &self.life.closed
    }

    /// Sends a command after those that were sent before. `None` if the connection breaks before the answer.
    pub(crate) async fn ask(&self, command: &Cmd) -> Option<Value> {
        let answer = self.redis.clone().send_packed_command(command).await.ok()?;
        self.life.silences.store(0, Ordering::Relaxed);
        Some(answer)
    }

    /// Records that an answer did not come in time.
    pub(crate) fn was_silent(&self) {
        self.life.silences.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn is(&self, other: &Connection) -> bool {
        Arc::ptr_eq(&self.life, &other.life)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("open", &self.is_open()).finish_non_exhaustive()
    }
}

/// Asks for the server's run id, whether it has the module, and to be told of changes by others.
async fn identify(
    redis: &mut MultiplexedConnection,
    password: Option<&str>,
) -> Result<Result<Arc<str>, Arc<str>>, ConnectError> {
    let mut questions = redis::pipe();
    questions.cmd("INFO").arg("server").cmd(table::TOKEN.name);
    // A user may lack the permission: then the renewals notice a hold that is gone.
    questions.cmd("CLIENT").arg("TRACKING").arg("ON").arg("NOLOOP");
    let answers = redis.send_packed_commands(&questions, 0, 3).await;
    let answers = answers.map_err(|why| connect_error(why, password))?;
    let [info, token, _tracking] =
        <[Value; 3]>::try_from(answers).map_err(|_| ConnectError::error("unexpected number of answers"))?;
    // A user may lack the permission for DLOCK.TOKEN, but the server reports an unknown command first.
    if let Value::ServerError(error) = token
        && Class::of(&text(&error)) == Class::NoModule
    {
        return Err(ConnectError::error("does not have dlock: load the module (libdlock.so)"));
    }
    let info = match info {
        Value::ServerError(error) => return Ok(Err(text(&error).into())),
        info => redis::from_redis_value::<String>(info).unwrap_or_default(),
    };
    let run_id = info.lines().find_map(|line| line.strip_prefix("run_id:"));
    Ok(run_id.map(|id| id.trim().into()).ok_or_else(|| "INFO has no run_id".into()))
}

/// Why a connection could not be opened. The other end was sent the password, and may send it back.
fn connect_error(error: RedisError, password: Option<&str>) -> ConnectError {
    let mut text = without_arguments(&error.to_string());
    if password.is_some_and(|password| !password.is_empty() && text.contains(password)) {
        text = "an error that repeats the password (not shown)".to_string();
    }
    match error.kind() {
        // In the words of rustls, as all that is left of its error is its text.
        ErrorKind::Io
            if ["certificate", "fatal alert", "corrupt message"].iter().any(|word| text.contains(word)) =>
        {
            ConnectError::down(format!("the TLS handshake failed: {text}"))
        }
        ErrorKind::Io => ConnectError::down(text),
        _ if error.code() == Some("NOAUTH") => ConnectError::error(format!("{text}; {NAME_THE_USER}")),
        _ => ConnectError::error(text),
    }
}

const NAME_THE_USER: &str = "put the user into the address: redis://user:password@host";
