//! A network that is slow and that loses connections: what lies between the clients and one master.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;

use dlock_testkit::Random;

/// Carries bytes to a master and back. Until it is told otherwise it does so at once.
pub struct Proxy {
    port: u16,
    weather: Arc<Weather>,
}

struct Weather {
    master: u16,
    /// Each piece takes up to so many ms; 0: no time.
    delay: AtomicU64,
    /// Once in so many pieces one is lost, and its connection with it; 0: never.
    loses: AtomicUsize,
    random: Mutex<Random>,
    delayed: AtomicUsize,
    lost: AtomicUsize,
}

impl Proxy {
    pub fn to(master: u16, runtime: &Handle, random: Random) -> Proxy {
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0))).expect("a free port");
        let port = listener.local_addr().expect("its own address").port();
        let weather = Arc::new(Weather {
            master,
            delay: AtomicU64::new(0),
            loses: AtomicUsize::new(0),
            random: Mutex::new(random),
            delayed: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
        });
        runtime.spawn(accept(listener, weather.clone()));
        Proxy { port, weather }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn set_delay(&self, most: Duration) {
        self.weather.delay.store(most.as_millis() as u64, Ordering::Relaxed);
    }

    pub fn set_loses(&self, once_in: usize) {
        self.weather.loses.store(once_in, Ordering::Relaxed);
    }

    /// How many pieces were late.
    pub fn delayed(&self) -> usize {
        self.weather.delayed.load(Ordering::Relaxed)
    }

    /// How many were lost.
    pub fn lost(&self) -> usize {
        self.weather.lost.load(Ordering::Relaxed)
    }
}

impl Weather {
    /// What happens to the next piece: it arrives after a while, or never.
    fn next(&self) -> Option<Duration> {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        let loses = self.loses.load(Ordering::Relaxed);
        if loses > 0 && random.once_in(loses) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let most = self.delay.load(Ordering::Relaxed) as usize;
        Some(Duration::from_millis(random.below(most + 1) as u64))
    }
}

async fn accept(listener: TcpListener, weather: Arc<Weather>) {
    loop {
        if let Ok((client, _)) = listener.accept().await {
            tokio::spawn(carry(client, weather.clone()));
        }
    }
}

/// Until one side hangs up or a piece is lost, which the other side then notices too.
async fn carry(client: TcpStream, weather: Arc<Weather>) -> io::Result<()> {
    let master = TcpStream::connect(("127.0.0.1", weather.master)).await?;
    client.set_nodelay(true)?;
    master.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_master, to_master) = master.into_split();
    tokio::select! {
        done = pour(from_client, to_master, &weather) => done,
        done = pour(from_master, to_client, &weather) => done,
    }
}

async fn pour(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, weather: &Weather) -> io::Result<()> {
    let mut piece = [0; 4096];
    loop {
        let length = from.read(&mut piece).await?;
        let Some(delay) = weather.next().filter(|_| length > 0) else { return Ok(()) };
        if !delay.is_zero() {
            weather.delayed.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(delay).await;
        }
        to.write_all(&piece[..length]).await?;
    }
}
