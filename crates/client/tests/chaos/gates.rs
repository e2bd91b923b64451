//! A network between servers, and between them and the clients. It can be split: then servers of different
//! parts neither see nor replicate each other. Clients reach all of them.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A server connects to others from 127.0.0.FIRST_SOURCE plus its place. Clients connect from 127.0.0.1.
const FIRST_SOURCE: u8 = 11;

pub struct Gates {
    /// The part of each server.
    parts: watch::Sender<Vec<usize>>,
    network: Handle,
}

/// The way to a port of a server: the port that the server announces instead. Closes with this value.
pub struct Gate {
    pub port: u16,
    target: Arc<AtomicU16>,
    listening: JoinHandle<()>,
}

impl Gates {
    pub fn new(servers: usize, network: &Handle) -> Gates {
        Gates { parts: watch::Sender::new(vec![0; servers]), network: network.clone() }
    }

    /// Opens a gate on a new port.
    pub fn open(&self, place: usize) -> Gate {
        let target = Arc::<AtomicU16>::default();
        let listener = self.network.block_on(TcpListener::bind(("127.0.0.1", 0))).expect("a free port");
        let port = listener.local_addr().expect("its own address").port();
        let listening = self.network.spawn(accept(listener, place, target.clone(), self.parts.subscribe()));
        Gate { port, target, listening }
    }

    /// Splits the network. Old and new connections between different parts stay open, but nothing arrives.
    pub fn split(&self, part_of: impl Fn(usize) -> usize) {
        self.parts.send_modify(|parts| (0..).zip(parts).for_each(|(place, part)| *part = part_of(place)));
    }

    /// Ends the split, and closes the connections that it affected.
    pub fn heal(&self) {
        self.split(|_| 0);
    }
}

/// Returns the line of configuration by which the gates know the connections of a server.
pub fn source(place: usize) -> String {
    format!("bind-source-addr 127.0.0.{}", usize::from(FIRST_SOURCE) + place)
}

impl Gate {
    /// Sets where the gate leads.
    pub fn lead_to(&self, port: u16) {
        self.target.store(port, Relaxed);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn accept(
    listener: TcpListener,
    to: usize,
    target: Arc<AtomicU16>,
    parts: watch::Receiver<Vec<usize>>,
) {
    loop {
        let Ok((client, peer)) = listener.accept().await else { continue };
        let from = match peer.ip() {
            IpAddr::V4(address) => address.octets()[3].checked_sub(FIRST_SOURCE).map(usize::from),
            IpAddr::V6(_) => None,
        };
        tokio::spawn(serve(client, from, to, target.load(Relaxed), parts.clone()));
    }
}

/// Forwards bytes in both directions until one side closes. If the network between both is split, falls
/// silent until it is healed, and then closes both sides.
async fn serve(
    mut client: TcpStream,
    from: Option<usize>,
    to: usize,
    port: u16,
    mut parts: watch::Receiver<Vec<usize>>,
) {
    let is_split = |parts: &Vec<usize>| from.is_some_and(|from| parts[from] != parts[to]);
    let mut forwarding = pin!(async {
        let mut server = TcpStream::connect(("127.0.0.1", port)).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        copy_bidirectional(&mut client, &mut server).await
    });
    tokio::select! {
        biased;
        _ = parts.wait_for(is_split) => {}
        _ = &mut forwarding => return,
    }
    // Both connections close only when `forwarding` is dropped.
    let _ = parts.wait_for(|parts| !is_split(parts)).await;
}
