//! A slow and lossy network between clients and a master. It can lose, delay and duplicate Pub/Sub messages.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use dlock_testkit::{Random, Value, parse};

/// Forwards bytes to a master and back, without delay by default.
pub struct Proxy {
    port: u16,
    network: Arc<Network>,
}

/// Interval at which a connection that has lost bytes checks whether the loss has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Greatest delay of the second copy of a message, in ms: longer than a lease of the tests.
const DUPLICATE_DELAY_MS: usize = 2_000;

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
    /// Greatest random delay of a Pub/Sub message in ms. Everything else may overtake a delayed message.
    message_delay: AtomicU64,
    /// Whether each Pub/Sub message arrives twice, the second time after a delay.
    duplicates_messages: AtomicBool,
    /// Called before the delivery of each Pub/Sub message.
    before_message: OnceLock<Box<dyn Fn() + Send + Sync>>,
    random: Mutex<Random>,
    delayed: AtomicUsize,
    lost: AtomicUsize,
    messages: AtomicUsize,
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
            message_delay: AtomicU64::new(0),
            duplicates_messages: AtomicBool::new(false),
            before_message: OnceLock::new(),
            random: Mutex::new(random),
            delayed: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
            messages: AtomicUsize::new(0),
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

    pub fn set_message_delay(&self, max: Duration) {
        self.network.message_delay.store(max.as_millis() as u64, Ordering::Relaxed);
    }

    pub fn set_duplicates_messages(&self, duplicates: bool) {
        self.network.duplicates_messages.store(duplicates, Ordering::Relaxed);
    }

    /// Sets what to do before the delivery of each Pub/Sub message. Can be set once.
    pub fn before_message(&self, act: impl Fn() + Send + Sync + 'static) {
        let is_first = self.network.before_message.set(Box::new(act)).is_ok();
        assert!(is_first, "set before");
    }

    /// Returns the number of Pub/Sub messages.
    pub fn messages(&self) -> usize {
        self.network.messages.load(Ordering::Relaxed)
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

    /// Returns the delays after which a Pub/Sub message arrives: none if it is lost, two if it arrives twice.
    fn arrivals(&self) -> Vec<Duration> {
        self.messages.fetch_add(1, Ordering::Relaxed);
        if self.is_cut(Cut::Messages) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return Vec::new();
        }
        if let Some(act) = self.before_message.get() {
            act();
        }
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        let max = self.message_delay.load(Ordering::Relaxed) as usize;
        let first = Duration::from_millis(random.below(max + 1) as u64);
        let again = Duration::from_millis(random.below(DUPLICATE_DELAY_MS) as u64);
        let duplicates = self.duplicates_messages.load(Ordering::Relaxed);
        [first].into_iter().chain(duplicates.then_some(first + again)).collect()
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
        let (mut piece, mut last, mut unread) = ([0; 4096], Instant::now(), Vec::new());
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
            if direction == Cut::Requests {
                let _ = sender.send((last, piece[..length].to_vec()));
                continue;
            }
            unread.extend_from_slice(&piece[..length]);
            let (arriving, messages) = split(&mut unread);
            let _ = sender.send((last, arriving));
            for message in messages {
                for after in network.arrivals() {
                    let (sender, due, message) = (sender.clone(), last + after, message.clone());
                    if after.is_zero() {
                        let _ = sender.send((due, message));
                        continue;
                    }
                    tokio::spawn(async move {
                        sleep_until(due).await;
                        let _ = sender.send((due, message));
                    });
                }
            }
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

/// Takes the complete values out of `received`. Returns the bytes of the replies, and those of each Pub/Sub
/// message.
fn split(received: &mut Vec<u8>) -> (Vec<u8>, Vec<Vec<u8>>) {
    let (mut replies, mut messages, mut used) = (Vec::new(), Vec::new(), 0);
    while let Some((value, length)) = parse(&received[used..]) {
        let bytes = &received[used..used + length];
        match value {
            // RESP2 sends messages as arrays.
            Value::Array(items) | Value::Push(items) if is_message(&items) => messages.push(bytes.to_vec()),
            _ => replies.extend_from_slice(bytes),
        }
        used += length;
    }
    received.drain(..used);
    (replies, messages)
}

fn is_message(items: &[Value]) -> bool {
    matches!(items, [Value::Bulk(kind), _, _] if kind == b"message")
}
