//! Lost and late messages between a server and its client.

use dlock_client::{Client, ReleaseError, Wait};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::{LONG, until_nothing_is_left};
use dlock_testkit::{Server, ServerKind, each_server, until};

/// A proxy that forwards everything until a command contains `word`. Later replies of that connection are
/// lost.
pub struct Lossy {
    port: u16,
    /// True if the next such command starts the fault.
    armed: Arc<AtomicBool>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The connection closes.
    Closes,
    /// The connection stays open and sends nothing.
    Hangs,
    /// The connection stays open, and the command arrives only after the next call of `lose_the_next`.
    Late,
    /// The connection closes at once, and the command arrives only after the next call of `lose_the_next`.
    ClosesAndLate,
    /// The command does not arrive, and the connection closes.
    Never,
}

impl Lossy {
    pub fn before(server: &Server, word: &'static str, loss: Loss) -> Lossy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (behind, armed) = (server.port(), Arc::<AtomicBool>::default());
        let arming = armed.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", behind)) else { return };
                let lost = Arc::<AtomicBool>::default();
                let (from, to) =
                    (client.try_clone().expect("a socket"), server.try_clone().expect("a socket"));
                let (armed, loses) = (arming.clone(), lost.clone());
                thread::spawn(move || commands(from, to, word, loss, &armed, &loses));
                thread::spawn(move || answers(server, client, loss, &lost));
            }
        });
        Lossy { port, armed }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub async fn client(&self, node_timeout: Duration) -> Client {
        let builder = Client::builder().server(self.url());
        builder.node_timeout(node_timeout).build().await.expect("a client")
    }

    pub fn lose_the_next(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    /// Returns whether the fault has happened.
    pub fn has_lost(&self) -> bool {
        !self.armed.load(Ordering::SeqCst)
    }
}

/// Each read returns complete commands.
fn commands(
    mut from: TcpStream,
    mut to: TcpStream,
    word: &str,
    loss: Loss,
    armed: &AtomicBool,
    lost: &AtomicBool,
) {
    let mut part = [0; 65_536];
    while let Ok(read @ 1..) = from.read(&mut part) {
        let has_word = part[..read].windows(word.len()).any(|bytes| bytes == word.as_bytes());
        if has_word && armed.swap(false, Ordering::SeqCst) {
            lost.store(true, Ordering::SeqCst);
            if loss == Loss::Never {
                break;
            }
            if loss == Loss::ClosesAndLate {
                let _ = from.shutdown(Shutdown::Both);
            }
            while matches!(loss, Loss::Late | Loss::ClosesAndLate) && !armed.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
        }
        if to.write_all(&part[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

fn answers(mut from: TcpStream, mut to: TcpStream, loss: Loss, lost: &AtomicBool) {
    let mut part = [0; 65_536];
    while let Ok(read @ 1..) = from.read(&mut part) {
        match (lost.load(Ordering::SeqCst), loss) {
            (false, _) if to.write_all(&part[..read]).is_ok() => {}
            (true, Loss::Hangs | Loss::Late) => {}
            _ => break,
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

#[each_server]
async fn a_release_without_an_answer_is_not_reported_as_a_lost_hold(kind: &ServerKind) {
    let server = Server::start(kind);
    let proxy = Lossy::before(&server, "DLOCK.RELEASE", Loss::Closes);
    let client = proxy.client(Duration::from_secs(5)).await;
    let guard = client.lock("r").ttl(LONG).await.expect("the lock is free");
    proxy.lose_the_next();
    let why = guard.release().await.expect_err("nobody knows");
    assert!(matches!(why, ReleaseError::Unconfirmed(_)), "{why:?}");
    assert!(why.to_string().contains("no answer in time"), "{why}");
    until_nothing_is_left(&[server], "r");
}

/// An ephemeral hold belongs to one connection; another connection may succeed.
#[each_server]
async fn an_ephemeral_acquire_is_not_repeated_at_a_silent_member(kind: &ServerKind) {
    let server = Server::start(kind);
    let proxy = Lossy::before(&server, "DLOCK.ACQUIRE", Loss::Hangs);
    let client = proxy.client(Duration::from_secs(1)).await;
    proxy.lose_the_next();
    let lock = client.lock("r").ttl(LONG).ephemeral().wait(Wait::For(LONG));
    let guard = tokio::time::timeout(Duration::from_secs(30), lock).await.expect("by another connection");
    guard.expect("the lock is free").release().await.expect("the lock is held");
    until("nothing is left", || server.info("dlock_held") == "0");
}
