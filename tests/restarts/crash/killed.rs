//! kill -9 at random moments under load, and power cuts, which also lose the data in the kernel's cache.

use std::time::Duration;

use super::disk::Disk;
use super::rounds::{Rounds, Tally};
use super::{attempts, lossless, with_grace};
use dlock_testkit::queue::granted_message;
use dlock_testkit::{Options, Random, Server, ServerKind, Value, each_server, until};

#[each_server]
fn kill_9_loses_no_acknowledged_command_with_appendfsync_always(kind: &ServerKind) {
    let tally =
        Rounds::lossless("kill -9, appendfsync always").run(lossless(kind).start(), |server, random| {
            maybe_write(server, random, "BGREWRITEAOF");
            server.kill9();
        });
    tally.assert_nothing_lost();
}

fn run_with_grace(
    name: &'static str,
    options: Options,
    mut fault: impl FnMut(&Server, &mut Random),
) -> Tally {
    let tally = Rounds::with_grace(name).run(options.start(), |server, random| {
        fault(server, random);
        server.kill9();
    });
    assert!(tally.grace > 0, "no reply was GRACE");
    tally
}

#[each_server]
fn grace_prevents_two_holders_after_kill_9_with_appendfsync_everysec(kind: &ServerKind) {
    let options = with_grace(kind).conf("appendonly yes").conf("auto-aof-rewrite-min-size 100kb");
    run_with_grace("kill -9, appendfsync everysec", options, |server, random| {
        maybe_write(server, random, "BGREWRITEAOF");
    });
}

/// In every second round, CONFIG SET switches the append only file off before the crash. The configuration
/// file still says `appendonly yes`, so the restarted server loads a file without the last grants.
#[each_server]
fn grace_prevents_two_holders_after_kill_9_with_the_append_only_file_switched_off(kind: &ServerKind) {
    let options = with_grace(kind).synced();
    let mut round = 0;
    let tally = run_with_grace("kill -9, appendonly switched off", options, |server, _| {
        round += 1;
        if round % 2 == 0 {
            return;
        }
        assert_eq!(server.connect().ok("CONFIG SET appendonly no"), "OK");
        let before = server.number("dlock_grants");
        until("the file lacks some grants", || server.number("dlock_grants") > before + 20);
    });
    assert!(!tally.lost.is_empty(), "the crashes lost no hold");
}

#[each_server]
fn grace_prevents_two_holders_after_kill_9_with_snapshots_only(kind: &ServerKind) {
    let tally = run_with_grace("kill -9, snapshots only", with_grace(kind), |server, random| {
        let save = *random.of(&["SAVE", "BGSAVE"]);
        maybe_write(server, random, save);
    });
    assert!(!tally.lost.is_empty(), "the crashes lost no hold");
}

#[each_server]
fn grace_prevents_two_holders_after_kill_9_without_persistence(kind: &ServerKind) {
    let tally = run_with_grace("kill -9, no persistence", with_grace(kind), |_, _| ());
    assert!(!tally.lost.is_empty(), "the crashes lost no hold");
}

/// In half of the rounds, sends `command`, which writes a file. In half of these rounds, waits until no
/// background write is in progress.
fn maybe_write(server: &Server, random: &mut Random, command: &str) {
    if !random.once_in(2) {
        return;
    }
    let mut conn = server.connect();
    // The server refuses a second background write while one is in progress.
    let _ = conn.say(command);
    if random.once_in(2) {
        until("the background write has ended", || {
            server.numbers(["aof_rewrite_in_progress", "rdb_bgsave_in_progress"]) == [0, 0]
        });
    }
}

#[each_server]
fn a_power_cut_loses_no_acknowledged_command_with_appendfsync_always(kind: &ServerKind) {
    let (kind, disk) = Disk::of(kind);
    let tally =
        Rounds::lossless("power cut, appendfsync always").run(lossless(&kind).start(), |server, _| {
            server.kill9();
            disk.lose_power(server.dir());
        });
    tally.assert_nothing_lost();
}

#[each_server]
fn grace_prevents_two_holders_after_a_power_cut_with_weaker_settings(kind: &ServerKind) {
    for (name, fsync) in [
        ("power cut, appendfsync everysec", "appendfsync everysec"),
        ("power cut, appendfsync no", "appendfsync no"),
    ] {
        let (kind, disk) = Disk::of(kind);
        let mut lost_bytes = 0;
        let server = with_grace(&kind).conf("appendonly yes").conf(fsync).start();
        let tally = Rounds::with_grace(name).run(server, |server, _| {
            server.kill9();
            lost_bytes += disk.lose_power(server.dir());
        });
        assert!(tally.grace > 0, "no reply was GRACE");
        if fsync == "appendfsync no" {
            assert!(lost_bytes > 0 && !tally.lost.is_empty(), "no data was lost although none was synced");
        }
    }
}

/// A queued waiter holds the lock once it has read the message of its grant.
#[each_server]
fn a_grant_that_its_holder_knows_by_the_message_survives_kill_9_with_appendfsync_always(kind: &ServerKind) {
    let mut server = lossless(kind).start();
    for _ in 0..attempts() {
        let (mut a, mut subscriber) = (server.connect(), server.subscriber("channel"));
        a.ok("DLOCK.ACQUIRE k a 600000");
        assert!(a.ok("DLOCK.ACQUIRE k b 600000 QUEUE 600000 NOTIFY channel b").is_nil());
        a.send(&["DLOCK.RELEASE", "k", "a"]);
        let fence = granted_message(&mut subscriber, "b");
        let mut conn = server.kill_and_restart();
        assert_eq!(conn.ok("DLOCK.HOLDS k b"), 1);
        assert_eq!(conn.ok("DLOCK.INSPECT k").field("fence"), &Value::Int(fence));
        assert_eq!(conn.ok("DLOCK.RELEASE k b"), 1);
    }
}

/// The server logs the effects of a script when the script ends, and meanwhile serves its other clients.
#[each_server]
fn a_grant_by_a_slow_script_is_announced_only_once_it_is_on_the_disk(kind: &ServerKind) {
    let mut server = lossless(kind).conf("busy-reply-threshold 1").start();
    let (mut a, mut subscriber) = (server.connect(), server.subscriber("channel"));
    a.ok("DLOCK.ACQUIRE k a 600000");
    assert!(a.ok("DLOCK.ACQUIRE k b 600000 QUEUE 600000 NOTIFY channel b").is_nil());
    a.send(&["EVAL", "redis.call('DLOCK.RELEASE', KEYS[1], 'a') while true do end", "1", "k"]);
    let mut other = server.connect();
    until(
        "the script is slow",
        || matches!(other.say("PING"), Value::Error(line) if line.starts_with("BUSY")),
    );
    // A message of the script would arrive before this reply.
    assert!(subscriber.say("PING").error().starts_with("BUSY"));
    assert_eq!(subscriber.try_read(Duration::ZERO), None);
    let mut conn = server.kill_and_restart();
    assert_eq!((conn.ok("DLOCK.HOLDS k a"), conn.ok("DLOCK.HOLDS k b")), (1.into(), 0.into()));
}
