//! An operator that reads and breaks locks, cancels waits, changes options and pauses the server under load.

use std::thread::sleep;
use std::time::Duration;

use dlock_testkit::history::{Break, Report};
use dlock_testkit::workers::{Clock, Plan, report_on};
use dlock_testkit::{Conn, Random, Server, until};

pub struct Operator<'a> {
    server: &'a Server,
    conn: Conn,
    plan: &'a Plan,
    clock: Clock,
    random: Random,
    pub reports: Vec<Report>,
    pub breaks: Vec<Break>,
    /// Number of flushes, pauses and configuration changes.
    pub disturbances: usize,
    /// Number of waits that the operator cancelled.
    pub cancelled: usize,
}

impl<'a> Operator<'a> {
    pub fn new(server: &'a Server, plan: &'a Plan, clock: Clock, random: Random) -> Operator<'a> {
        let conn = server.connect();
        Operator {
            server,
            conn,
            plan,
            clock,
            random,
            reports: vec![],
            breaks: vec![],
            disturbances: 0,
            cancelled: 0,
        }
    }

    /// Performs one random action, mostly a read. Actions do not overlap, so no read falls into a pause.
    pub fn act(&mut self) {
        let key = self.random.of(&self.plan.keys).0.clone();
        match self.random.below(200) {
            0..4 => self.end_by_force(&format!("DLOCK.BREAK {key}"), &[key]),
            4 => self.flush(),
            5..8 => self.cancel(&key),
            8..12 => self.configure(),
            12 => self.pause_clients(),
            13 => self.stop_process(),
            _ => self.read(&key),
        }
        sleep(Duration::from_millis(self.random.below(40) as u64));
    }

    /// Records a report on a key. The checker rejects a report on a free lock with waiters, unless the report
    /// has `grants_paused`: the server grants nothing because of a DELAY, a grace period or a pause. But the
    /// server hides an expired hold a moment before it grants the lock to the head of the queue. So this
    /// function repeats a report on a free lock with waiters until the head is granted the lock.
    fn read(&mut self, key: &str) {
        let is_unserved =
            |report: &Report| report.holders.is_empty() && !report.queue.is_empty() && !report.grants_paused;
        let mut report = report_on(&mut self.conn, key, self.clock);
        let head = report.queue.first().cloned();
        for _ in 0..50 {
            if !is_unserved(&report) || report.queue.first() != head.as_ref() {
                break;
            }
            sleep(Duration::from_millis(5));
            report = report_on(&mut self.conn, key, self.clock);
        }
        // If the queue now has another head, the earlier head may have had the lock until its lease expired.
        // Then the server may be about to serve the new head. So the checker must accept the report, which
        // `grants_paused` makes it do.
        report.grants_paused |= is_unserved(&report) && report.queue.first() != head.as_ref();
        self.reports.push(report);
    }

    /// Runs a command that ends all holds of the keys, and records a BREAK of each key.
    fn end_by_force(&mut self, command: &str, keys: &[String]) {
        let asked = self.clock.now();
        self.conn.ok(command);
        let answered = self.clock.now();
        self.breaks.extend(keys.iter().map(|key| Break { key: key.clone(), asked, answered }));
    }

    /// Flushes all locks. A grace period follows.
    fn flush(&mut self) {
        assert_eq!(self.conn.ok("CONFIG SET dlock.restart-grace 1000"), "OK");
        let keys: Vec<String> = self.plan.keys.iter().map(|(key, _)| key.clone()).collect();
        let flush = *self.random.of(&["FLUSHALL", "FLUSHDB ASYNC"]);
        self.end_by_force(flush, &keys);
        until("the grace period has ended", || self.server.number("dlock_grace_ms_left") == 0);
        assert_eq!(self.conn.ok("CONFIG SET dlock.restart-grace 0"), "OK");
        self.disturbances += 1;
    }

    fn cancel(&mut self, key: &str) {
        let queue = self.conn.ok(&format!("DLOCK.WAITERS {key}"));
        if queue.items().is_empty() {
            return;
        }
        let token = self.random.of(queue.items()).field("token").text();
        self.cancelled += self.conn.ok(&format!("DLOCK.CANCEL {key} {token}")).int() as usize;
    }

    /// Changes an option for a moment.
    fn configure(&mut self) {
        let (change, restore) = *self.random.of(&[
            ("CONFIG SET dlock.max-waiters 3", "CONFIG SET dlock.max-waiters 10000"),
            ("CONFIG SET dlock.max-waiters-per-key 1", "CONFIG SET dlock.max-waiters-per-key 10000"),
            ("CONFIG SET dlock.max-ttl 300", "CONFIG SET dlock.max-ttl 86400000"),
            ("CONFIG SET notify-keyspace-events KEAd", "CONFIG SET notify-keyspace-events Kd"),
            ("CONFIG SET appendfsync no", "CONFIG SET appendfsync everysec"),
            ("CONFIG SET hz 100", "CONFIG SET hz 10"),
        ]);
        assert_eq!(self.conn.ok(change), "OK");
        for _ in 0..5 {
            let key = self.random.of(&self.plan.keys).0.clone();
            self.read(&key);
        }
        assert_eq!(self.conn.ok(restore), "OK");
        self.disturbances += 1;
    }

    fn pause_clients(&mut self) {
        let kind = *self.random.of(&["WRITE", "ALL"]);
        assert_eq!(self.conn.ok(&format!("CLIENT PAUSE 300 {kind}")), "OK");
        // The server delays this write until the pause ends.
        assert_eq!(self.conn.ok("DLOCK.BREAK nothing"), 0);
        self.disturbances += 1;
    }

    fn stop_process(&mut self) {
        self.server.pause();
        sleep(Duration::from_millis(self.random.below(700) as u64));
        self.server.resume();
        assert_eq!(self.conn.ok("PING"), "PONG");
        self.disturbances += 1;
    }
}
