//! The compared ways to acquire and release a lock, as the commands on the wire.

use std::io::Result;
use std::ops::Range;

use dlock_testkit::Value;

use crate::resp::{Command, Conn, Expect, KEY};

/// The two commands of a [`Way`]. [`Way::prepare`] loads their scripts.
pub struct Pair {
    pub acquire: Command,
    pub release: Command,
    /// The expected replies.
    pub acquired: Expect,
    pub released: Expect,
}

/// Commands that [`Pair::run_on`] sends in one write.
pub const BATCH: u64 = 32;

impl Pair {
    /// Acquires and releases the locks of these numbers on one connection, one batch after the other.
    pub fn run_on(&self, conn: &mut Conn, numbers: Range<u64>) -> Result<()> {
        let mut batch = Vec::new();
        for first in numbers.clone().step_by(BATCH as usize) {
            let numbers = first..numbers.end.min(first + BATCH);
            for (command, expected) in [(&self.acquire, self.acquired), (&self.release, self.released)] {
                batch.clear();
                numbers.clone().for_each(|number| command.push(&mut batch, number));
                conn.send(&batch)?;
                for _ in numbers.clone() {
                    expected.check(conn.line()?)?;
                }
            }
        }
        Ok(())
    }
}

/// A way to acquire and release a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Dlock,
    /// Releases the lock without checking its owner: fast, but unsafe.
    SetDel,
    /// The lock of most client libraries.
    SetScript,
    /// Redisson's scripts: a hash with a count for each owner, and a message on release.
    Redisson,
    /// A pair of scripts that issues fences.
    Fenced,
    /// The server's own compare-and-delete.
    SetDelIfEq,
    /// No lock at all: the cost of the wire and the event loop.
    Ping,
}

pub const ALL: [Way; 7] =
    [Way::SetDel, Way::Dlock, Way::SetScript, Way::Redisson, Way::Fenced, Way::SetDelIfEq, Way::Ping];

/// A token like those of DLOCK.TOKEN.
pub const TOKEN: &str = "kJ3xTq9Zb2VdR7wLm0sNfYhUaE4";
pub const TTL_MS: &str = "30000";
/// A message of a call as the clients write it: an id, and a secret.
pub const MESSAGE: &str = "kJ3xTq9Zb2V.1 dR7wLm0sNfY";

/// The channel on which Redisson's unlock announces that the lock is free.
pub fn channel() -> String {
    format!("redisson_lock__channel:{{{KEY}}}")
}

const COMPARE_AND_DELETE: &str = "\
if redis.call('get', KEYS[1]) == ARGV[1] then
  return redis.call('del', KEYS[1])
end
return 0";

/// Redisson's lock: returns nil when it is acquired, else the holder's remaining ttl. KEYS: lock. ARGV: ttl,
/// owner.
const COUNTED_LOCK: &str = "\
if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
  redis.call('hincrby', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return nil
end
return redis.call('pttl', KEYS[1])";

/// Redisson's unlock. KEYS: lock, channel. ARGV: message, ttl, owner.
const COUNTED_UNLOCK: &str = "\
if redis.call('hexists', KEYS[1], ARGV[3]) == 0 then
  return nil
end
if redis.call('hincrby', KEYS[1], ARGV[3], -1) > 0 then
  redis.call('pexpire', KEYS[1], ARGV[2])
  return 0
end
redis.call('del', KEYS[1])
redis.call('publish', KEYS[2], ARGV[1])
return 1";

/// KEYS: lock, fence counter. ARGV: token, ttl.
const FENCED_LOCK: &str = "\
if redis.call('set', KEYS[1], ARGV[1], 'nx', 'px', ARGV[2]) then
  return redis.call('incr', KEYS[2])
end
return nil";

impl Way {
    pub fn name(self) -> &'static str {
        match self {
            Way::Dlock => "dlock",
            Way::SetDel => "SET NX PX + DEL",
            Way::SetScript => "SET NX PX + compare-and-delete script",
            Way::Redisson => "Redisson's two scripts",
            Way::Fenced => "script with INCR fence + compare-and-delete script",
            Way::SetDelIfEq => "SET NX PX + DELIFEQ",
            Way::Ping => "PING twice",
        }
    }

    pub fn needs_module(self) -> bool {
        self == Way::Dlock
    }

    /// Returns the commands of the owner with this token. `None` if the server lacks one of them.
    pub fn prepare(self, conn: &mut Conn, token: &str) -> Result<Option<Pair>> {
        let set = Command::new(&["SET", KEY, token, "NX", "PX", TTL_MS]);
        let (ok, one) = (Expect::Line("+OK"), Expect::Line(":1"));
        let mut script = |source, args: &[&str]| -> Result<Command> {
            let sha = conn.call(&["SCRIPT", "LOAD", source])?.text();
            let mut words = vec!["EVALSHA", &sha];
            words.extend(args);
            Ok(Command::new(&words))
        };
        let (acquire, acquired, release, released) = match self {
            Way::Dlock => {
                let acquire = Command::new(&["DLOCK.ACQUIRE", KEY, token, TTL_MS]);
                (acquire, Expect::Number, Command::new(&["DLOCK.RELEASE", KEY, token]), one)
            }
            Way::SetDel => (set, ok, Command::new(&["DEL", KEY]), one),
            Way::SetScript => (set, ok, script(COMPARE_AND_DELETE, &["1", KEY, token])?, one),
            Way::Redisson => {
                let lock = script(COUNTED_LOCK, &["1", KEY, TTL_MS, token])?;
                let unlock = script(COUNTED_UNLOCK, &["2", KEY, &channel(), "0", TTL_MS, token])?;
                (lock, Expect::Line("$-1"), unlock, one)
            }
            Way::Fenced => {
                let lock = script(FENCED_LOCK, &["2", KEY, "fence", token, TTL_MS])?;
                (lock, Expect::Number, script(COMPARE_AND_DELETE, &["1", KEY, token])?, one)
            }
            Way::SetDelIfEq => {
                if conn.call(&["COMMAND", "INFO", "DELIFEQ"])? == [Value::Nil] {
                    return Ok(None);
                }
                (set, ok, Command::new(&["DELIFEQ", KEY, token]), one)
            }
            Way::Ping => {
                let ping = Command::new(&["PING"]);
                (ping.clone(), Expect::Line("+PONG"), ping, Expect::Line("+PONG"))
            }
        };
        Ok(Some(Pair { acquire, release, acquired, released }))
    }
}
