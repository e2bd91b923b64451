//! A member that sends unrequested data without an end.

use super::proxies::Liar;
use super::*;

/// Acquires a hold at two honest members and the proxy.
async fn held(servers: &[Server], liar: &Liar) -> (Client, Guard) {
    let builder = Client::builder().servers(servers[..2].iter().map(url)).server(liar.url());
    // A long timeout: the client must not leave the member for its silence.
    let client = builder.node_timeout(Duration::from_secs(5)).build().await.expect("a client");
    let guard = client.lock("r").ttl(TTL).await.expect("the lock is free");
    (client, guard)
}

fn until_found_out(client: &Client, what: &str) {
    until("the client finds the fault", || {
        let unusable = client.unusable();
        let found = unusable.0.first();
        if let Some(liar) = found {
            assert!(matches!(&liar.state, NodeState::Failed(why) if why.contains(what)), "{unusable}");
        }
        found.is_some()
    });
}

/// Longer than a busy machine takes to read and free a large reply.
const TTL: Duration = Duration::from_secs(6);

/// Waits for at least two renewals.
fn until_renewed(guard: &Guard) {
    let before = guard.valid_until();
    until("the hold is renewed", || {
        assert_eq!(guard.loss(), None);
        guard.valid_until() > before + TTL / 2
    });
}

#[each_server]
async fn a_member_that_floods_with_messages_ends_no_hold(kind: &ServerKind) {
    let servers = masters(kind, 3);
    for message in [
        &b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nr\r\n"[..],
        b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
        b":1\r\n",
    ] {
        let liar = Liar::before(&servers[2], b"", message);
        let (client, guard) = held(&servers, &liar).await;
        liar.lie();
        until("the proxy lies", || liar.taken() > 0);
        until_renewed(&guard);
        if message.starts_with(b">2") {
            until_found_out(&client, "floods the connection");
        }
        guard.release().await.expect("a majority holds it");
    }
}

#[each_server]
async fn a_reply_without_an_end_ends_no_hold_and_fills_no_memory(kind: &ServerKind) {
    let servers = masters(kind, 3);
    for (first, again) in
        [(&b"$9000000000\r\n"[..], &b"x"[..]), (b"*2147483647\r\n", b":1\r\n"), (b"+", b"x")]
    {
        let liar = Liar::before(&servers[2], first, again);
        let (client, guard) = held(&servers, &liar).await;
        liar.lie();
        until_found_out(&client, "its reply is longer");
        until_renewed(&guard);
        guard.release().await.expect("a majority holds it");
        // A part of the bytes is in kernel buffers.
        let taken = liar.taken();
        assert!(taken < 16 << 20, "{taken} bytes");
    }
}

/// A waiting client subscribes to a channel, and PUBSUB CHANNELS shows its name to every user.
#[each_server]
async fn a_flood_of_published_messages_ends_no_hold(kind: &ServerKind) {
    let servers = masters(kind, 1);
    let mut conn = servers[0].connect();
    let channels = |conn: &mut Conn| -> Vec<String> {
        conn.ok("PUBSUB CHANNELS dlock:*").items().iter().map(Value::text).collect()
    };
    let client = client(&servers).await;
    let guard = client.lock("r").ttl(LONG).await.expect("the lock is free");
    let [channel] = &channels(&mut conn)[..] else { panic!("not one channel") };
    // Longer than any reply that the client accepts: it opens another connection, without the channel.
    conn.send(&["PUBLISH", channel, &"x".repeat(9 << 20)]);
    assert_eq!(conn.read(), 1);
    until("the client has closed the connection", || channels(&mut conn).is_empty());
    guard.extend(LONG).await.expect("the client has opened another connection");
    assert_eq!(guard.loss(), None);
    assert_eq!(channels(&mut conn), Vec::<String>::new());
    guard.release().await.expect("the lock is held");
}
