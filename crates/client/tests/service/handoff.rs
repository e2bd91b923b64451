//! The message of a grant is the grant: a waiter holds the lock one trip after the RELEASE, and claims the
//! grant in the background.

use super::proxies::Gate;
use super::*;

/// Longer than the time for which a server keeps the position of a waiter.
const TTL: Duration = Duration::from_secs(300);

/// A server whose lock `other` holds, and a client behind a gate that waits for it.
async fn waiting(
    kind: &ServerKind,
    renew: bool,
) -> (Server, Gate, tokio::task::JoinHandle<Result<Guard, AcquireError>>) {
    let server = Server::start(kind);
    hold_as("other", [&server]);
    let gate = Gate::to(&server);
    let builder = Client::builder().server(gate.url()).node_timeout(Duration::from_secs(5));
    let client = builder.build().await.expect("a client");
    let waits = tokio::spawn(client.lock("r").ttl(TTL).renew(renew).acquire());
    until("the waiter is queued", || waiters(&server).len() == 1);
    (server, gate, waits)
}

/// The gate holds back every request of the waiter after the RELEASE, so the message is all that it gets.
#[each_server]
async fn a_waiter_holds_the_lock_one_trip_after_the_release(kind: &ServerKind) {
    for renew in [true, false] {
        let (server, gate, waits) = waiting(kind, renew).await;
        gate.set_closed(true);
        release_as("other", [&server]);
        let guard = tokio::time::timeout(TIMEOUT, waits).await.expect("the message is the grant");
        let guard = guard.expect("no panic").expect("a handoff");
        let mut conn = server.connect();
        let position = Duration::from_secs(10);
        assert!(conn.ok("DLOCK.PTTL r").int() <= position.as_millis() as i64, "nothing is claimed yet");
        assert!(!guard.remaining().is_zero() && guard.remaining() < position);
        assert_eq!(holders(&server, "r").len(), 1);
        gate.set_closed(false);
        until("the grant is claimed", || guard.remaining() > TTL / 2);
        assert!(conn.ok("DLOCK.PTTL r").int() > TTL.as_millis() as i64 / 2);
        guard.release().await.expect("the lock is held");
        until_nothing_is_left(&[server], "r");
    }
}

/// A grant that is not claimed ends without a delay. So a lock with a delay is held from the answer to the
/// claim on: the lock then stays closed after the death of the holder.
#[each_server]
async fn a_lock_with_a_delay_is_held_once_its_claim_is_answered(kind: &ServerKind) {
    let server = Server::start(kind);
    hold_as("other", [&server]);
    let gate = Gate::to(&server);
    let builder = Client::builder().server(gate.url()).node_timeout(TIMEOUT);
    let lock = builder.build().await.expect("a client").lock("r").ttl(TTL).delay(TTL);
    let waits = tokio::spawn(async move {
        let guard = lock.acquire().await.expect("a handoff");
        (guard.remaining(), guard)
    });
    until("the waiter is queued", || waiters(&server).len() == 1);
    let waiter = waiters(&server).remove(0);
    gate.set_closed(true);
    release_as("other", [&server]);
    assert_eq!(holders(&server, "r"), [waiter]);
    until("the claim is under way", || gate.holds_back("ACQUIRE"));
    assert!(!waits.is_finished(), "nothing is claimed yet");
    gate.set_closed(false);
    let (remaining, guard) = waits.await.expect("no panic");
    assert!(remaining > TTL / 2, "the hold is claimed, but has {remaining:?}");
    guard.release().await.expect("the lock is held");
    until_nothing_is_left(&[server], "r");
}

/// The server can read a call after a later one: a copy of it, or bytes of a connection that has closed.
/// The call's message is then that of the position. A later call was answered null, so the message shows no
/// hold, but the wait asks at once.
#[each_server]
async fn a_wait_asks_at_once_after_the_grant_of_an_earlier_call(kind: &ServerKind) {
    const ROUNDS: u32 = 10;
    /// The shortest pause of a wait that gets no messages.
    const PAUSE: Duration = Duration::from_millis(2500);
    let server = Server::start(kind);
    hold_as("other", [&server]);
    let (mut monitor, mut conn) = (server.connect(), server.connect());
    monitor.ok("MONITOR");
    let builder = Client::builder().server(url(&server)).node_timeout(TIMEOUT);
    let waits = tokio::spawn(builder.build().await.expect("a client").lock("r").ttl(TTL).acquire());
    let mut next_call = || loop {
        let line = monitor.read().text();
        let words: Vec<String> = line.split('"').skip(1).step_by(2).map(String::from).collect();
        if words.iter().any(|word| word == "NOTIFY") {
            return words;
        }
    };
    let (mut earlier, mut last) = (next_call(), next_call());
    let begun = now();
    for _ in 0..ROUNDS {
        let publish = |call: &[String], ended: &str| {
            let notify = call.iter().position(|word| word == "NOTIFY").expect("a message");
            let (id, secret) = call[notify + 2].split_once(' ').expect("an id and a secret");
            ["PUBLISH".into(), call[notify + 1].clone(), format!("{id} {ended} {secret}")]
        };
        // The second message arrives while the wait asks after the first one.
        conn.send_batch(&[&publish(&earlier, "granted 5"), &publish(&last, "timeout")]);
        assert!(conn.read() == 1 && conn.read() == 1, "the wait is subscribed");
        (earlier, last) = (next_call(), next_call());
    }
    assert!(!waits.is_finished(), "the message is no grant");
    assert!(conn.call(&earlier).is_nil());
    release_as("other", [&server]);
    let guard = waits.await.expect("no panic").expect("a handoff");
    // Each round takes a trip, but the wait by itself asks only after the pause.
    assert!(now().saturating_since(begun) < ROUNDS * PAUSE, "it asks by its clock only");
    guard.release().await.expect("the lock is held");
}

#[each_server]
async fn a_hold_whose_claim_comes_too_late_is_lost(kind: &ServerKind) {
    let (server, gate, waits) = waiting(kind, true).await;
    gate.set_closed(true);
    release_as("other", [&server]);
    let guard = waits.await.expect("no panic").expect("a handoff");
    assert_eq!(server.connect().ok("DLOCK.BREAK r"), 1);
    gate.set_closed(false);
    let why = tokio::time::timeout(TIMEOUT, guard.lost()).await.expect("the claim is refused");
    // On a busy machine, the validity may end before the claim is answered.
    assert!(matches!(why, Lost::TakenAway(_) | Lost::NotRenewed(_)), "{why:?}");
    // The claim has made a new hold, which the client releases, although the guard still exists.
    until_nothing_is_left(&[server], "r");
    drop(guard);
}

/// A grant in the queue of one member is followed by one request to each member.
#[each_server]
async fn a_waiter_of_a_quorum_asks_each_member_once_after_the_release(kind: &ServerKind) {
    let (servers, client) = quorum(kind, 3).await;
    hold_as("other", &servers);
    let waits = tokio::spawn(client.lock("r").ttl(TTL).acquire());
    until_waiting(&servers, 1);
    let acquires = || servers.iter().map(|server| calls(server, "acquire")).collect::<Vec<u64>>();
    let before = acquires();
    // The member of the queue is released last, so the other members have no hold when they are asked.
    release_as("other", all_but(&servers, queue_master(&servers)));
    release_as("other", [queue_master(&servers)]);
    let guard = waits.await.expect("no panic").expect("a handoff");
    until_held_everywhere(&servers, "r");
    for (before, after) in before.iter().zip(acquires()) {
        assert_eq!(after - before, 1, "one round of requests");
    }
    guard.release().await.expect("the lock is held");
}

/// Returns the number of calls of a command that the server has counted.
pub fn calls(server: &Server, command: &str) -> u64 {
    let stats = server.connect().ok("INFO commandstats").text().to_lowercase();
    let prefix = format!("cmdstat_dlock.{command}:calls=");
    let calls = stats.lines().find_map(|line| line.strip_prefix(&*prefix));
    calls.map_or(0, |calls| calls.split(',').next().and_then(|calls| calls.parse().ok()).expect("a number"))
}

/// A client with the right to publish on the channel of the waits, which does not know the secret of a wait.
#[each_server]
async fn a_forged_message_ends_no_wait(kind: &ServerKind) {
    let (server, _gate, waits) = waiting(kind, true).await;
    let mut conn = server.connect();
    let channel = conn.ok("PUBSUB CHANNELS dlock:*").items()[0].text();
    let token = &waiters(&server)[0];
    for message in ["0", "1", "0.1", ".1", "1.1", token, &format!("{token}.1"), &channel] {
        for words in ["granted 5", "granted", "cancelled", "refused", "timeout"] {
            assert_eq!(conn.call(&["PUBLISH", &channel, &format!("{message} {words}")]), 1);
        }
    }
    // The client reads this command's message after the forged ones.
    assert_eq!(waiters(&server).len(), 1);
    release_as("other", [&server]);
    let guard = waits.await.expect("no panic").expect("a handoff");
    assert_ne!(guard.fence().map(|fence| fence.get()), Some(5));
    guard.release().await.expect("the lock is held");
}
