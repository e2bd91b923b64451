//! A member that sends unrequested data without an end.

use dlock_client::{Client, Guard, NodeState};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::{LONG, client, masters, url};
use dlock_testkit::{Conn, Server, ServerKind, Value, each_server, until};

/// A proxy of a member. After `lie` it sends data that the member did not send.
struct Liar {
    port: u16,
    lies: Arc<AtomicBool>,
    /// Most bytes that one connection accepted.
    taken: Arc<AtomicU64>,
}

impl Liar {
    /// Sends `first` once, and then `again` without an end.
    fn before(server: &Server, first: &'static [u8], again: &'static [u8]) -> Liar {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (lies, taken) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (behind, lying, taking) = (server.port(), lies.clone(), taken.clone());
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", behind)) else { return };
                let (from, to) =
                    (client.try_clone().expect("a socket"), server.try_clone().expect("a socket"));
                thread::spawn(move || pass_on(from, to));
                let (lying, taking) = (lying.clone(), taking.clone());
                thread::spawn(move || lie(&server, client, first, again, &lying, &taking));
            }
        });
        Liar { port, lies, taken }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn lie(&self) {
        self.lies.store(true, Ordering::Relaxed);
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
}

/// Sends only while the member is silent, so that no reply is interrupted.
fn lie(
    mut server: &TcpStream,
    mut client: TcpStream,
    first: &[u8],
    again: &[u8],
    lies: &AtomicBool,
    taken: &AtomicU64,
) {
    server.set_read_timeout(Some(Duration::from_millis(1))).expect("a timeout");
    let (mut part, mut said, again) = ([0; 65_536], 0, again.repeat(4096 / again.len()));
    loop {
        match server.read(&mut part) {
            Ok(0) => break,
            Ok(read) => {
                let passes_on = said == 0 || first.is_empty();
                if passes_on && client.write_all(&part[..read]).is_err() {
                    break;
                }
                continue;
            }
            Err(why) if why.kind() == ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
        if lies.load(Ordering::Relaxed) {
            let words = if said == 0 { first } else { &[] };
            if client
                .write_all(words)
                .and_then(|()| (0..64).try_for_each(|_| client.write_all(&again)))
                .is_err()
            {
                break;
            }
            said += 64 * again.len() as u64;
            taken.fetch_max(said, Ordering::Relaxed);
        }
    }
    let _ = server.shutdown(Shutdown::Both);
}

/// Acquires a hold at two honest members and the proxy.
async fn held(servers: &[Server], liar: &Liar) -> (Client, Guard) {
    let builder = Client::builder().servers(servers[..2].iter().map(url)).server(liar.url());
    // A long timeout: the client must not leave the member for its silence.
    let client = builder.node_timeout(Duration::from_secs(5)).build().await.expect("a client");
    let guard = client.lock("r").ttl(TTL).await.expect("the lock is free");
    (client, guard)
}

fn until_found_out(client: &Client, what: &str) {
    until("it is found out", || {
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
        until("it lies", || liar.taken.load(Ordering::Relaxed) > 0);
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
        let taken = liar.taken.load(Ordering::Relaxed);
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
