//! One holder and two waiters: the initial state of each race.

use dlock_testkit::queue::{clients, granted, holders, until_no_waiters, waiter};
use dlock_testkit::{Conn, Server, until};

/// A server with a holder `a` of `k` and two waiters, `b` before `c`.
pub struct Scene {
    pub server: Server,
    pub a: Conn,
    pub b: Conn,
    pub b_id: i64,
    pub c: Conn,
}

impl Scene {
    /// Creates the scene on this server. `login` prepares the connection of `b`.
    #[track_caller]
    pub fn on(server: Server, login: impl Fn(&mut Conn)) -> Scene {
        let mut a = server.connect();
        a.ok("DLOCK.ACQUIRE k a 600000");
        let mut b = server.connect();
        login(&mut b);
        let b_id = b.client_id();
        b.send(&["DLOCK.ACQUIRE", "k", "b", "600000", "BLOCK", "0"]);
        until("b waits", || clients(&mut a, "k") == [b_id]);
        let c = waiter(&server, "DLOCK.ACQUIRE k c 600000 BLOCK 0");
        Scene { server, a, b, b_id, c }
    }

    /// Restores the initial holder and waiters.
    #[track_caller]
    pub fn reset(&mut self) {
        self.reset_to("DLOCK.ACQUIRE k a 600000", "BLOCK 0");
    }

    /// Creates the scene again: the connection of `a` sends `acquire`, then `b` waits with the option
    /// `block`, and `c` behind `b`.
    #[track_caller]
    pub fn reset_to(&mut self, acquire: &str, block: &str) {
        for end in ["DLOCK.CANCEL k b", "DLOCK.CANCEL k c", "DLOCK.BREAK k"] {
            self.a.ok(end);
        }
        assert!(self.a.ok(acquire).int() > 0);
        self.b = waiter(&self.server, &format!("DLOCK.ACQUIRE k b 600000 {block}"));
        self.b_id = clients(&mut self.a, "k")[0];
        self.c = waiter(&self.server, "DLOCK.ACQUIRE k c 600000 BLOCK 0");
    }

    /// Asserts that `c` was granted the lock, is the only holder, and that the queue is empty.
    #[track_caller]
    pub fn assert_c_holds(&mut self) {
        let fence = granted(&mut self.c);
        assert_eq!(holders(&mut self.a, "k"), ["c"]);
        assert_eq!(self.a.ok("DLOCK.INSPECT k").field("fence"), &fence);
        assert_eq!(self.c.say("PING"), "PONG");
        until_no_waiters(&self.server);
    }
}
