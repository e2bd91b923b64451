//! The blocking client, for programs without a runtime.

use super::*;
use dlock_client::blocking::{self, Guard};
use std::cell::RefCell;

fn client(servers: &[Server]) -> blocking::Client {
    builder(servers).build_blocking().expect("a client")
}

#[each_server]
fn the_blocking_client_acquires_renews_and_releases(kind: &ServerKind) {
    for count in [1, 3] {
        let servers = masters(kind, count);
        let (ann, bob) = (client(&servers), client(&servers));
        let ttl = Duration::from_secs(6);
        let guard = ann.lock("r").ttl(ttl).fenced().acquire().expect("the lock is free");
        assert!(guard.fence().is_some());
        let end = guard.valid_until() + ttl;
        until("the original lease would have ended", || now() > end);
        assert_eq!(guard.loss(), None);
        assert!(bob.lock("r").try_acquire().expect("an answer").is_none());
        let waiter = std::thread::spawn(move || bob.lock("r").wait(Wait::For(LONG)).acquire());
        until_waiting(&servers, 1);
        guard.release().expect("the lock is held");
        let guard = waiter.join().expect("no panic").expect("the other client has released");
        until_held_everywhere(&servers, "r");
        drop(guard);
        assert!(held_on(&servers, "r") <= count / 2, "a majority has released the hold");
        until_nothing_is_left(&servers, "r");
        ann.close();
    }
}

#[each_server]
fn a_blocking_guard_changes_its_lease_and_mode_and_reports_its_loss(kind: &ServerKind) {
    let servers = masters(kind, 1);
    let client = client(&servers);
    let mut guard = client.lock("r").acquire().expect("the lock is free");
    guard.extend(LONG).expect("the lock is held");
    assert!(guard.remaining() > LONG / 2);
    guard.downgrade().expect("the lock is held");
    drop(client.lock("r").shared().try_acquire().expect("an answer").expect("the lock can be shared"));
    guard.upgrade(Wait::For(LONG)).expect("the other sharer has released");
    let inspected = client.block_on(client.client().inspect("r"));
    assert_eq!(inspected.len(), 1);
    assert_eq!(servers[0].connect().ok("DLOCK.BREAK r"), 1);
    assert!(matches!(guard.lost(), Lost::TakenAway(_)));
}

#[each_server]
fn the_blocking_client_acquires_several_locks_and_adopts_a_hold(kind: &ServerKind) {
    let servers = masters(kind, 3);
    let client = client(&servers);
    let guards = client.lock_all(["b", "a"]).each(|lock| lock.ttl(LONG)).acquire().expect("both are free");
    assert_eq!(guards.iter().map(|guard| guard.resource()).collect::<Vec<_>>(), [b"a", b"b"]);
    assert!(client.lock_all(["b", "c"]).try_acquire().expect("an answer").is_none());
    drop(guards);
    until_nothing_is_left(&servers, "a");
    drop(client.lock_all(["b", "c"]).try_acquire().expect("an answer").expect("both locks are free"));

    let path = client.lock_path("a/b").acquire().expect("the path is free");
    assert_eq!(path.iter().map(|guard| guard.resource()).collect::<Vec<_>>(), [b"{a}" as &[u8], b"{a}/b"]);
    drop(path);

    let lock = client.client().lock("r").ttl(LONG);
    let kept = client.block_on(forgotten(&servers, lock));
    client.adopt("r", &kept.token, LONG).expect("the lock is held").release().expect("the lock is held");
    until_nothing_is_left(&servers, "r");
}

#[each_server]
fn a_guard_that_a_task_drops_is_released_in_the_background(kind: &ServerKind) {
    let servers = masters(kind, 1);
    let guard = client(&servers).lock("r").ttl(LONG).acquire().expect("the lock is free");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async { drop(guard) });
    until_nothing_is_left(&servers, "r");
}

/// At the end of the thread, tokio's thread-local state is dropped before the guard. Without that state, the
/// guard cannot wait for the end of the release.
#[each_server]
fn a_guard_in_a_thread_local_variable_is_released_at_the_end_of_the_thread(kind: &ServerKind) {
    thread_local! {
        static HELD: RefCell<Option<Guard>> = const { RefCell::new(None) };
    }
    let servers = masters(kind, 1);
    let client = client(&servers);
    let hold = move || {
        HELD.with_borrow_mut(|held| {
            *held = Some(client.lock("r").ttl(LONG).acquire().expect("the lock is free"));
        });
    };
    std::thread::spawn(hold).join().expect("no panic");
    until_nothing_is_left(&servers, "r");
}

#[each_server]
fn a_re_entry_during_the_release_does_not_share_the_released_hold(kind: &ServerKind) {
    let servers = masters(kind, 1);
    let builder = Client::builder().servers(servers.iter().map(url)).node_timeout(LONG);
    let client = builder.build_blocking().expect("a client");
    for drops in [false, true] {
        let guard = client.lock("r").ttl(LONG).reentrant().acquire().expect("the lock is free");
        let mut conn = servers[0].connect();
        assert_eq!(conn.ok("CLIENT PAUSE 600000 WRITE"), "OK");
        let release = move || match drops {
            true => drop(guard),
            false => guard.release().expect("the lock is held"),
        };
        let releasing = std::thread::spawn(release);
        until("the release is in progress", || releasing_connection(&mut conn).is_some());
        let other = client.clone();
        let entering = std::thread::spawn(move || other.lock("r").ttl(LONG).reentrant().acquire());
        until("the second acquisition has ended or sent a request", || {
            // The paused server does not execute the next command. Its bytes stay in the query buffer
            // (qbuf).
            let has_sent = releasing_connection(&mut conn).is_some_and(|line| !line.contains(" qbuf=0 "));
            has_sent || entering.is_finished()
        });
        assert_eq!(conn.ok("CLIENT UNPAUSE"), "OK");
        releasing.join().expect("no panic");
        let entered = entering.join().expect("no panic").expect("the lock is free");
        let token = String::from_utf8(entered.token().as_bytes().to_vec()).expect("text");
        assert_eq!(holders(&servers[0], "r"), [token]);
        entered.release().expect("the lock is held");
    }
}

/// Returns the CLIENT LIST line of the connection with a release in progress.
fn releasing_connection(conn: &mut Conn) -> Option<String> {
    let list = conn.ok("CLIENT LIST").text();
    list.lines().find(|line| line.contains("cmd=DLOCK.RELEASE")).map(str::to_owned)
}
