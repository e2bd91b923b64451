//! Grants whose connection, database or user disappears in the event-loop turn of the grant. The server
//! either delivers such a grant, or ends its hold and grants the lock to the next waiter, never both.

use std::mem;
use std::process::{Command, Stdio};

use dlock_testkit::queue::{clients, granted, holders, waiter};
use dlock_testkit::{Conn, Server, ServerKind, Value, each_server, until};

use crate::scene::Scene;

/// Starts a server on which `a` holds `k`, and `b` waits for `k`, before `c`. `login` prepares the connection
/// of `b`.
fn scene(kind: &ServerKind, login: impl Fn(&mut Conn)) -> Scene {
    let server = Server::start(kind);
    server.connect().ok("ACL SETUSER bob on >secret +@all ~* &*");
    Scene::on(server, login)
}

fn as_bob(conn: &mut Conn) {
    assert_eq!(conn.ok("AUTH bob secret"), "OK");
}

/// Rounds of each race, because the server's internal order varies.
const ROUNDS: usize = 5;

#[each_server]
fn a_grant_to_a_deleted_user_passes_to_the_next_waiter(kind: &ServerKind) {
    for commands in [["ACL DELUSER bob", "DLOCK.RELEASE k a"], ["DLOCK.RELEASE k a", "ACL DELUSER bob"]] {
        for _ in 0..ROUNDS {
            let mut scene = scene(kind, as_bob);
            assert_eq!(scene.a.say_together(&commands), [Value::Int(1), Value::Int(1)]);
            until("the server closes the connection of b", || scene.b.closed());
            scene.assert_c_holds();
        }
    }
}

#[each_server]
fn a_grant_to_a_client_that_disconnects_in_the_same_turn_passes_to_the_next_waiter(kind: &ServerKind) {
    for _ in 0..ROUNDS {
        let mut scene = scene(kind, |_| ());
        let placeholder = scene.server.connect();
        // The server finds the closed connection and the release in one turn.
        scene.server.pause();
        drop(mem::replace(&mut scene.b, placeholder));
        scene.a.send(&["DLOCK.RELEASE", "k", "a"]);
        scene.server.resume();
        assert_eq!(scene.a.read(), 1);
        scene.assert_c_holds();
    }
}

/// The published message exceeds the output limit of subscribers.
#[each_server]
fn a_grant_to_a_subscriber_over_its_output_limit_passes_to_the_next_waiter(kind: &ServerKind) {
    if kind.is_valkey && kind.is_at_least(8, 1) {
        return eprintln!("left out on {}: it refuses to block a subscribed client", kind.name);
    }
    // The script is short, so that the server reads it and the release in one turn.
    let publish = ["EVAL", "return redis.call('PUBLISH', 'channel', string.rep('x', 2000000))", "0"];
    let release = ["DLOCK.RELEASE", "k", "a"];
    for commands in [[&publish, &release], [&release, &publish]] {
        for _ in 0..ROUNDS {
            let mut scene = scene(kind, |conn| {
                conn.hello3();
                conn.send(&["SUBSCRIBE", "channel"]);
                conn.read();
            });
            let limit = ["CONFIG", "SET", "client-output-buffer-limit", "pubsub 1mb 0 0"];
            assert_eq!(scene.a.call(&limit), "OK");
            scene.a.send_batch(&commands.map(|command| &command[..]));
            assert_eq!([scene.a.read(), scene.a.read()], [Value::Int(1), Value::Int(1)]);
            until("the server closes the connection of b", || scene.b.closed());
            scene.assert_c_holds();
        }
    }
}

/// SWAPDB moves the hold to another database before the server finds the connection closed.
#[each_server]
fn an_undelivered_grant_moved_by_swapdb_is_released_in_its_new_database(kind: &ServerKind) {
    let mut scene = scene(kind, |_| ());
    let mut other = scene.server.connect();
    other.ok("SELECT 1");
    let kill = format!("CLIENT KILL ID {}", scene.b_id);
    let answers = scene.a.say_together(&["DLOCK.RELEASE k a", "SWAPDB 0 1", &kill]);
    assert_eq!((answers[0].int(), answers[2].int()), (1, 1));
    // SWAPDB leaves the queue in database 0, where c is granted the free lock. In database 1, the server
    // releases the hold of b.
    granted(&mut scene.c);
    until("b's hold is released", || holders(&mut other, "k").is_empty());
    assert_eq!((other.ok("EXISTS k"), scene.server.number("dlock_held")), (0.into(), 1));
    assert_eq!(holders(&mut scene.a, "k"), ["c"]);
}

#[each_server]
fn a_delivered_grant_stays_when_the_connection_closes_at_once(kind: &ServerKind) {
    let (server, mut a) = Server::connected(kind);
    // The pipelined command after the wait closes the connection in the turn of the grant.
    for closing in ["QUIT", "CLIENT KILL ID {id} SKIPME no"] {
        for _ in 0..ROUNDS {
            a.ok("DLOCK.ACQUIRE k a 600000");
            let mut b = server.connect();
            let closing = closing.replace("{id}", &b.client_id().to_string());
            let closing: Vec<&str> = closing.split(' ').collect();
            b.send_batch(&[&["DLOCK.ACQUIRE", "k", "b", "600000", "BLOCK", "0"][..], &closing]);
            until("b waits", || clients(&mut a, "k").len() == 1);
            let _c = waiter(&server, "DLOCK.ACQUIRE k c 600000 BLOCK 0");
            a.ok("DLOCK.RELEASE k a");
            granted(&mut b);
            b.read();
            until("the connection is closed", || b.closed());
            assert_still_holds(&server, "b");
            a.ok("DLOCK.CANCEL k c");
            a.ok("DLOCK.RELEASE k b");
        }
    }
}

/// The client exits as soon as it has the reply.
#[each_server]
fn a_delivered_grant_stays_when_the_program_ends_with_the_reply(kind: &ServerKind) {
    let (server, mut a) = Server::connected(kind);
    for _ in 0..ROUNDS {
        a.ok("DLOCK.ACQUIRE k a 600000");
        let mut cli = Command::new("redis-cli");
        cli.args(["-p", &server.port().to_string(), "DLOCK.ACQUIRE", "k", "b", "600000", "BLOCK", "0"]);
        let cli = cli.stdout(Stdio::piped()).spawn().expect("redis-cli runs");
        until("the client waits", || clients(&mut a, "k").len() == 1);
        a.ok("DLOCK.RELEASE k a");
        let output = cli.wait_with_output().expect("the output can be read");
        assert!(String::from_utf8_lossy(&output.stdout).trim().parse::<u64>().is_ok(), "{output:?}");
        assert_still_holds(&server, "b");
        a.ok("DLOCK.RELEASE k b");
    }
}

/// Asserts that `token` still holds `k` after the next run of the module's background job, which ends the
/// holds of undelivered grants.
#[track_caller]
fn assert_still_holds(server: &Server, token: &str) {
    let mut conn = server.connect();
    // The job also ends this lease of 20 ms.
    conn.ok("DLOCK.ACQUIRE later x 20");
    until("the background job has run", || conn.ok("EXISTS later") == 0);
    assert_eq!(holders(&mut conn, "k"), [token]);
}

/// Before the server evicts the client that uses the most memory, the server writes all replies. So the
/// evicted client has its reply and keeps its hold.
#[each_server]
fn a_delivered_grant_stays_when_the_client_is_evicted(kind: &ServerKind) {
    let mut scene = scene(kind, |_| ());
    // The memory limit for clients drops in the turn of the grant to b. b uses the most memory, because it
    // has sent half of a large command.
    scene.a.ok("CLIENT NO-EVICT on");
    scene.a.ok("CONFIG SET maxmemory-clients 1gb");
    scene.b.send_raw(format!("*2\r\n$4\r\nECHO\r\n$900000\r\n{}", "x".repeat(500_000)).as_bytes());
    until("the memory of b is counted", || scene.server.number("mem_clients_normal") > 500_000);
    let evict = ["DLOCK.RELEASE k a", "CONFIG SET maxmemory-clients 1"];
    assert_eq!(scene.a.say_together(&evict), [Value::Int(1), Value::Simple("OK".into())]);
    granted(&mut scene.b);
    until("the server closes the connection of b", || scene.b.closed());
    scene.a.ok("CONFIG SET maxmemory-clients 0");
    assert_still_holds(&scene.server, "b");
}
