//! A slow and lossy network between clients and a master.

use std::io;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use dlock_testkit::Random;

/// Forwards bytes to a master and back, without delay by default.
pub struct Proxy {
    port: u16,
    network: Arc<Network>,
}

/// Interval at which a connection that has lost bytes checks whether the loss has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Kind of loss. With `Requests`, `Answers` and `BothWays`, the connections stay open during the loss, and
/// those that have lost bytes close at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    Nothing,
    Requests,
    Answers,
    BothWays,
    /// Pub/Sub messages. The client does not notice their loss. Everything else arrives.
    Messages,
    /// Everything. An open connection closes at the next bytes, a new one at once.
    Closed,
}

struct Network {
    master: u16,
    /// Greatest random delay of a piece in ms; 0 means none. A piece is the data of one read.
    delay: AtomicU64,
    /// Constant additional delay in µs.
    latency: AtomicU64,
    /// One in `loses_one_in` pieces is lost with its connection; 0 means none.
    loses_one_in: AtomicUsize,
    cut: AtomicU8,
    random: Mutex<Random>,
    delayed: AtomicUsize,
    lost: AtomicUsize,
}

impl Proxy {
    pub fn to(master: u16, runtime: &Handle, random: Random) -> Proxy {
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0))).expect("a free port");
        Proxy::at(listener, master, runtime, random)
    }

    pub fn at(listener: TcpListener, master: u16, runtime: &Handle, random: Random) -> Proxy {
        let port = listener.local_addr().expect("its own address").port();
        let network = Arc::new(Network {
            master,
            delay: AtomicU64::new(0),
            latency: AtomicU64::new(0),
            loses_one_in: AtomicUsize::new(0),
            cut: AtomicU8::new(Cut::Nothing as u8),
            random: Mutex::new(random),
            delayed: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
        });
        runtime.spawn(accept(listener, network.clone()));
        Proxy { port, network }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn set_delay(&self, max: Duration) {
        self.network.delay.store(max.as_millis() as u64, Ordering::Relaxed);
    }

    pub fn set_latency(&self, one_way: Duration) {
        self.network.latency.store(one_way.as_micros() as u64, Ordering::Relaxed);
    }

    pub fn set_loses_one_in(&self, pieces: usize) {
        self.network.loses_one_in.store(pieces, Ordering::Relaxed);
    }

    pub fn set_cut(&self, cut: Cut) {
        self.network.cut.store(cut as u8, Ordering::Relaxed);
    }

    /// Returns the number of delayed pieces.
    pub fn delayed(&self) -> usize {
        self.network.delayed.load(Ordering::Relaxed)
    }

    /// Returns the number of lost pieces.
    pub fn lost(&self) -> usize {
        self.network.lost.load(Ordering::Relaxed)
    }
}

impl Network {
    /// Returns the delay of the next piece, or `None` if it is lost with its connection.
    fn next(&self) -> Option<Duration> {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        let loses = self.loses_one_in.load(Ordering::Relaxed);
        if self.is_cut(Cut::Closed) || (loses > 0 && random.once_in(loses)) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let max = self.delay.load(Ordering::Relaxed) as usize;
        let delay = Duration::from_millis(random.below(max + 1) as u64);
        Some(delay + Duration::from_micros(self.latency.load(Ordering::Relaxed)))
    }

    /// `direction` is [`Cut::Requests`] or [`Cut::Answers`].
    fn loses(&self, direction: Cut) -> bool {
        self.is_cut(direction) || self.is_cut(Cut::BothWays)
    }

    fn is_cut(&self, cut: Cut) -> bool {
        self.cut.load(Ordering::Relaxed) == cut as u8
    }
}

async fn accept(listener: TcpListener, network: Arc<Network>) {
    loop {
        if let Ok((client, _)) = listener.accept().await
            && !network.is_cut(Cut::Closed)
        {
            tokio::spawn(serve(client, network.clone()));
        }
    }
}

/// Forwards bytes in both directions. When one direction ends, closes both connections.
async fn serve(client: TcpStream, network: Arc<Network>) -> io::Result<()> {
    let master = TcpStream::connect(("127.0.0.1", network.master)).await?;
    client.set_nodelay(true)?;
    master.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_master, to_master) = master.into_split();
    tokio::select! {
        done = forward(from_client, to_master, &network, Cut::Requests) => done,
        done = forward(from_master, to_client, &network, Cut::Answers) => done,
    }
}

/// Forwards one direction. Several pieces can be delayed at the same time. The pieces arrive in order.
async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    network: &Network,
    direction: Cut,
) -> io::Result<()> {
    let (sender, mut receiver) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let read = async {
        let (mut piece, mut last) = ([0; 4096], Instant::now());
        loop {
            let length = from.read(&mut piece).await?;
            let Some(delay) = network.next().filter(|_| length > 0) else { return Ok(()) };
            if network.loses(direction) {
                network.lost.fetch_add(1, Ordering::Relaxed);
                // Without the lost piece, the rest of the stream has no meaning. So the connection closes
                // when the loss ends.
                while network.loses(direction) {
                    sleep_until(Instant::now() + CHECK_INTERVAL).await;
                }
                return Ok(());
            }
            if !delay.is_zero() {
                network.delayed.fetch_add(1, Ordering::Relaxed);
            }
            last = last.max(Instant::now() + delay);
            let mut arriving = piece[..length].to_vec();
            if network.is_cut(Cut::Messages) && remove_message(&mut arriving) {
                network.lost.fetch_add(1, Ordering::Relaxed);
            }
            let _ = sender.send((last, arriving));
        }
    };
    let write = async {
        while let Some((due, piece)) = receiver.recv().await {
            sleep_until(due).await;
            to.write_all(&piece).await?;
        }
        Ok(())
    };
    tokio::select! {
        done = read => done,
        done = write => done,
    }
}

/// Removes the first Pub/Sub message from a piece. Returns whether there was one.
fn remove_message(piece: &mut Vec<u8>) -> bool {
    const START: &[u8] = b">3\r\n$7\r\nmessage\r\n";
    // The three lines of `START`, then the channel and the text, each after its length.
    const LINES: usize = 7;
    let Some(start) = piece.windows(START.len()).position(|bytes| bytes == START) else { return false };
    let mut line_ends = (start..piece.len()).filter(|&at| piece[at] == b'\n');
    let end = line_ends.nth(LINES - 1).expect("the piece contains the whole message");
    piece.drain(start..=end);
    true
}
