//! The errors of the module, and how a client reads them.
//!
//! The Display text of an error is the whole reply: the error word, the cause, the remedy. [`Class::of`]
//! reads it. The error words are stable. TRYAGAIN and CLUSTERDOWN make the client libraries for Redis Cluster
//! retry a command by themselves. The other words make no Redis client library retry.

use std::borrow::Cow;
use std::fmt;

use crate::bytes::cut;
use crate::event::Notify;
use crate::names::{Label, OwnerId, Token};
use crate::request::MAX_PATTERN;
use crate::units::Ttl;

const GRACE: &str = "GRACE";
const QUEUE_FULL: &str = "QUEUEFULL";
const DEADLOCK: &str = "DEADLOCK";
const FENCE_AHEAD: &str = "FENCEAHEAD";
const NOT_HELD: &str = "NOTHELD";
const STALE_FENCE: &str = "STALEFENCE";

/// An error reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    Misuse(Misuse),
    Refused(Refusal),
    /// The server may have lost holds. It grants no new locks for this many ms.
    Grace(u64),
    /// The wait queue is full. The fields are the limits: of BLOCK waiters on the whole server, of waiters of
    /// both kinds on one key, and of QUEUE waiters on the whole server.
    QueueFull {
        on_the_server: usize,
        on_a_key: usize,
        queued: usize,
    },
    /// Waiting would close this cycle of tokens that wait for each other. A token with an owner is shown as
    /// its owner.
    Deadlock(Vec<Token>),
    /// CONFIRM: the fence is too far ahead of the server's clock, by `ms` more than the allowed `bound`.
    FenceAhead {
        ms: u64,
        bound: u64,
    },
    /// GUARD: the token does not hold the key.
    NotHeld,
    /// FENCED: the gate (the key that stores the greatest fence so far) has this fence, which is greater than
    /// that of the command.
    StaleFence(u64),
    /// FENCED: the value of the gate is no number.
    NotAGate,
    /// A guard (GUARD or FENCED) within a guard.
    Nested,
    /// The command cannot be guarded: it is no command on data.
    CannotGuard,
    /// A guarded SORT by a user without all rights, on a server that does not check the keys that SORT reads.
    NeedsAllRights,
    /// The key holds another type.
    WrongType,
    /// EPHEMERAL in a script, a guard or another module, which have no connection.
    NoConnection,
    /// The user may not publish to the channel of NOTIFY or SNOTIFY.
    NoChannel,
    /// The channel of SNOTIFY is not in the cluster slot of the key.
    OtherSlot,
    /// SNOTIFY outside a cluster.
    NoCluster,
    /// BLOCK, QUEUE or EPHEMERAL on a replica: only its master can end waits and holds.
    Replica,
    /// Ends a wait when the key's slot moves. Cluster clients retry the command by themselves, at the right
    /// node.
    Moving,
    /// Ends a wait when the cluster is down.
    ClusterDown,
    /// Ends a wait when this server becomes a replica. Most servers end the waits of connections
    /// themselves, with the same error word.
    Demoted,
    /// BLOCK on a connection that is subscribed to channels.
    CannotWait,
    /// A client sent `DLOCK._SET`, the command in which a master sends effects to its replicas.
    EffectFromClient,
    /// DLOCK.TOKEN: the operating system returned this error instead of random bytes.
    NoRandomness(String),
}

/// Why the arguments of a command are refused, before any key is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misuse {
    Arguments,
    TokenLength,
    LabelLength,
    OwnerLength,
    PatternLength,
    NotifyLength,
    /// NOTIFY or SNOTIFY without QUEUE.
    NotifyAlone,
    /// The name of the argument, its least and its greatest value.
    Range(&'static str, u64, u64),
    Ttl(Ttl),
    Twice(&'static str),
    /// Two options that exclude each other.
    Exclusive(&'static str, &'static str),
    NoValue(&'static str),
    Unknown(String),
}

/// Why a request is refused, even if the client would wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// A permit holder asked for another mode, or a holder of another mode for a permit.
    OtherMode,
    /// The hold count has reached its maximum.
    CountFull,
    /// No fence below 2^53 is left.
    FencesUsedUp,
    /// The longest lease was lowered to this ttl while the client waited.
    LeaseTooLong(Ttl),
    /// SHARED by an exclusive holder with this hold count. It may share the lock only with a count of 1.
    CountAboveOne(u32),
    /// The key has this maximum number of holders.
    TooManyHolders(u32),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Misuse(misuse) => misuse.fmt(f),
            Error::Refused(refusal) => refusal.fmt(f),
            // Clients parse the number right after the word.
            Error::Grace(ms_left) => write!(
                f,
                "{GRACE} {ms_left} ms left: this server may have lost holds, so it grants no new ones until those have \
                 expired; retry after that, or end it by CONFIG SET dlock.restart-grace 0 if you know that no client \
                 holds a lock"
            ),
            Error::QueueFull { on_the_server, on_a_key, queued } => write!(
                f,
                "{QUEUE_FULL} too many clients wait: this server allows {on_the_server} with BLOCK \
                 (dlock.max-waiters), {queued} with QUEUE (dlock.max-queued), and {on_a_key} on one key \
                 (dlock.max-waiters-per-key)"
            ),
            Error::Deadlock(cycle) => write!(f, "{DEADLOCK} {}", shown(cycle)),
            Error::FenceAhead { ms, bound } => write!(
                f,
                "{FENCE_AHEAD} the fence lies {ms} ms beyond the {bound} ms by which it may be ahead of this server's \
                 clock: check the clock of the server that issued it"
            ),
            Error::NotHeld => write!(
                f,
                "{NOT_HELD} the token does not hold the lock, so the command was not run: acquire the lock again and \
                 begin anew"
            ),
            // Clients parse the number right after the word.
            Error::StaleFence(greatest) => write!(
                f,
                "{STALE_FENCE} {greatest} is the greatest fence that the gate has seen, so the command was not run: \
                 another client has acquired the lock since, acquire it again and begin anew"
            ),
            Error::NotAGate => f.write_str(
                "ERR the gate holds no number, so the command was not run: a gate is a string key that DLOCK.FENCED makes \
                 itself, use another key",
            ),
            Error::Nested => f.write_str(
                "ERR no guard within a guard: run the command by one DLOCK.GUARD or DLOCK.FENCED",
            ),
            Error::CannotGuard => f.write_str(
                "ERR this command cannot be guarded: a guard is for commands on data, and runs no scripts; \
                 send the command without a guard, and guard the writes of a script inside the script",
            ),
            Error::NeedsAllRights => f.write_str(
                "ERR this server does not check what a guarded SORT reads against the user's rights, so it takes a \
                 user with all rights (~* &* +@all): send it by itself, or use Redis 7.2 or later, or Valkey",
            ),
            Error::WrongType => f.write_str("WRONGTYPE Operation against a key holding the wrong kind of value"),
            Error::NoConnection => f.write_str(
                "ERR EPHEMERAL cannot be used in a script, a guard or another module, which have no connection of their \
                 own to end with: send the command itself, or in MULTI",
            ),
            Error::NoChannel => f.write_str("NOPERM No permissions to access a channel"),
            Error::OtherSlot => f.write_str(
                "CROSSSLOT the channel of SNOTIFY is not in the slot of the key: give both the same {tag}, or \
                 use NOTIFY with a plain channel",
            ),
            Error::NoCluster => {
                f.write_str("ERR SNOTIFY requires a cluster: use NOTIFY with a plain channel here")
            }
            Error::Replica => f.write_str(
                "ERR this server is a replica, which ends no wait and no hold by itself: send BLOCK, QUEUE \
                 and EPHEMERAL to its master",
            ),
            Error::Moving => {
                f.write_str("TRYAGAIN the key's slot is moving between nodes: retry at its new node")
            }
            Error::ClusterDown => f.write_str("CLUSTERDOWN The cluster is down: ask again when it is up"),
            Error::Demoted => f.write_str(
                "UNBLOCKED this server has become a replica, where no wait ends in a grant: ask its master",
            ),
            Error::CannotWait => f.write_str(
                "ERR this server lets no client wait for a module's lock while it is subscribed to channels: \
                 unsubscribe first, or wait on another connection",
            ),
            Error::EffectFromClient => f.write_str(
                "ERR this command is how a master tells replicas and the append only file what happened; clients use \
                 DLOCK.ACQUIRE and its kin, see DLOCK.HELP",
            ),
            Error::NoRandomness(why) => write!(f, "ERR the operating system gives no randomness: {why}"),
        }
    }
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misuse::Arguments => {
                write!(f, "ERR syntax error: wrong number of arguments, DLOCK.HELP lists every form")
            }
            Misuse::TokenLength => {
                write!(f, "ERR a token has 1 to {} bytes, DLOCK.TOKEN makes one", Token::MAX_LEN)
            }
            Misuse::LabelLength => write!(f, "ERR a label has at most {} bytes", Label::MAX_LEN),
            Misuse::OwnerLength => write!(f, "ERR an owner has 1 to {} bytes", OwnerId::MAX_LEN),
            Misuse::PatternLength => {
                write!(f, "ERR a MATCH pattern has at most {} bytes", MAX_PATTERN)
            }
            Misuse::NotifyLength => {
                write!(
                    f,
                    "ERR NOTIFY and SNOTIFY take a channel and a message of 1 to {} bytes each",
                    Notify::MAX_LEN
                )
            }
            Misuse::NotifyAlone => f.write_str("ERR syntax error: NOTIFY and SNOTIFY require QUEUE ms"),
            Misuse::Range(what, least, greatest) => {
                write!(f, "ERR {what} must be a whole number from {least} to {greatest}")
            }
            Misuse::Ttl(max) => write!(
                f,
                "ERR ttl must be a whole number of milliseconds from 1 to {} (dlock.max-ttl, or a shorter \
                 dlock.restart-grace)",
                max.millis()
            ),
            Misuse::Twice(what) => write!(f, "ERR syntax error: {what} may be given only once"),
            Misuse::Exclusive(one, other) => {
                write!(f, "ERR syntax error: {one} and {other} exclude each other: give one of them, once")
            }
            Misuse::NoValue(what) => write!(f, "ERR syntax error: {what} requires a value"),
            Misuse::Unknown(what) => {
                write!(f, "ERR syntax error: unknown option '{what}', DLOCK.HELP lists every form")
            }
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::OtherMode => {
                f.write_str("ERR the token holds the lock in a mode that cannot be changed: release it first")
            }
            Refusal::CountFull => {
                f.write_str("ERR the hold count has reached its maximum: release some first")
            }
            Refusal::FencesUsedUp => f.write_str("ERR no fence is left below 2^53 on this server"),
            Refusal::CountAboveOne(count) => write!(
                f,
                "ERR the token holds the lock exclusively with a count of {count}, and SHARED makes a hold \
                 shared only if its count is 1: release it until its count is 1, or add REENTRANT or DEPTH \
                 to leave it exclusive"
            ),
            Refusal::TooManyHolders(most) => write!(
                f,
                "ERR one key may have {most} holders (dlock.max-holders-per-key): retry when some have released"
            ),
            Refusal::LeaseTooLong(longest) => write!(
                f,
                "ERR the longest lease and lock-delay were lowered to {} ms while this waited (dlock.max-ttl, or a \
                 shorter dlock.restart-grace): ask again for a shorter one",
                longest.millis()
            ),
        }
    }
}

impl std::error::Error for Error {}

impl std::error::Error for Misuse {}

impl From<Misuse> for Error {
    fn from(misuse: Misuse) -> Error {
        Error::Misuse(misuse)
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        Error::Refused(refusal)
    }
}

/// The text of the whole reply.
impl From<Error> for String {
    fn from(error: Error) -> String {
        error.to_string()
    }
}

impl From<Misuse> for String {
    fn from(misuse: Misuse) -> String {
        misuse.to_string()
    }
}

/// The part of a token that is shown to users without the right to write its key: its first 8 bytes, with
/// three dots if more follow. A whole token would prove ownership.
pub fn shortened(token: &[u8]) -> Cow<'_, [u8]> {
    cut(token, 8)
}

/// Returns whether this cycle, the details of DEADLOCK, is that of an owner that waits for itself. The text
/// has only the beginning of a long name.
pub fn is_own_cycle(cycle: &str, owner: &[u8]) -> bool {
    let name = shortened(owner).escape_ascii().to_string();
    cycle.split_once(" -> ") == Some((&name, &name))
}

/// Writes a cycle for people. Of a long cycle it shows the first and the last four tokens.
fn shown(cycle: &[Token]) -> String {
    const END: usize = 4;
    let escaped = |token: &Token| shortened(token.as_bytes()).escape_ascii().to_string();
    let mut tokens: Vec<String> = cycle.iter().map(escaped).collect();
    if let between @ 1.. = tokens.len().saturating_sub(2 * END) {
        tokens.splice(END..END + between, [format!("({between} more)")]);
    }
    tokens.join(" -> ")
}

/// The meaning of an error reply for a client. The command had no effect, with one exception: a wait that
/// ended with UNBLOCKED, because the server became a replica, may have been granted just before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class<'a> {
    /// The server is in its grace period, and grants no new locks for this many ms.
    Grace(u64),
    QueueFull,
    /// The cycle, as the server describes it.
    Deadlock(&'a str),
    FenceAhead,
    /// GUARD: the token does not hold the key.
    NotHeld,
    /// FENCED: the greatest fence that the gate has seen.
    StaleFence(u64),
    /// The request is invalid, now and later.
    Misuse,
    /// The module is not loaded.
    NoModule,
    /// The key holds a value of another type.
    WrongType,
    /// The ACL of the user forbids the command.
    Forbidden(Denied),
    /// The connection has no user, or the server does not know this user and password.
    Login,
    /// The server cannot carry out the request now, and may carry it out later: it loads its data, runs a
    /// script, has no memory left, has too few replicas, cannot write to its disk, or its cluster is down.
    NotNow,
    /// The server is no master any more: connect anew through its address, which may lead to the new master.
    NoMaster,
    /// Any other error, caused by the server's state.
    Other,
}

impl<'a> Class<'a> {
    /// Classifies the text of an error reply, which begins with the error word, without the `-` of the wire.
    pub fn of(reply: &'a str) -> Class<'a> {
        let (word, details) = reply.split_once(' ').unwrap_or((reply, ""));
        match word {
            // Older modules send no text after the number.
            GRACE => first_number(details).map_or(Class::Other, Class::Grace),
            STALE_FENCE => first_number(details).map_or(Class::Other, Class::StaleFence),
            NOT_HELD => Class::NotHeld,
            QUEUE_FULL => Class::QueueFull,
            DEADLOCK => Class::Deadlock(details),
            FENCE_AHEAD => Class::FenceAhead,
            "ERR" if details.starts_with("unknown command") => Class::NoModule,
            "BUSY" | "LOADING" | "OOM" | "MISCONF" | "NOREPLICAS" | "CLUSTERDOWN" | "TRYAGAIN" => {
                Class::NotNow
            }
            "READONLY" | "UNBLOCKED" | "MASTERDOWN" => Class::NoMaster,
            "ERR" => Class::Misuse,
            "WRONGTYPE" => Class::WrongType,
            "NOPERM" => Class::Forbidden(Denied::of(details)),
            "NOAUTH" | "WRONGPASS" => Class::Login,
            _ => Class::Other,
        }
    }
}

/// What the ACL of a user forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Denied {
    Command,
    Key,
    Channel,
}

impl Denied {
    /// Compares whole texts, because the text about a command contains the name of the user, which may be any
    /// word. The first text of each pair is that of Redis 7.0, the second that of later servers.
    fn of(details: &str) -> Denied {
        match details {
            "this user has no permissions to access one of the keys used as arguments"
            | "No permissions to access a key" => Denied::Key,
            "this user has no permissions to access one of the channels used as arguments"
            | "No permissions to access a channel" => Denied::Channel,
            _ => Denied::Command,
        }
    }
}

fn first_number(details: &str) -> Option<u64> {
    details.split(' ').next()?.parse().ok()
}
