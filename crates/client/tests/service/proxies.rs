//! Proxies between a client and a server. They lose, delay or invent messages, or lead to another server.

use super::*;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// Opens a port, and calls `serve` with each connection, in a thread of its own. Returns the port.
pub fn listen(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let serve = serve.clone();
            thread::spawn(move || serve(client));
        }
    });
    port
}

fn address(port: u16) -> String {
    format!("redis://127.0.0.1:{port}")
}

fn cloned(socket: &TcpStream) -> TcpStream {
    socket.try_clone().expect("a socket")
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
}

/// A proxy that forwards everything until a command contains `word` while the proxy is armed. From then on
/// the replies of that connection are lost.
pub struct Lossy {
    port: u16,
    /// Set by `lose_the_next`: the next command with the word starts the loss, and clears the flag. Set again
    /// by `deliver`: the proxy delivers the command that it holds back.
    armed: Arc<AtomicBool>,
}

/// What happens to the connection and to the command. The replies are lost in each case.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The connection closes.
    Closes,
    /// The connection stays open and sends nothing.
    Hangs,
    /// The connection stays open, and the command arrives only after a call of `deliver`.
    Late,
    /// The connection closes at once, and the command arrives only after a call of `deliver`.
    ClosesAndLate,
    /// The command does not arrive, and the connection closes.
    NeverArrives,
}

impl Lossy {
    pub fn to(server: &Server, word: &'static str, loss: Loss) -> Lossy {
        let (server_port, armed) = (server.port(), Arc::<AtomicBool>::default());
        let arming = armed.clone();
        let port = listen(move |client| {
            let Ok(server) = TcpStream::connect(("127.0.0.1", server_port)) else { return };
            let (from, to, lost) = (cloned(&client), cloned(&server), &AtomicBool::new(false));
            thread::scope(|scope| {
                scope.spawn(move || forward_replies(server, client, loss, lost));
                forward_commands(from, to, word, loss, &arming, lost);
            });
        });
        Lossy { port, armed }
    }

    pub fn url(&self) -> String {
        address(self.port)
    }

    pub async fn client(&self, node_timeout: Duration) -> Client {
        let builder = Client::builder().server(self.url());
        builder.node_timeout(node_timeout).build().await.expect("a client")
    }

    pub fn lose_the_next(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    /// Delivers the command that the proxy holds back.
    pub fn deliver(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    /// After a call of [`Lossy::lose_the_next`], returns whether the loss has begun.
    pub fn has_lost(&self) -> bool {
        !self.armed.load(Ordering::SeqCst)
    }
}

/// Assumes that each read returns complete commands.
fn forward_commands(
    mut from: TcpStream,
    mut to: TcpStream,
    word: &str,
    loss: Loss,
    armed: &AtomicBool,
    lost: &AtomicBool,
) {
    let mut buffer = [0; 65_536];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        let has_word = buffer[..read].windows(word.len()).any(|bytes| bytes == word.as_bytes());
        if has_word && armed.swap(false, Ordering::SeqCst) {
            lost.store(true, Ordering::SeqCst);
            if loss == Loss::NeverArrives {
                break;
            }
            if loss == Loss::ClosesAndLate {
                let _ = from.shutdown(Shutdown::Both);
            }
            while matches!(loss, Loss::Late | Loss::ClosesAndLate) && !armed.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
        }
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

fn forward_replies(mut from: TcpStream, mut to: TcpStream, loss: Loss, lost: &AtomicBool) {
    let mut buffer = [0; 65_536];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        match (lost.load(Ordering::SeqCst), loss) {
            (false, _) if to.write_all(&buffer[..read]).is_ok() => {}
            (true, Loss::Hangs | Loss::Late) => {}
            _ => break,
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// A proxy of a member. After `begin`, it also sends data of its own to the client, without an end.
pub struct Flood {
    port: u16,
    begun: Arc<AtomicBool>,
    /// Largest number of bytes of the flood that one connection accepted.
    accepted: Arc<AtomicU64>,
}

impl Flood {
    /// The flood is `first`, and then `again` without an end. `first` is empty, or begins a reply that never
    /// ends.
    pub fn to(server: &Server, first: &'static [u8], again: &'static [u8]) -> Flood {
        let (begun, accepted) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (server_port, has_begun, counter) = (server.port(), begun.clone(), accepted.clone());
        let port = listen(move |client| {
            let Ok(server) = TcpStream::connect(("127.0.0.1", server_port)) else { return };
            let (from, to) = (cloned(&client), cloned(&server));
            thread::spawn(move || copy(from, to));
            flood(&server, client, first, again, &has_begun, &counter);
        });
        Flood { port, begun, accepted }
    }

    pub fn url(&self) -> String {
        address(self.port)
    }

    pub fn begin(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }
}

/// Sends the flood only while the member is silent, so that it interrupts no reply. Begins after the reply to
/// HELLO, because the client's library would take an earlier message for that reply.
fn flood(
    mut server: &TcpStream,
    mut client: TcpStream,
    first: &[u8],
    again: &[u8],
    begun: &AtomicBool,
    accepted: &AtomicU64,
) {
    server.set_read_timeout(Some(Duration::from_millis(1))).expect("a timeout");
    let (mut buffer, mut sent, again) = ([0; 65_536], 0, again.repeat(4096 / again.len()));
    let mut has_replied = false;
    loop {
        match server.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => {
                has_replied = true;
                // Once `first` has begun a reply, the bytes of the member are dropped, because they would
                // become part of that reply. An empty `first` begins no reply.
                let passes_on = sent == 0 || first.is_empty();
                if passes_on && client.write_all(&buffer[..read]).is_err() {
                    break;
                }
                continue;
            }
            Err(why) if why.kind() == ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
        if has_replied && begun.load(Ordering::Relaxed) {
            if sent == 0 && client.write_all(first).is_err() {
                break;
            }
            if (0..64).any(|_| client.write_all(&again).is_err()) {
                break;
            }
            sent += 64 * again.len() as u64;
            accepted.fetch_max(sent, Ordering::Relaxed);
        }
    }
    let _ = server.shutdown(Shutdown::Both);
}

/// A proxy whose target server can change. It can also delay new connections.
pub struct Address {
    port: u16,
    state: Arc<(Mutex<Target>, Condvar)>,
}

struct Target {
    leads_to: u16,
    accepts: bool,
    open: Vec<TcpStream>,
    waiting: usize,
}

impl Address {
    pub fn of(server: &Server) -> Address {
        let target = Target { leads_to: server.port(), accepts: true, open: Vec::new(), waiting: 0 };
        let state = Arc::new((Mutex::new(target), Condvar::new()));
        let shared = state.clone();
        let port = listen(move |client| {
            let (target, changed) = &*shared;
            let mut target = target.lock().expect("no panic");
            target.waiting += 1;
            let mut target = changed.wait_while(target, |target| !target.accepts).expect("no panic");
            target.waiting -= 1;
            let Ok(server) = TcpStream::connect(("127.0.0.1", target.leads_to)) else { return };
            target.open.extend([&client, &server].map(cloned));
            drop(target);
            let (from, to) = (cloned(&server), cloned(&client));
            thread::spawn(move || copy(from, to));
            copy(client, server);
        });
        Address { port, state }
    }

    pub fn url(&self) -> String {
        address(self.port)
    }

    fn change(&self, change: impl FnOnce(&mut Target)) {
        change(&mut self.state.0.lock().expect("no panic"));
        self.state.1.notify_all();
    }

    /// Leads new connections to another server, and closes the open ones.
    pub fn lead_to(&self, server: &Server) {
        self.lead_new_connections_to(server);
        self.close_connections();
    }

    /// Leads new connections to another server. The open ones stay with the old server.
    pub fn lead_new_connections_to(&self, server: &Server) {
        self.change(|target| target.leads_to = server.port());
    }

    pub fn set_accepts(&self, accepts: bool) {
        self.change(|target| target.accepts = accepts);
    }

    /// Returns whether a connection is waiting until [`Address::set_accepts`] permits it.
    pub fn has_waiting(&self) -> bool {
        self.state.0.lock().expect("no panic").waiting > 0
    }

    pub fn close_connections(&self) {
        self.change(|target| {
            for socket in target.open.drain(..) {
                let _ = socket.shutdown(Shutdown::Both);
            }
        });
    }
}

/// A proxy that can hold back the requests of its clients. Replies and messages pass.
pub struct Gate {
    port: u16,
    state: Arc<(Mutex<GateState>, Condvar)>,
}

#[derive(Default)]
struct GateState {
    is_closed: bool,
    /// The last bytes that the gate has held back.
    held_back: Vec<u8>,
}

impl Gate {
    pub fn to(server: &Server) -> Gate {
        let (server_port, state) = (server.port(), Arc::<(Mutex<GateState>, Condvar)>::default());
        let shared = state.clone();
        let port = listen(move |mut client| {
            let Ok(mut server) = TcpStream::connect(("127.0.0.1", server_port)) else { return };
            let (from, to) = (cloned(&server), cloned(&client));
            thread::spawn(move || copy(from, to));
            let mut buffer = [0; 65_536];
            while let Ok(read @ 1..) = client.read(&mut buffer) {
                let (state, changed) = &*shared;
                let mut state = state.lock().expect("no panic");
                if state.is_closed {
                    state.held_back = buffer[..read].to_vec();
                }
                drop(changed.wait_while(state, |state| state.is_closed));
                if server.write_all(&buffer[..read]).is_err() {
                    break;
                }
            }
            let _ = server.shutdown(Shutdown::Both);
        });
        Gate { port, state }
    }

    pub fn url(&self) -> String {
        address(self.port)
    }

    pub fn set_closed(&self, closed: bool) {
        *self.state.0.lock().expect("no panic") = GateState { is_closed: closed, held_back: Vec::new() };
        self.state.1.notify_all();
    }

    /// Returns whether the gate holds back a request with this word.
    pub fn holds_back(&self, word: &str) -> bool {
        let state = self.state.0.lock().expect("no panic");
        state.held_back.windows(word.len()).any(|bytes| bytes == word.as_bytes())
    }
}

/// A proxy of a server that, after `begin`, sends its replies in small pieces with pauses.
pub struct Slow {
    port: u16,
    begun: Arc<AtomicBool>,
}

impl Slow {
    const PIECE: usize = 4;
    const PAUSE: Duration = Duration::from_millis(20);

    pub fn to(server: &Server) -> Slow {
        let (server_port, begun) = (server.port(), Arc::<AtomicBool>::default());
        let has_begun = begun.clone();
        let port = listen(move |mut client| {
            let Ok(mut server) = TcpStream::connect(("127.0.0.1", server_port)) else { return };
            let (from, to) = (cloned(&client), cloned(&server));
            thread::spawn(move || copy(from, to));
            let mut buffer = [0; 65_536];
            while let Ok(read @ 1..) = server.read(&mut buffer) {
                for piece in buffer[..read].chunks(Slow::PIECE) {
                    if has_begun.load(Ordering::Relaxed) {
                        thread::sleep(Slow::PAUSE);
                    }
                    if client.write_all(piece).is_err() {
                        return;
                    }
                }
            }
        });
        Slow { port, begun }
    }

    pub fn url(&self) -> String {
        address(self.port)
    }

    pub fn begin(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }
}
