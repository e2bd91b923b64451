//! A slow and lossy network between the clients, or one client, and a master.

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
    weather: Arc<Weather>,
}

/// Interval at which a connection with losses checks whether it may close.
const LOOK: Duration = Duration::from_millis(5);

/// Kind of loss while the connections stay open. Connections with losses close afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    Nothing,
    Requests,
    Answers,
    Both,
    /// Pushed messages, so that a connection continues without them.
    Messages,
    /// The connections close instead.
    Closed,
}

struct Weather {
    master: u16,
    /// Greatest random delay of a piece in ms; 0 means none.
    delay: AtomicU64,
    /// Constant additional delay in µs.
    latency: AtomicU64,
    /// One in this many pieces is lost with its connection; 0 means none.
    loses: AtomicUsize,
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
        let weather = Arc::new(Weather {
            master,
            delay: AtomicU64::new(0),
            latency: AtomicU64::new(0),
            loses: AtomicUsize::new(0),
            cut: AtomicU8::new(Cut::Nothing as u8),
            random: Mutex::new(random),
            delayed: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
        });
        runtime.spawn(accept(listener, weather.clone()));
        Proxy { port, weather }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn set_delay(&self, most: Duration) {
        self.weather.delay.store(most.as_millis() as u64, Ordering::Relaxed);
    }

    pub fn set_latency(&self, one_way: Duration) {
        self.weather.latency.store(one_way.as_micros() as u64, Ordering::Relaxed);
    }

    pub fn set_loses(&self, once_in: usize) {
        self.weather.loses.store(once_in, Ordering::Relaxed);
    }

    pub fn set_cut(&self, cut: Cut) {
        self.weather.cut.store(cut as u8, Ordering::Relaxed);
    }

    /// Returns the number of delayed pieces.
    pub fn delayed(&self) -> usize {
        self.weather.delayed.load(Ordering::Relaxed)
    }

    /// Returns the number of lost pieces.
    pub fn lost(&self) -> usize {
        self.weather.lost.load(Ordering::Relaxed)
    }
}

impl Weather {
    /// Returns the delay of the next piece, or `None` if it is lost.
    fn next(&self) -> Option<Duration> {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        let loses = self.loses.load(Ordering::Relaxed);
        if self.is_cut(Cut::Closed) || (loses > 0 && random.once_in(loses)) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let most = self.delay.load(Ordering::Relaxed) as usize;
        let random = Duration::from_millis(random.below(most + 1) as u64);
        Some(random + Duration::from_micros(self.latency.load(Ordering::Relaxed)))
    }

    fn swallows(&self, this: Cut) -> bool {
        self.is_cut(this) || self.is_cut(Cut::Both) || (this == Cut::Answers && self.is_cut(Cut::Messages))
    }

    fn is_cut(&self, cut: Cut) -> bool {
        self.cut.load(Ordering::Relaxed) == cut as u8
    }
}

async fn accept(listener: TcpListener, weather: Arc<Weather>) {
    loop {
        if let Ok((client, _)) = listener.accept().await
            && !weather.is_cut(Cut::Closed)
        {
            tokio::spawn(carry(client, weather.clone()));
        }
    }
}

/// Forwards until one side closes or a piece is lost, which closes the other side too.
async fn carry(client: TcpStream, weather: Arc<Weather>) -> io::Result<()> {
    let master = TcpStream::connect(("127.0.0.1", weather.master)).await?;
    client.set_nodelay(true)?;
    master.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_master, to_master) = master.into_split();
    tokio::select! {
        done = pour(from_client, to_master, &weather, Cut::Requests) => done,
        done = pour(from_master, to_client, &weather, Cut::Answers) => done,
    }
}

/// Pieces travel in parallel and keep their order.
async fn pour(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    weather: &Weather,
    this: Cut,
) -> io::Result<()> {
    let (sender, mut under_way) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let read = async {
        let (mut piece, mut last) = ([0; 4096], Instant::now());
        loop {
            let length = from.read(&mut piece).await?;
            let Some(delay) = weather.next().filter(|_| length > 0) else { return Ok(()) };
            if weather.swallows(this) {
                weather.lost.fetch_add(1, Ordering::Relaxed);
                if weather.is_cut(Cut::Messages) {
                    continue;
                }
                // A lost piece never arrives later, and the rest of the stream is not forwarded. The
                // connection closes in the end, so that no client waits for ever.
                while weather.swallows(this) {
                    sleep_until(Instant::now() + LOOK).await;
                }
                return Ok(());
            }
            if !delay.is_zero() {
                weather.delayed.fetch_add(1, Ordering::Relaxed);
            }
            last = last.max(Instant::now() + delay);
            let _ = sender.send((last, piece[..length].to_vec()));
        }
    };
    let write = async {
        while let Some((due, piece)) = under_way.recv().await {
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
