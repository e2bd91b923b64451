//! QUEUE: a position in the queue belongs to a token. A token with a granted position claims the grant by
//! another ACQUIRE or by EXTEND; both set the lease. `conformance/queue*.json` test the rest.

use dlock_testkit::queue::{granted_message, holders, tokens};
use dlock_testkit::{Conn, Server, ServerKind, Value, each_server, until};

/// Adds a position for `token` to the queue of `k`, with notifications on the channel `channel`.
#[track_caller]
fn queue(conn: &mut Conn, token: &str) {
    let call = format!("DLOCK.ACQUIRE k {token} 600000 QUEUE 600000 NOTIFY channel {token}");
    assert_eq!(conn.ok(&call), Value::Nil, "{token} is in the queue");
}

#[each_server]
fn the_rights_of_a_position_are_checked_at_request_and_at_grant(kind: &ServerKind) {
    let (server, mut a) = Server::connected(kind);
    a.ok("DLOCK.ACQUIRE k a 600000");
    let mut subscriber = server.subscriber("channel");
    const RULES: &str = "~k +dlock.acquire resetchannels &channel";
    let mut b = server.user(RULES);
    let other = b.say("DLOCK.ACQUIRE k b 600000 QUEUE 600000 NOTIFY other b");
    assert!(other.error().starts_with("NOPERM"), "{other:?}");
    assert_eq!(a.ok("ACL LOG").items()[0].field("reason"), &Value::Bulk("channel".into()));
    for (withdrawal, is_published) in
        [("-dlock.acquire", true), ("resetkeys", true), ("resetchannels", false)]
    {
        queue(&mut b, "b");
        queue(&mut a, "c");
        a.ok(&format!("ACL SETUSER app {withdrawal}"));
        a.ok("DLOCK.RELEASE k a");
        // The server publishes nothing on a channel to which the user of the position has lost the right.
        if is_published {
            assert_eq!(subscriber.message(), "b refused");
        }
        granted_message(&mut subscriber, "c");
        assert_eq!(holders(&mut a, "k"), ["c"]);
        a.ok("DLOCK.RELEASE k c");
        a.ok("DLOCK.ACQUIRE k a 600000");
        a.ok(&format!("ACL SETUSER app {RULES}"));
    }
}

#[each_server]
fn swapdb_moves_an_unclaimed_grant_but_not_the_queue(kind: &ServerKind) {
    let (server, mut a) = Server::connected(kind);
    let mut subscriber = server.subscriber("channel");
    a.ok("DLOCK.ACQUIRE k a 600000");
    queue(&mut a, "b");
    a.ok("DLOCK.RELEASE k a");
    granted_message(&mut subscriber, "b");
    queue(&mut a, "c");
    a.ok("SWAPDB 0 1");
    granted_message(&mut subscriber, "c");
    assert_eq!(holders(&mut a, "k"), ["c"]);
    // The token claims its grant in the other database.
    a.ok("SELECT 1");
    assert_eq!(a.ok("DLOCK.EXTEND k b 1000"), 1);
}

#[each_server]
fn a_granted_position_can_be_claimed_when_its_connection_closes_before_the_reply(kind: &ServerKind) {
    let (server, mut a) = Server::connected(kind);
    a.ok("DLOCK.ACQUIRE k a 600000");
    let mut b = server.connect();
    let kill = format!("CLIENT KILL ID {}", b.client_id());
    b.send(&["DLOCK.ACQUIRE", "k", "b", "600000", "QUEUE", "500000", "BLOCK", "0"]);
    until("b waits", || server.number("dlock_waiting") == 1);
    assert_eq!(tokens(&mut a, "k"), ["b"]);
    assert_eq!(a.say_together(&["DLOCK.RELEASE k a", &kill]), [Value::Int(1), Value::Int(1)]);
    // The lease of an unclaimed grant ends when the position would have expired: after at most 500 s.
    until("the lease is at most 500 s", || (1..=500_000).contains(&a.ok("DLOCK.PTTL k b").int()));
    assert_eq!(holders(&mut a, "k"), ["b"]);
    assert!(a.ok("DLOCK.ACQUIRE k b 600000").int() > 0);
    assert!(a.ok("DLOCK.PTTL k b").int() > 500_000);
}
