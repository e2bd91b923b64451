//! A master replicates a changed lock as an effect (`DLOCK._SET`). A replica with an older module counts the
//! effects that it cannot apply, and lacks their holds. The grace period after the promotion of the replica
//! covers these holds.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use dlock_testkit::{Server, ServerKind, aof, each_server, encode, parse, until};

/// A fake master without data, which sends the bytes of the test. It ends with the test's process.
struct Master {
    port: u16,
    /// Stream to each replica that has connected.
    replicas: Receiver<TcpStream>,
}

impl Master {
    fn start() -> Master {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("the listener has a port").port();
        let (send, replicas) = channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                if let Some(stream) = stream.ok().and_then(answer_handshake) {
                    let _ = send.send(stream);
                }
            }
        });
        Master { port, replicas }
    }

    /// Makes `replica` a replica and returns the stream to it.
    fn link(&self, replica: &Server) -> TcpStream {
        assert_eq!(replica.connect().ok(&format!("REPLICAOF 127.0.0.1 {}", self.port)), "OK");
        let stream = self.replicas.recv().expect("the replica connects");
        until("the link is up", || replica.info("master_link_status") == "up");
        stream
    }
}

/// Waits until the replica has counted this many effects that it cannot apply.
#[track_caller]
fn until_skipped(replica: &Server, count: i64) {
    until(&format!("{count} effects are skipped"), || replica.number("dlock_effects_skipped") == count);
}

/// Answers a replica's handshake, up to and including the snapshot. `None` if the replica disconnects.
fn answer_handshake(mut stream: TcpStream) -> Option<TcpStream> {
    let (mut received, mut bytes) = (Vec::new(), [0; 1024]);
    loop {
        let count = stream.read(&mut bytes).ok().filter(|count| *count > 0)?;
        received.extend(&bytes[..count]);
        while let Some((command, length)) = parse(&received) {
            received.drain(..length);
            let word = command.items()[0].text().to_uppercase();
            if word == "PSYNC" || word == "SYNC" {
                // An empty snapshot. A checksum of 0 is not checked.
                let snapshot = [&b"REDIS0009\xff"[..], &[0; 8]].concat();
                write!(stream, "+FULLRESYNC {} 0\r\n${}\r\n", "a".repeat(40), snapshot.len()).ok()?;
                stream.write_all(&snapshot).ok()?;
                return Some(stream);
            }
            stream.write_all(if word == "PING" { b"+PONG\r\n" } else { b"+OK\r\n" }).ok()?;
        }
    }
}

/// Returns the DUMP payload of a lock from a module with layout version 9.
fn dump_of_version_9(kind: &ServerKind) -> Vec<u8> {
    let server = Server::options(kind).conf("rdbcompression no").start();
    let mut conn = server.connect();
    conn.ok("DLOCK.ACQUIRE k t 600000");
    let mut payload = conn.ok("DUMP k").bytes().to_vec();
    // The payload: 10 bytes of type and module name, string marker, length (one byte below 64, else two),
    // lock, checksum. The upper four bits of the lock's first byte are its layout version.
    let (version, end) = (if payload[11] < 64 { 12 } else { 13 }, payload.len() - 8);
    assert_eq!(payload[end..], checksum(&payload[..end]).to_le_bytes());
    payload[version] = 0x90;
    let new = checksum(&payload[..end]).to_le_bytes();
    payload[end..].copy_from_slice(&new);
    payload
}

/// Returns the CRC-64 (Jones) of the bytes.
fn checksum(bytes: &[u8]) -> u64 {
    let shifted = |crc: u64| (crc >> 1) ^ if crc & 1 == 1 { 0x95ac_9329_ac4b_c9b5 } else { 0 };
    bytes.iter().fold(0, |crc, byte| (0..8).fold(crc ^ u64::from(*byte), |crc, _| shifted(crc)))
}

#[each_server]
fn unknown_effects_of_a_newer_master_are_counted_and_promotion_begins_a_grace_period(kind: &ServerKind) {
    let (master, replica) = (Master::start(), Server::start(kind));
    let mut conn = replica.connect();
    assert_eq!(conn.ok("CONFIG SET dlock.restart-grace 600000"), "OK");
    let mut link = master.link(&replica);
    // An effect has a fence and a change. The fence is the greatest of the master, and any version can read
    // it. The change has layout version 9 (the upper four bits of 0x91), which this module cannot read.
    let fence = 1_900_000_000_000_000_u64;
    let effect = [&fence.to_le_bytes()[..], &[0x91, 2, 3]].concat();
    for key in ["k", "l"] {
        let command = encode(&[&b"DLOCK._SET"[..], key.as_bytes(), &effect]);
        link.write_all(&command).expect("the link is open");
    }
    until_skipped(&replica, 2);
    // The master replicates a restored lock as RESTORE.
    let restore = encode(&[b"RESTORE", &b"restored"[..], b"0", &dump_of_version_9(kind)]);
    link.write_all(&restore).expect("the link is open");
    until_skipped(&replica, 3);
    assert_eq!((replica.number("dlock_fence"), conn.ok("DBSIZE")), (fence as i64, 0.into()));
    replica.promote();
    assert!(conn.say("DLOCK.ACQUIRE k t 1000").error().starts_with("GRACE "));
}

/// A master may replicate an ACQUIRE verbatim instead of an effect. A replica derives the fence and the time
/// of this grant from the effect before it. Without that effect, the replica skips the ACQUIRE.
#[each_server]
fn a_verbatim_grant_is_skipped_and_counted_when_the_effect_before_it_is_missing(kind: &ServerKind) {
    let (master, replica) = (Master::start(), Server::start(kind));
    let mut conn = replica.connect();
    let mut link = master.link(&replica);
    let mut send = |words: &[&[u8]]| link.write_all(&encode(words)).expect("the link is open");
    send(&[b"DLOCK.ACQUIRE", b"k", b"t", b"600000"]);
    until_skipped(&replica, 1);
    let effect = {
        let server = Server::options(kind).conf("appendonly yes").start();
        server.connect().ok("DLOCK.ACQUIRE k t 600000");
        until("the effect is written", || !aof::commands(server.dir()).is_empty());
        aof::commands(server.dir()).pop().expect("the effect").pop().expect("its bytes")
    };
    send(&[b"DLOCK._SET", b"k", &effect]);
    send(&[b"DLOCK.ACQUIRE", b"l", b"t", b"600000"]);
    until("the replica has read the grant", || conn.ok("DBSIZE") == 2);
    // No master replicates these two verbatim: one has the option SHARED, the other has the ttl MAX.
    send(&[b"DLOCK.ACQUIRE", b"m", b"t", b"600000", b"SHARED"]);
    send(&[b"DLOCK.ACQUIRE", b"m", b"t", b"MAX"]);
    until_skipped(&replica, 3);
    // The replica has skipped grants, so it cannot derive the fence of this one.
    send(&[b"DLOCK.ACQUIRE", b"n", b"t", b"600000"]);
    until_skipped(&replica, 4);
    // The first of these effects lets the replica derive fences again. After the second, which the replica
    // cannot read, the replica skips the next ACQUIRE, too.
    send(&[b"DLOCK._SET", b"k", &effect]);
    let newer = [&effect[..8], &[0x91, 2, 3]].concat();
    send(&[b"DLOCK._SET", b"m", &newer]);
    send(&[b"DLOCK.ACQUIRE", b"n", b"t", b"600000"]);
    until_skipped(&replica, 6);
    assert_eq!(conn.ok("DBSIZE"), 2);
    assert_eq!((conn.ok("DLOCK.HOLDS k t"), conn.ok("DLOCK.HOLDS l t")), (1.into(), 1.into()));
}
