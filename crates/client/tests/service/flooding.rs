//! A member that sends unrequested data without an end.

use super::proxies::Flood;
use super::*;

/// Acquires `r` on the first two members and, through the proxy, on the third.
async fn hold_through(servers: &[Server], flood: &Flood) -> (Client, Guard) {
    let builder = Client::builder().servers(servers[..2].iter().map(url)).server(flood.url());
    // A flood can hold up the member's replies. The timeout is long, so that the client does not drop the
    // member for a late reply.
    let client = builder.node_timeout(Duration::from_secs(30)).build().await.expect("a client");
    let guard = client.lock("r").ttl(LONG).await.expect("the lock is free");
    (client, guard)
}

/// Extends the hold. Repeats a failed extension, because on a busy machine, the first two members may answer
/// late.
async fn extend(guard: &Guard) {
    let begun = now();
    while let Err(error) = guard.extend(LONG).await {
        assert_eq!(guard.loss(), None);
        assert!(now().saturating_since(begun) < TIMEOUT, "{error}");
    }
}

/// Extends the hold until the client reports the third member, which the client does only after a request to
/// that member.
async fn until_reported(client: &Client, guard: &Guard, what: &str) {
    let begun = now();
    loop {
        extend(guard).await;
        let unusable = client.unusable();
        if let Some(member) = unusable.0.first() {
            assert!(matches!(&member.state, NodeState::Failed(why) if why.text.contains(what)), "{unusable}");
            return;
        }
        assert!(now().saturating_since(begun) < TIMEOUT, "the client does not report the member as unusable");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[each_server]
async fn a_member_that_floods_with_messages_ends_no_hold(kind: &ServerKind) {
    let servers = masters(kind, 3);
    // An invalidation of a cached key, a subscription and a reply, none of which the client has asked for.
    for message in [
        &b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nr\r\n"[..],
        b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
        b":1\r\n",
    ] {
        let flood = Flood::to(&servers[2], b"", message);
        let (client, guard) = hold_through(&servers, &flood).await;
        flood.begin();
        until("the flood has begun", || flood.accepted() > 0);
        extend(&guard).await;
        // The client may take the other two messages for replies to its requests, and then reports something
        // else, or nothing.
        if message.starts_with(b">2") {
            until_reported(&client, &guard, "flooded the connection").await;
        }
        guard.release().await.expect("a majority has the hold");
    }
}

#[each_server]
async fn a_reply_without_an_end_ends_no_hold_and_fills_no_memory(kind: &ServerKind) {
    let servers = masters(kind, 3);
    for (first, again) in
        [(&b"$9000000000\r\n"[..], &b"x"[..]), (b"*2147483647\r\n", b":1\r\n"), (b"+", b"x")]
    {
        let flood = Flood::to(&servers[2], first, again);
        let (client, guard) = hold_through(&servers, &flood).await;
        flood.begin();
        until_reported(&client, &guard, "its reply is longer").await;
        extend(&guard).await;
        guard.release().await.expect("a majority has the hold");
        // The client accepts replies of up to 8 MiB. The number also includes bytes in kernel buffers.
        let accepted = flood.accepted();
        assert!(accepted < 16 << 20, "the client accepted {accepted} bytes");
    }
}

/// A client subscribes to a channel for messages about its waits. Any user can read the name of the channel
/// in PUBSUB CHANNELS, and publish there.
#[each_server]
async fn a_published_message_that_is_too_long_ends_no_hold(kind: &ServerKind) {
    let servers = masters(kind, 1);
    let mut conn = servers[0].connect();
    let channels = |conn: &mut Conn| -> Vec<String> {
        conn.ok("PUBSUB CHANNELS dlock:*").items().iter().map(Value::text).collect()
    };
    let client = client(&servers).await;
    let guard = client.lock("r").ttl(LONG).await.expect("the lock is free");
    let [channel] = &channels(&mut conn)[..] else { panic!("the client has one channel") };
    // Longer than any reply that the client accepts. The client then opens another connection, which does not
    // subscribe to the channel, so that no further message can close it.
    conn.send(&["PUBLISH", channel, &"x".repeat(9 << 20)]);
    assert_eq!(conn.read(), 1);
    until("the client has closed the connection", || channels(&mut conn).is_empty());
    guard.extend(LONG).await.expect("the client has opened another connection");
    assert_eq!(guard.loss(), None);
    assert_eq!(channels(&mut conn), Vec::<String>::new());
    guard.release().await.expect("the lock is held");
}
