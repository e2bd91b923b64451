//! Shared, re-entered and ephemeral holds, and several locks at once.

use super::*;
use std::hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[each_server]
async fn sharers_hold_together_and_exclude_exclusive_holders(kind: &ServerKind) {
    let (_servers, ann, bob) = two_clients(kind, 3).await;
    let first = ann.lock("r").shared().acquire().await.expect("the lock is free");
    let second = bob.lock("r").shared().fenced().acquire().await.expect("the lock can be shared");
    assert!(bob.lock("r").try_acquire().await.expect("an answer").is_none());
    first.release().await.expect("the lock is held");
    assert!(ann.lock("r").try_acquire().await.expect("an answer").is_none());
    second.release().await.expect("the lock is held");
    drop(ann.lock("r").try_acquire().await.expect("an answer").expect("the lock is free"));
}

#[each_server]
async fn permits_are_counted_by_a_single_server_and_refused_in_a_quorum(kind: &ServerKind) {
    let servers = masters(kind, 3);
    let one = client(&servers[..1]).await;
    let lock = || one.lock("r").permits(2);
    let first = lock().acquire().await.expect("a permit is free");
    let second = lock().acquire().await.expect("a permit is free");
    assert!(lock().try_acquire().await.expect("an answer").is_none());
    drop((first, second));
    let three = client(&servers).await;
    for refused in [three.lock("r").permits(2), three.lock("r").ephemeral(), one.lock("r").permits(0)] {
        assert!(matches!(refused.acquire().await, Err(AcquireError::Option(_))));
    }
}

#[each_server]
async fn a_re_entered_hold_ends_with_its_last_guard(kind: &ServerKind) {
    let (servers, client) = quorum(kind, 3).await;
    let lock = |client: &Client| client.lock("r").ttl(LONG).reentrant();
    let first = lock(&client).acquire().await.expect("the lock is free");
    let second =
        lock(&client.clone()).wait(Wait::No).acquire().await.expect("the same client holds the lock");
    assert_eq!(first.token(), second.token());
    let shared = lock(&client).shared().acquire().await.expect("a re-entry may ask for a shared hold");
    let another = lock(&client.session()).try_acquire().await.expect("an answer");
    assert!(another.is_none(), "another session does not share the hold");
    assert!(
        client.lock("r").try_acquire().await.expect("an answer").is_none(),
        "without reentrant() the client does not re-enter its own hold"
    );
    let fenced = lock(&client).fenced().acquire().await;
    assert!(
        matches!(fenced, Err(AcquireError::Option(_))),
        "a re-entered hold has no fence of its own: {fenced:?}"
    );

    first.release().await.expect("the lock is held");
    shared.release().await.expect("the lock is held");
    until_held_everywhere(&servers, "r");
    assert_eq!(second.loss(), None);
    second.release().await.expect("the lock is held");
    until_nothing_is_left(&servers, "r");
    let again = lock(&client).acquire().await.expect("the lock is free");
    assert!(again.forget().is_some());
}

#[each_server]
async fn tasks_of_one_client_that_acquire_at_once_share_one_hold(kind: &ServerKind) {
    let (servers, client) = quorum(kind, 3).await;
    let tasks: Vec<_> =
        (0..8).map(|_| tokio::spawn(client.lock("r").ttl(LONG).reentrant().acquire())).collect();
    let mut guards = Vec::new();
    for task in tasks {
        guards.push(task.await.expect("no panic").expect("the tasks share one hold"));
    }
    assert!(guards.iter().all(|guard| guard.token() == guards[0].token()));
    drop(guards);
    until_nothing_is_left(&servers, "r");
}

/// The client makes no retries, but a wait with a time limit lasts until the server is back.
#[each_server]
async fn a_wait_for_an_ephemeral_hold_survives_a_restart(kind: &ServerKind) {
    let mut servers = masters(kind, 1);
    let no_retry = Retry::new(0, Duration::ZERO);
    let client = builder(&servers).retry(no_retry).build().await.expect("a client");
    servers[0].kill9();
    let outage = Arc::<AtomicBool>::default();
    let hook = outage.clone();
    let lock = client.lock("r").ephemeral().wait(Wait::For(LONG));
    let lock = lock.on_outage(move |_| hook.store(true, Ordering::Relaxed));
    let acquires = tokio::spawn(lock.acquire());
    until("the outage is reported", || outage.load(Ordering::Relaxed) || acquires.is_finished());
    servers[0].restart();
    acquires.await.expect("no panic").expect("the server is back").release().await.expect("the lock is held");
}

#[each_server]
async fn an_ephemeral_hold_ends_with_its_connection(kind: &ServerKind) {
    let (servers, client) = quorum(kind, 1).await;
    // Granted at once, and from the queue.
    for waits in [false, true] {
        hold_as("other", servers.iter().filter(|_| waits));
        let acquired = tokio::spawn(client.lock("r").ttl(LONG).ephemeral().acquire());
        if waits {
            until_waiting(&servers, 1);
            release_as("other", &servers);
        }
        let guard = acquired.await.expect("no panic").expect("the lock is free");
        let seen = client.inspect("r").await.remove(0).answer;
        let holder = seen.found().expect("an answer").as_ref().expect("the lock is held").holders[0].clone();
        assert!(holder.ephemeral && holder.client > 0);
        assert_eq!(servers[0].connect().ok(&format!("CLIENT KILL ID {}", holder.client)), 1);
        assert_eq!(guard.lost().await, Lost::Disconnected);
        until_nothing_is_left(&servers, "r");
        assert!(matches!(guard.release().await, Err(ReleaseError::NotHeld(_))));
    }
    let guard = client.lock("r").ttl(Duration::from_secs(6)).ephemeral().acquire().await;
    let guard = guard.expect("the lock is free");
    let first = guard.valid_until();
    until("the hold is renewed", || guard.valid_until() > first);
    assert!(guard.forget().is_none(), "forget() releases an ephemeral hold");
    until_nothing_is_left(&servers, "r");
}

#[each_server]
async fn several_locks_are_acquired_all_or_none(kind: &ServerKind) {
    for count in [1, 3] {
        let (servers, ann, bob) = two_clients(kind, count).await;
        let guards = ann.lock_all(["c", "a", "b", "a"]).each(|lock| lock.ttl(LONG)).acquire().await;
        let guards = guards.expect("all are free");
        let held: Vec<&[u8]> = guards.iter().map(Guard::resource).collect();
        assert_eq!(held, [b"a", b"b", b"c"]);
        assert!(guards.remaining() > LONG / 2);
        assert_eq!((guards.len(), guards.is_empty(), guards.loss()), (3, false, None));
        let end = guards.extend(2 * LONG).await.expect("the locks are held");
        assert!(guards.remaining() > LONG && guards.iter().all(|guard| guard.valid_until() >= end));
        assert!(bob.lock_all(["0", "b"]).try_acquire().await.expect("an answer").is_none());

        let wait = Wait::For(Duration::from_secs(1));
        let refused = bob.lock_all(["0", "b"]).each(|lock| lock.wait(wait)).acquire().await;
        let why = refused.expect_err("b is held");
        assert!(matches!(&why, AcquireError::Taken { resource, .. } if resource == "b"), "{why}");
        bob.flush().await;
        assert_eq!(held_on(&servers, "0"), 0, "bob has released the lock that was free");

        guards.release().await.expect("the locks are held");
        let guards = bob.lock_all(["0", "b"]).each(|lock| lock.shared()).await.expect("all are free");
        let cancellation = guards.cancellation();
        assert!(!cancellation.is_cancelled());
        let mut guards = guards.into_iter();
        guards.next().expect("two guards").release().await.expect("the lock is held");
        drop(guards);
        ["0", "a", "b", "c"].iter().for_each(|resource| until_nothing_is_left(&servers, resource));
    }
}

/// The names and the modes of the resources are those of the clients in other languages: of a path `a/b/c`,
/// `{a}` and `{a}/b` are shared, `{a}/b/c` is exclusive.
#[each_server]
async fn a_path_excludes_those_above_and_below_it_as_in_every_client(kind: &ServerKind) {
    for count in [1, 3] {
        let (servers, ann, bob) = two_clients(kind, count).await;
        let long = |lock: Acquire| lock.ttl(LONG);
        let guards = ann.lock_path("a/b/c").each(long).acquire().await.expect("the path is free");
        let held: Vec<&[u8]> = guards.iter().map(Guard::resource).collect();
        assert_eq!(held, [b"{a}" as &[u8], b"{a}/b", b"{a}/b/c"]);
        ["{a}", "{a}/b", "{a}/b/c"].iter().for_each(|resource| until_held_everywhere(&servers, resource));
        // Another client, with the commands that it sends.
        let mut other = servers[0].connect();
        assert_eq!(other.ok("DLOCK.ACQUIRE {a}/b/c t 60000 SHARED"), Value::Nil);
        for ancestor in ["{a}", "{a}/b"] {
            assert_eq!(other.ok(&format!("DLOCK.ACQUIRE {ancestor} t 60000")), Value::Nil);
            assert!(other.ok(&format!("DLOCK.ACQUIRE {ancestor} t 60000 SHARED")).int() > 0);
            assert_eq!(other.ok(&format!("DLOCK.RELEASE {ancestor} t")), 1);
        }
        for taken in ["a", "a/b", "a/b/c", "a/b/c/d"] {
            assert!(bob.lock_path(taken).try_acquire().await.expect("an answer").is_none(), "{taken}");
        }
        drop(bob.lock_path("a/b/d").try_acquire().await.expect("an answer").expect("a sibling is free"));
        guards.release().await.expect("the locks are held");

        let shared = |path| ann.lock_path(path).each(|lock| lock.ttl(LONG).shared());
        let guards = shared("a/b").acquire().await.expect("the path is free");
        let below = bob.lock_path("a/b/c").each(long).try_acquire().await.expect("an answer");
        assert!(below.is_some(), "a shared path can have holders below it");
        assert!(bob.lock_path("a").try_acquire().await.expect("an answer").is_none());
        drop((guards, below));
        ["{a}", "{a}/b", "{a}/b/c", "{a}/b/d"].iter().for_each(|name| until_nothing_is_left(&servers, name));
    }
}

#[each_server]
async fn delays_close_a_path_and_not_its_ancestors(kind: &ServerKind) {
    let (servers, client) = quorum(kind, 1).await;
    let path = |path| client.lock_path(path).each(|lock| lock.ttl(LONG).at_least(LONG));
    path("a/b").await.expect("the path is free").release().await.expect("the locks are held");
    let later = client.lock_path("a/c").each(|lock| lock.release_delay(LONG)).await;
    later.expect("the path is free").release_with_delay(LONG).await.expect("the locks are held");
    for closed in ["a/b", "a/c"] {
        assert!(client.lock_path(closed).try_acquire().await.expect("an answer").is_none(), "{closed}");
    }
    until_nothing_is_left(&servers, "{a}");
    drop(client.lock_path("a").try_acquire().await.expect("an answer").expect("the ancestor is free"));
}

#[each_server]
async fn a_malformed_path_is_refused(kind: &ServerKind) {
    let (_servers, client) = quorum(kind, 1).await;
    let paths = ["", "/a", "a/", "a//b", "{a}/b"].map(|path| client.lock_path(path));
    let permits = ["a", "a/b"].map(|path| client.lock_path(path).each(|lock| lock.permits(2)));
    for refused in paths.into_iter().chain(permits) {
        let refused = refused.acquire().await;
        assert!(matches!(refused, Err(AcquireError::Option(_))), "{refused:?}");
    }
}

#[each_server]
async fn the_loss_of_one_of_several_locks_is_reported(kind: &ServerKind) {
    let (_servers, client) = quorum(kind, 3).await;
    let guards = client.lock_all(["a", "b"]).each(|lock| lock.ttl(LONG)).await.expect("all are free");
    let cancellation = guards.cancellation();
    let notified = tokio::spawn({
        let cancellation = cancellation.clone();
        async move { cancellation.cancelled().await }
    });
    client.break_holds("b").await;
    assert!(matches!(guards.lost().await, Lost::TakenAway(_)));
    assert!(matches!(notified.await.expect("no panic"), Lost::TakenAway(_)));
    assert!(cancellation.is_cancelled() && matches!(guards.loss(), Some(Lost::TakenAway(_))));
    assert!(matches!(guards.extend(LONG).await, Err(ExtendError::Lost(_))));
    assert_eq!(guards.remaining(), Duration::ZERO);
}

#[each_server]
async fn the_loss_of_one_lock_ends_the_wait_for_another(kind: &ServerKind) {
    let (servers, client) = quorum(kind, 1).await;
    let mut conn = servers[0].connect();
    assert!(conn.ok("DLOCK.ACQUIRE b other 600000").int() > 0);
    let ttl = Duration::from_secs(6);
    let acquires = tokio::spawn(client.lock_all(["a", "b"]).each(|lock| lock.ttl(ttl)).acquire());
    until("the client waits for b", || !queue::clients(&mut conn, "b").is_empty());
    assert_eq!(holders(&servers[0], "a").len(), 1);
    assert_eq!(conn.ok("DLOCK.BREAK a"), 1);
    let why = acquires.await.expect("no panic").expect_err("a is lost");
    let AcquireError::LostMeanwhile { resource, why } = why else { panic!("{why:?}") };
    assert_eq!(resource, "a");
    assert!(matches!(why, Lost::TakenAway(_)), "{why:?}");
    until("the client has left the queue", || queue::clients(&mut conn, "b").is_empty());
}

/// A client downgrades a hold while another task re-enters it. If both succeeded, the second guard would
/// be exclusive while its hold is shared.
#[each_server]
async fn a_re_entry_and_a_downgrade_exclude_each_other(kind: &ServerKind) {
    let (_servers, client) = quorum(kind, 1).await;
    for round in 0..4_000 {
        let mut first = client.lock("r").reentrant().await.expect("the lock is free");
        let (begun, other) = (Arc::new(AtomicBool::new(false)), client.clone());
        let begins = begun.clone();
        let entering = tokio::spawn(async move {
            begins.store(true, Ordering::Release);
            other.lock("r").reentrant().await
        });
        while !begun.load(Ordering::Acquire) {
            hint::spin_loop();
        }
        // Varies the moment of the downgrade.
        (0..round % 400).for_each(|_| hint::spin_loop());
        let downgraded = first.downgrade().await;
        let entered = entering.await.expect("no panic");
        match (downgraded, entered) {
            (Err(ExtendError::Option(_)), Ok(second)) => drop(second),
            (Ok(()), Err(AcquireError::Option(_))) => {}
            outcomes => panic!("exactly one of the two must be refused: {outcomes:?}"),
        }
        first.release().await.expect("the lock is held");
    }
}
