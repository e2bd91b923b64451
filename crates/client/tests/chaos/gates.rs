//! A network between the nodes of a cluster, and between them and the clients. It can be split: then nodes of
//! different parts neither see nor replicate each other. Clients reach all of them.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A cluster's bus has the port that is this much higher than that of the clients.
pub const BUS: u16 = 10_000;
/// A node connects to other nodes from 127.0.0.FIRST_SOURCE plus its place. Clients connect from 127.0.0.1.
const FIRST_SOURCE: u8 = 11;

pub struct Gates {
    /// The part of each node.
    parts: watch::Sender<Vec<usize>>,
    network: Handle,
}

/// The way to one node: the two ports that the node announces. Closes with this value.
pub struct Gate {
    pub port: u16,
    pub bus_port: u16,
    /// The port of the node itself.
    node_port: Arc<AtomicU16>,
    listening: [JoinHandle<()>; 2],
}

impl Gates {
    pub fn new(nodes: usize, network: &Handle) -> Gates {
        Gates { parts: watch::Sender::new(vec![0; nodes]), network: network.clone() }
    }

    /// Opens a gate on two new ports.
    pub fn open(&self, node: usize) -> Gate {
        let node_port = Arc::<AtomicU16>::default();
        let [(port, first), (bus_port, second)] = [0, BUS].map(|offset| {
            let listener = self.network.block_on(TcpListener::bind(("127.0.0.1", 0))).expect("a free port");
            let port = listener.local_addr().expect("its own address").port();
            let serving = accept(listener, node, node_port.clone(), offset, self.parts.subscribe());
            (port, self.network.spawn(serving))
        });
        Gate { port, bus_port, node_port, listening: [first, second] }
    }

    /// Splits the network. Connections between different parts close, and new ones close at once.
    pub fn split(&self, part_of: impl Fn(usize) -> usize) {
        self.parts.send_modify(|parts| (0..).zip(parts).for_each(|(node, part)| *part = part_of(node)));
    }

    pub fn heal(&self) {
        self.split(|_| 0);
    }
}

impl Gate {
    /// Returns the lines of configuration of the node behind this gate.
    pub fn conf(&self, node: usize) -> [String; 4] {
        [
            "cluster-announce-ip 127.0.0.1".into(),
            format!("cluster-announce-port {}", self.port),
            format!("cluster-announce-bus-port {}", self.bus_port),
            format!("bind-source-addr 127.0.0.{}", usize::from(FIRST_SOURCE) + node),
        ]
    }

    /// Sets where the gate leads.
    pub fn lead_to(&self, node_port: u16) {
        self.node_port.store(node_port, Relaxed);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.listening.iter().for_each(JoinHandle::abort);
    }
}

async fn accept(
    listener: TcpListener,
    to: usize,
    node_port: Arc<AtomicU16>,
    offset: u16,
    parts: watch::Receiver<Vec<usize>>,
) {
    loop {
        let Ok((client, peer)) = listener.accept().await else { continue };
        let from = match peer.ip() {
            IpAddr::V4(address) => address.octets()[3].checked_sub(FIRST_SOURCE).map(usize::from),
            IpAddr::V6(_) => None,
        };
        tokio::spawn(serve(client, from, to, node_port.load(Relaxed) + offset, parts.clone()));
    }
}

/// Forwards bytes in both directions until one side closes, or the network between both is split.
async fn serve(
    mut client: TcpStream,
    from: Option<usize>,
    to: usize,
    port: u16,
    mut parts: watch::Receiver<Vec<usize>>,
) -> std::io::Result<()> {
    let is_split = |parts: &Vec<usize>| from.is_some_and(|from| parts[from] != parts[to]);
    if is_split(&parts.borrow()) {
        return Ok(());
    }
    let mut node = TcpStream::connect(("127.0.0.1", port)).await?;
    client.set_nodelay(true)?;
    node.set_nodelay(true)?;
    tokio::select! {
        copied = copy_bidirectional(&mut client, &mut node) => copied.map(drop),
        _ = parts.wait_for(is_split) => Ok(()),
    }
}
