//! Ports for servers.

use std::net::{Ipv4Addr, TcpListener};
use std::process;
use std::sync::atomic::{AtomicU16, Ordering};

/// A server has a port from 10,000 to 19,999. A cluster node also uses the port that is 10,000 higher. From
/// 32,768 on, the kernel takes ports for outgoing connections, so no connection takes the port of a server
/// that restarts.
const FIRST: u16 = 10_000;
const COUNT: u16 = 10_000;

/// A port of 127.0.0.1 that no other test takes until this value is dropped, whether or not a server listens
/// there.
///
/// The claim is a socket that is bound to the same port of 127.0.0.2. Every test, in this process or another,
/// makes such a claim before it uses a port. The kernel closes the socket with the process.
pub struct Port {
    number: u16,
    _claim: TcpListener,
}

impl Port {
    pub fn claim() -> Port {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        // Test binaries that run at the same time start at different numbers.
        let start = (process::id() % u32::from(COUNT)) as u16;
        for _ in 0..COUNT {
            let step = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
            let number = FIRST + (start + step) % COUNT;
            let Ok(claim) = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 2), number)) else { continue };
            if is_free(number) && is_free(number + 10_000) {
                return Port { number, _claim: claim };
            }
        }
        panic!("no free port from {FIRST} on");
    }

    pub fn number(&self) -> u16 {
        self.number
    }
}

fn is_free(number: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok()
}
