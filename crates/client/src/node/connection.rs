//! One connection: who is at its other end, whether it lives.

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

/// So many answers in a row that did not come in time make a connection suspect: a new one may reach the master where
/// this one hangs.
const SILENCES: u32 = 2;

/// A connection; cloned, it is the same one. It closes with its last clone.
#[derive(Clone)]
pub(crate) struct Connection {
    redis: MultiplexedConnection,
    life: Arc<Life>,
}

struct Life {
    /// Who is at the other end; an error tells why that is not known.
    server: Result<Arc<str>, Arc<str>>,
    closed: CancellationToken,
    silences: AtomicU32,
}

impl Connection {
    pub(super) async fn open(redis: &redis::Client) -> Result<Connection, ConnectError> {
        let closed = CancellationToken::new();
        // Goes with whoever would have taken the server's news: when the connection ends, however it ends.
        let end = closed.clone().drop_guard();
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_push_sender(move |_news| {
                let _ = &end;
                Ok::<(), redis::aio::SendError>(())
            });
        let opened = redis.get_multiplexed_async_connection_with_config(&config).await;
        drop(config);
        let password = redis.get_connection_info().redis_settings().password();
        let mut redis = opened.map_err(|why| connect_error(why, password))?;
        let server = identify(&mut redis, password).await?;
        Ok(Connection { redis, life: Arc::new(Life { server, closed, silences: AtomicU32::new(0) }) })
    }

    /// Who is at the other end: the server's run id, or why it does not tell.
    pub(super) fn server(&self) -> Result<&Arc<str>, &Arc<str>> {
        self.life.server.as_ref()
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.life.closed.is_cancelled()
    }

    /// Open, and not silent of late.
    pub(crate) fn is_good(&self) -> bool {
        self.is_open() && self.life.silences.load(Ordering::Relaxed) < SILENCES
    }

    /// Cancelled when it is closed.
    pub(crate) fn end(&self) -> &CancellationToken {
        &self.life.closed
    }

    /// Sends a command behind those that were sent before. None where the connection broke before the answer.
    pub(crate) async fn ask(&self, command: &Cmd) -> Option<Value> {
        let answer = self.redis.clone().send_packed_command(command).await.ok()?;
        self.life.silences.store(0, Ordering::Relaxed);
        Some(answer)
    }

    /// Takes note that an answer did not come in time.
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

/// Asks who the server is, and whether it has the module.
async fn identify(
    redis: &mut MultiplexedConnection,
    password: Option<&str>,
) -> Result<Result<Arc<str>, Arc<str>>, ConnectError> {
    let mut questions = redis::pipe();
    questions.cmd("INFO").arg("server").cmd(table::TOKEN.name);
    let answers = redis.send_packed_commands(&questions, 0, 2).await;
    let answers = answers.map_err(|why| connect_error(why, password))?;
    let [info, token] =
        <[Value; 2]>::try_from(answers).map_err(|_| ConnectError::error("no answers to two questions"))?;
    // A user may be barred from DLOCK.TOKEN; a command that does not exist is named before that.
    if let Value::ServerError(error) = token
        && Class::of(&text(&error)) == Class::NoModule
    {
        return Err(ConnectError::error("has no dlock: load the module (libdlock.so) into it"));
    }
    let info = match info {
        Value::ServerError(error) => return Ok(Err(text(&error).into())),
        info => redis::from_redis_value::<String>(info).unwrap_or_default(),
    };
    let run_id = info.lines().find_map(|line| line.strip_prefix("run_id:"));
    Ok(run_id.map(|id| id.trim().into()).ok_or_else(|| "INFO names no run_id".into()))
}

/// What a connection that was not opened says about the master. Whoever is at its other end was sent the
/// password, and may send it back.
fn connect_error(error: RedisError, password: Option<&str>) -> ConnectError {
    let mut text = without_arguments(&error.to_string());
    if password.is_some_and(|password| !password.is_empty() && text.contains(password)) {
        text = "an error that repeats the password".to_string();
    }
    match error.kind() {
        ErrorKind::Io => ConnectError::down(text),
        _ if error.code() == Some("NOAUTH") => ConnectError::error(format!("{text}; {NAME_THE_USER}")),
        _ => ConnectError::error(text),
    }
}

const NAME_THE_USER: &str = "name the user in the address: redis://user:password@host";
