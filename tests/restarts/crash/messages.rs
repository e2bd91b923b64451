//! kill -9 at the moment when a waiter has read the message of its grant, and nothing else: no reply of the
//! server has confirmed the grant yet.

use super::lossless;
use dlock_testkit::{ServerKind, each_server, rounds};

#[each_server]
fn a_grant_known_only_by_its_message_survives_kill_9_with_appendfsync_always(kind: &ServerKind) {
    let mut server = lossless(kind).start();
    let mut last = 0;
    for round in 0..rounds(5) {
        let (mut holder, mut waiter) = (server.connect(), server.connect());
        let mut channel = server.subscriber("channel");
        assert!(holder.ok("DLOCK.ACQUIRE key holder 60000").int() > last);
        let ask = format!("DLOCK.ACQUIRE key waiter-{round} 60000 QUEUE 60000 NOTIFY channel secret-{round}");
        assert!(waiter.ok(&ask).is_nil());
        // The connection of the waiter stays silent: the client learns of the grant by the message.
        holder.send(&["DLOCK.RELEASE", "key", "holder"]);
        let message = channel.message();
        server.kill9();
        let fence =
            message.strip_prefix(&format!("secret-{round} granted ")).expect("the message of a grant");
        let fence: i64 = fence.parse().expect("a fence");
        server.restart();
        let mut conn = server.connect();
        let claimed = conn.ok(&ask);
        assert_eq!(claimed.int(), fence, "round {round}: the hold of {message:?} is lost");
        assert_eq!(conn.ok(&format!("DLOCK.RELEASE key waiter-{round}")).int(), 1);
        last = fence;
    }
}
