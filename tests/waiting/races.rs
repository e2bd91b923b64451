//! Races of a grant with another event. A test sends the commands that cause both in one write, so that the
//! server runs them in one event-loop turn. A module that relied on the server's own timeouts of blocked
//! clients would lose replies or crash the server here.

use dlock_testkit::queue::{self, granted, holders, until_no_waiters, waiter};
use dlock_testkit::{Events, Server, ServerKind, Value, each_server, until};

use crate::scene::Scene;

/// Rounds of each race, from `DLOCK_ROUNDS`.
fn rounds() -> usize {
    dlock_testkit::rounds(3)
}

/// The scene: `a` holds `k`, and `b` and then `c` wait for it. The server publishes the events of locks, and
/// its append only file has every acknowledged command.
fn scene(kind: &ServerKind) -> Scene {
    Scene::on(Server::options(kind).conf("notify-keyspace-events Kd").synced().start(), |_| ())
}

impl Scene {
    /// Kills and restarts the server. Asserts that it still has these holders.
    #[track_caller]
    fn assert_holders_after_crash(mut self, expected: &[&str]) {
        assert_eq!(holders(&mut self.server.kill_and_restart(), "k"), expected);
    }
}

#[each_server]
fn a_grant_to_a_killed_client_passes_to_the_next_waiter(kind: &ServerKind) {
    let mut scene = scene(kind);
    for _ in 0..rounds() {
        let mut events = Events::subscribe(&scene.server, "__keyspace@0__:k");
        let kill = format!("CLIENT KILL ID {}", scene.b_id);
        assert_eq!(scene.a.say_together(&["DLOCK.RELEASE k a", &kill]), [Value::Int(1), Value::Int(1)]);
        scene.assert_c_holds();
        assert!(scene.b.closed());
        // b was granted the lock, and its hold ended like any other.
        assert_eq!(events.messages(), ["dlock.release", "dlock.acquire", "dlock.release", "dlock.acquire"]);
        scene.reset();
    }
    scene.assert_holders_after_crash(&["a"]);
}

fn is_unblocked(reply: &Value) -> bool {
    matches!(reply, Value::Error(text) if text.starts_with("UNBLOCKED "))
}

#[each_server]
fn a_grant_to_a_client_unblocked_with_an_error_passes_to_the_next_waiter(kind: &ServerKind) {
    release_and_unblock(kind, "ERROR", is_unblocked);
}

/// CLIENT UNBLOCK TIMEOUT ends a wait as the server's own timeout of a blocked client would. If that timeout
/// and a grant coincide, Redis 7.2 crashes, and 7.0 loses the reply: the client then takes the reply to its
/// next command for the lost one. So dlock gives the server no timeout, and times its waits itself.
#[each_server]
fn a_waiter_unblocked_as_timeout_during_its_grant_gets_one_reply(kind: &ServerKind) {
    release_and_unblock(kind, "TIMEOUT", Value::is_nil);
}

/// Releases the lock and unblocks b in one write. `was_unblocked` recognises the reply that b gets if it was
/// unblocked before the grant.
fn release_and_unblock(kind: &ServerKind, how: &str, was_unblocked: fn(&Value) -> bool) {
    let mut scene = scene(kind);
    for _ in 0..rounds() {
        let unblock = format!("CLIENT UNBLOCK {} {how}", scene.b_id);
        assert_eq!(scene.a.say_together(&["DLOCK.RELEASE k a", &unblock])[0], 1);
        let reply = scene.b.read();
        if !was_unblocked(&reply) {
            // The grant came first: b holds the lock, and c keeps waiting.
            assert!(reply.int() > 0);
            assert_eq!(holders(&mut scene.a, "k"), ["b"]);
            scene.a.ok("DLOCK.RELEASE k b");
        }
        scene.assert_c_holds();
        assert_eq!(scene.b.say("PING"), "PONG", "exactly one reply");
        scene.reset();
    }
    scene.assert_holders_after_crash(&["a"]);
}

#[each_server]
fn a_waiter_unblocked_without_a_grant_gets_one_reply(kind: &ServerKind) {
    let mut scene = scene(kind);
    for how in ["TIMEOUT", "ERROR"] {
        let id = scene.b_id;
        if scene.a.ok(&format!("CLIENT UNBLOCK {id} {how}")) == 1 {
            let reply = scene.b.read();
            assert!(if how == "TIMEOUT" { reply.is_nil() } else { is_unblocked(&reply) }, "{reply:?}");
        } else {
            // Before Redis 7.4 CLIENT UNBLOCK cannot end the wait of a module's client; DLOCK.CANCEL can.
            assert_eq!(scene.a.say(&format!("DLOCK.CANCEL k CLIENT {id}")), 1);
            assert_eq!(scene.b.read(), Value::Nil);
        }
        assert_eq!(scene.b.say("PING"), "PONG", "exactly one reply");
        scene.a.ok("DLOCK.RELEASE k a");
        scene.assert_c_holds();
        scene.reset();
    }
}

#[each_server]
fn a_release_at_the_timeout_gives_the_waiter_one_outcome(kind: &ServerKind) {
    let mut scene = scene(kind);
    for _ in 0..rounds() {
        // b's timeout passes, then the server reads the RELEASE, and only then does the server end b's wait.
        scene.reset_to("DLOCK.ACQUIRE k a 600000", "BLOCK 1000");
        assert_eq!(scene.a.say_together(&["DEBUG SLEEP 1.05", "DLOCK.RELEASE k a"])[1], 1);
        assert_eq!(scene.b.read(), Value::Nil);
        assert_eq!(scene.b.say("PING"), "PONG");
        scene.assert_c_holds();
        // The server grants b the lock before b's timeout, which passes before the server writes the
        // reply. On a busy machine, the timeout may pass before the RELEASE.
        until("b waits until the RELEASE", || {
            scene.reset_to("DLOCK.ACQUIRE k a 600000", "BLOCK 1000");
            let commands = ["DLOCK.WAITERS k", "DLOCK.RELEASE k a", "DEBUG SLEEP 1.05"];
            let replies = scene.a.say_together(&commands);
            assert_eq!(replies[1], 1);
            replies[0].items().len() == 2
        });
        granted(&mut scene.b);
        assert_eq!(scene.b.say("PING"), "PONG");
    }
}

#[each_server]
fn a_release_at_a_demotion_gives_each_waiter_one_outcome(kind: &ServerKind) {
    let master = Server::start(kind);
    let mut scene = scene(kind);
    let replicaof = format!("REPLICAOF 127.0.0.1 {}", master.port());
    let replies = scene.a.say_together(&["DLOCK.RELEASE k a", &replicaof]);
    assert_eq!(replies[0], 1);
    // Each waiter gets one reply: the grant, or the server's error about its new role.
    for conn in [&mut scene.b, &mut scene.c] {
        let reply = conn.read();
        assert!(is_unblocked(&reply) || reply.int() > 0, "{reply:?}");
    }
    scene.server.wait_in_sync(&master);
    let mut conn = scene.server.connect();
    assert_eq!(conn.ok("EXISTS k"), 0, "the replica has the master's data");
    until_no_waiters(&scene.server);
    conn.ok("REPLICAOF NO ONE");
    assert!(conn.ok("DLOCK.ACQUIRE k z 60000").int() > 0);
}

#[each_server]
fn a_release_before_a_removal_gives_each_waiter_one_outcome(kind: &ServerKind) {
    let mut scene = scene(kind);
    for removal in ["FLUSHALL", "FLUSHALL ASYNC", "FLUSHDB", "DEL k", "UNLINK k", "SET k x", "RENAME k l"] {
        for _ in 0..rounds() {
            let replies = scene.a.say_together(&["DLOCK.RELEASE k a", removal]);
            assert_eq!(replies[0], 1, "{removal}");
            // RELEASE granted the lock to b. The removal ended b's hold, so c is next.
            granted(&mut scene.b);
            if removal == "SET k x" {
                assert!(scene.c.read().error().starts_with("WRONGTYPE"), "a string occupies the key");
                scene.a.ok("DEL k");
            } else {
                granted(&mut scene.c);
                assert_eq!(holders(&mut scene.a, "k"), ["c"], "{removal}");
            }
            until_no_waiters(&scene.server);
            scene.reset();
        }
    }
    scene.assert_holders_after_crash(&["a"]);
}

#[each_server]
fn a_removal_before_a_release_serves_the_queue_once(kind: &ServerKind) {
    let mut scene = scene(kind);
    for removal in ["FLUSHALL", "DEL k", "RENAME k l"] {
        // RELEASE finds no hold. The removal alone serves the queue, once.
        let replies = scene.a.say_together(&[removal, "DLOCK.RELEASE k a"]);
        assert_eq!(replies[1], 0, "{removal}");
        granted(&mut scene.b);
        until("b holds the lock", || holders(&mut scene.a, "k") == ["b"]);
        assert_eq!(queue::tokens(&mut scene.a, "k"), ["c"]);
        scene.reset();
    }
}

#[each_server]
fn a_grant_passes_to_the_next_waiter_when_holder_and_waiter_are_killed(kind: &ServerKind) {
    let mut scene = scene(kind);
    for _ in 0..rounds() {
        let mut killer = scene.server.connect();
        scene.reset_to("DLOCK.ACQUIRE k a 60000 EPHEMERAL", "BLOCK 0");
        let kills = [scene.a.client_id(), scene.b_id].map(|id| format!("CLIENT KILL ID {id}"));
        assert_eq!(killer.say_together(&kills), [1, 1].map(Value::Int));
        scene.a = killer;
        scene.assert_c_holds();
    }
}

/// A client that retries on a second connection waits with one token on both. If both close, the token loses
/// its grant to the next waiter. If one stays open, the token keeps the grant.
#[each_server]
fn a_grant_passes_on_only_when_all_connections_that_wait_with_its_token_are_killed(kind: &ServerKind) {
    let mut scene = scene(kind);
    for _ in 0..rounds() {
        // c leaves the queue, and joins again behind the second connection of b.
        scene.a.ok("DLOCK.CANCEL k c");
        let retry = waiter(&scene.server, "DLOCK.ACQUIRE k b 60000 BLOCK 0");
        let retry_id = queue::clients(&mut scene.a, "k")[1];
        scene.c = waiter(&scene.server, "DLOCK.ACQUIRE k c 60000 BLOCK 0");
        let kills = [scene.b_id, retry_id].map(|id| format!("CLIENT KILL ID {id}"));
        let replies = scene.a.say_together(&["DLOCK.RELEASE k a", &kills[0], &kills[1]]);
        assert_eq!(replies, [1, 1, 1].map(Value::Int));
        scene.assert_c_holds();
        drop(retry);
        scene.reset();
        // Only one of the two connections is killed, and c does not wait.
        scene.a.ok("DLOCK.CANCEL k c");
        let mut retry = waiter(&scene.server, "DLOCK.ACQUIRE k b 60000 BLOCK 0");
        let kill = format!("CLIENT KILL ID {}", scene.b_id);
        assert_eq!(scene.a.say_together(&["DLOCK.RELEASE k a", &kill]), [1, 1].map(Value::Int));
        granted(&mut retry);
        assert_eq!(holders(&mut scene.a, "k"), ["b"]);
        scene.reset();
    }
}
