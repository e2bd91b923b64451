//! The background job serves all clients: the work that one connection causes delays no other client, and its
//! memory is freed.

use dlock_testkit::{Events, Server, ServerKind, Value, each_server, until};

/// The job used to end all holds of a closed connection before it checked the next lease: 9 s for 30,000
/// holds.
#[each_server]
fn a_lease_ends_while_the_holds_of_a_connection_are_ended(kind: &ServerKind) {
    const MANY: usize = 2_000;
    let server = Server::options(kind).conf("notify-keyspace-events Ed").start();
    let mut conn = server.connect();
    let id = conn.client_id();
    let tokens: Vec<String> = (0..MANY).map(|n| n.to_string()).collect();
    for some in tokens.chunks(200) {
        let commands: Vec<Vec<&str>> = some
            .iter()
            .map(|token| vec!["DLOCK.ACQUIRE", "crowd", token, "600000", "PERMITS", "100000", "EPHEMERAL"])
            .collect();
        conn.send_batch(&commands.iter().map(Vec::as_slice).collect::<Vec<_>>());
        some.iter().for_each(|_| assert!(conn.read().int() > 0));
    }
    let mut look = server.connect();
    let mut events = Events::subscribe(&server, "__keyevent@0__:*");
    // The lease and the connection have both ended when the background job runs.
    let kill = format!("CLIENT KILL ID {id}");
    let answers = look.say_together(&["DLOCK.ACQUIRE other t 1", &kill, "DEBUG SLEEP 0.02"]);
    assert!(answers[0].int() > 0 && answers[1] == 1, "{answers:?}");
    let (mut disconnects, mut before) = (0, None);
    while disconnects < MANY || before.is_none() {
        match events.read().0.rsplit(':').next() {
            Some("dlock.disconnect") => disconnects += 1,
            Some("dlock.expired") => before = Some(disconnects),
            _ => {}
        }
    }
    let before = before.expect("the lease has expired");
    assert!(before < MANY / 2, "{before} holds were ended before the lease");
    until("all holds have ended", || server.info("dlock_holders") == "0");
}

fn used(server: &Server) -> i64 {
    server.info("used_memory").parse().expect("a number")
}

/// The module used to keep a record of each deletion for ever: 81 MB after a million.
#[each_server]
fn deleted_keys_leave_no_state(kind: &ServerKind) {
    const SCRIPT: &str = "for n = 1, tonumber(ARGV[1]) do redis.call('DLOCK.ACQUIRE', KEYS[1] .. n % tonumber(ARGV[2]), 't', \
                          600000) redis.call('DEL', KEYS[1] .. n % tonumber(ARGV[2])) end";
    for events in ["", "Kd"] {
        for keys in ["1", "100000"] {
            let server = Server::options(kind).conf(&format!("notify-keyspace-events \"{events}\"")).start();
            let mut conn = server.connect();
            assert_eq!(conn.call(&["EVAL", SCRIPT, "1", "k", "10", "10"]), Value::Nil);
            let before = used(&server);
            assert_eq!(conn.call(&["EVAL", SCRIPT, "1", "k", "100000", keys]), Value::Nil);
            until("the memory is freed", || used(&server) < before + (2 << 20));
        }
    }
}

/// When one grant answered two EPHEMERAL waits of a token, the module used to record the hold for both
/// connections and to remove it for one: a leak of 212 bytes each time.
#[each_server]
fn one_hold_is_bound_to_one_connection(kind: &ServerKind) {
    let (server, mut holder) = Server::connected(kind);
    let mut waiters = [server.connect(), server.connect()];
    let mut before = 0;
    for round in 0..1_500 {
        if round == 100 {
            before = used(&server);
        }
        let token = format!("the-token-of-the-round-{round}");
        assert!(holder.ok("DLOCK.ACQUIRE k holder 600000").int() > 0);
        for waiter in &mut waiters {
            waiter.send(&["DLOCK.ACQUIRE", "k", &token, "600000", "BLOCK", "0", "EPHEMERAL"]);
        }
        while holder.ok("DLOCK.WAITERS k").items().len() < 2 {}
        assert_eq!(holder.ok("DLOCK.RELEASE k holder"), 1);
        for waiter in &mut waiters {
            assert!(waiter.read().int() > 0);
        }
        assert_eq!(holder.ok(&format!("DLOCK.RELEASE k {token}")), 1);
    }
    let grown = used(&server) - before;
    assert!(grown < 100_000, "{grown} bytes");
}
