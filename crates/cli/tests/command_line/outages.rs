//! Runs and elections while a server refuses requests for some time, moves to another machine, or publishes a
//! forged message.

use super::*;
use crate::stage::{Address, signal};
use dlock_testkit::{Conn, Server, ServerKind, Value, each_server};

/// Number of error replies with this word since the start of the server.
fn refused(conn: &mut Conn, word: &str) -> u64 {
    let stats = conn.ok("INFO errorstats").text();
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("errorstat_{word}:count=")));
    line.map_or(0, |count| count.trim().parse().expect("a number"))
}

/// More refusals than a client accepts before it reports an outage.
const REFUSALS: u64 = 6;

/// Starts a run that waits for `r`, which another client holds on every server.
fn start_waiting(stage: &Stage, options: &str) -> Running {
    stage.on_each("DLOCK.ACQUIRE r other 600000");
    let run = stage.start(stage.run(options, "echo ran"));
    stage.until_waiting("r", 1);
    run
}

/// Frees the lock, and checks that the run gets it.
#[track_caller]
fn assert_granted(stage: &Stage, run: Running, what: &str) {
    stage.on_each("DLOCK.RELEASE r other");
    let done = run.wait();
    assert_eq!((done.code, &*done.stdout), (Some(0), "ran\n"), "{what}: {}", done.stderr);
    until("nothing is left of the wait", || stage.held_on("r") == 0);
    stage.servers.iter().for_each(queue::until_no_waiters);
}

#[each_server]
fn a_waiting_run_outlasts_refusals_that_pass(kind: &ServerKind) {
    let kill = "CLIENT KILL USER default SKIPME yes";
    for masters in [1, 3] {
        let stage = Stage::with(kind, masters);
        for (word, begin, end) in [
            ("NOREPLICAS", &["CONFIG SET min-replicas-to-write 1"][..], "CONFIG SET min-replicas-to-write 0"),
            ("NOPERM", &["ACL SETUSER default -dlock.acquire"], "ACL SETUSER default +dlock.acquire"),
            ("NOAUTH", &["CONFIG SET requirepass s3cret", kill], "ACL SETUSER default nopass"),
        ] {
            let run = start_waiting(&stage, "--wait 10m");
            let mut conns: Vec<Conn> = stage.servers.iter().map(Server::connect).collect();
            let refusals = |conns: &mut [Conn]| conns.iter_mut().map(|conn| refused(conn, word)).sum::<u64>();
            let before = refusals(&mut conns);
            for conn in &mut conns {
                begin.iter().for_each(|command| drop(conn.ok(command)));
            }
            until(&format!("the run has been refused by {word}"), || {
                refusals(&mut conns) >= before + REFUSALS
            });
            conns.iter_mut().for_each(|conn| drop(conn.ok(end)));
            stage.until_waiting("r", 1);
            assert_granted(&stage, run, word);
        }
    }
}

/// The inner run has the owner of the outer one. If the server also refuses the RELEASE of a refused round,
/// its position is left: that is no deadlock of the owner.
#[each_server]
fn a_nested_run_outlasts_refusals_that_pass(kind: &ServerKind) {
    let stage = Stage::one(kind);
    stage.on_each("DLOCK.ACQUIRE r other 600000");
    let mut outer = stage.dlock("run outer -- sh -c");
    outer.arg("exec $DLOCK run r -- echo ran");
    let run = stage.start(outer);
    stage.until_waiting("r", 1);
    let mut conn = stage.connect();
    conn.ok("ACL SETUSER default -dlock.acquire -dlock.release");
    until("the run has been refused by NOPERM", || refused(&mut conn, "NOPERM") >= REFUSALS);
    conn.ok("ACL SETUSER default +dlock.acquire");
    until("a later round meets the first position", || stage.servers[0].number("dlock_deadlocks") > 0);
    conn.ok("ACL SETUSER default +dlock.release");
    assert_granted(&stage, run, "nested");
}

/// While a script runs, the server answers no INFO. So the test looks afterwards whether the run was refused,
/// and if not, runs another script.
#[each_server]
fn a_waiting_run_outlasts_a_busy_server(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let run = start_waiting(&stage, "--wait 10m");
    let (mut conn, mut script) = (stage.connect(), stage.connect());
    conn.ok("CONFIG SET lua-time-limit 1");
    loop {
        script.send(&["EVAL", "while true do end", "0"]);
        for _ in 0..1000 {
            until(
                "the server is busy",
                || matches!(conn.say("PING"), Value::Error(why) if why.starts_with("BUSY")),
            );
        }
        conn.ok("SCRIPT KILL");
        script.read();
        // Of the refusals, 1,000 are of this test for each script.
        if !refused(&mut conn, "BUSY").is_multiple_of(1000) {
            break;
        }
    }
    assert_granted(&stage, run, "BUSY");
}

/// The server drops the position of a waiter that has not asked for some time, here 3 s.
#[each_server]
fn a_waiting_run_outlasts_a_stop(kind: &ServerKind) {
    for masters in [1, 3] {
        let stage = Stage::with(kind, masters);
        stage.on_each("DLOCK.ACQUIRE r other 600000");
        stage.on_each("CONFIG SET dlock.max-ttl 3000");
        let run = stage.start(stage.run("--ttl 3s", "echo ran"));
        stage.until_waiting("r", 1);
        run.signal("STOP");
        stage.until_waiting("r", 0);
        run.signal("CONT");
        stage.until_waiting("r", 1);
        assert_granted(&stage, run, "SIGSTOP");
    }
}

/// Whoever may publish to the channel can send a message, but does not know what to write into it.
#[each_server]
fn a_forged_grant_neither_starts_nor_ends_a_waiting_run(kind: &ServerKind) {
    for masters in [1, 3] {
        let stage = Stage::with(kind, masters);
        let mut run = start_waiting(&stage, "--wait 10m");
        for server in &stage.servers {
            let mut conn = server.connect();
            for channel in conn.ok("PUBSUB CHANNELS").items() {
                for message in ["1 granted", "1 granted 5", "granted 5", "2 granted 5", "1 cancelled"] {
                    let channel = channel.text();
                    let reached = conn.call(&["PUBLISH", &*channel, message]).int();
                    assert!(reached >= 1, "{channel}");
                }
            }
        }
        stage.until_waiting("r", 1);
        assert!(!run.has_ended());
        assert_granted(&stage, run, "forged");
    }
}

#[each_server]
fn the_release_of_a_run_outlasts_refusals_that_pass(kind: &ServerKind) {
    for masters in [1, 3] {
        let stage = Stage::with(kind, masters);
        let run = stage.start(stage.run("", "echo > held; until [ -e go ]; do sleep 0.02; done"));
        stage.until_written("held");
        let mut conns: Vec<Conn> = stage.servers.iter().map(Server::connect).collect();
        conns.iter_mut().for_each(|conn| drop(conn.ok("CONFIG SET min-replicas-to-write 1")));
        stage.write("go", "");
        for conn in &mut conns {
            until("the release has been refused", || refused(conn, "NOREPLICAS") >= 2);
            conn.ok("CONFIG SET min-replicas-to-write 0");
        }
        let done = run.wait();
        assert_eq!((done.code, &*done.stderr), (Some(0), ""));
        assert_eq!(stage.held_on("r"), 0);
    }
}

#[each_server]
fn a_candidate_outlasts_refusals_that_pass(kind: &ServerKind) {
    let stage = Stage::one(kind);
    stage.on_each("DLOCK.ACQUIRE scheduler other 600000");
    let candidate = stage.start(stage.dlock("elect scheduler -- echo leads"));
    stage.until_waiting("scheduler", 1);
    let mut conn = stage.connect();
    conn.ok("CONFIG SET min-replicas-to-write 1");
    until("the candidate has been refused", || refused(&mut conn, "NOREPLICAS") >= REFUSALS);
    conn.ok("CONFIG SET min-replicas-to-write 0");
    conn.ok("DLOCK.RELEASE scheduler other");
    let done = candidate.wait();
    assert_eq!((done.code, &*done.stdout), (Some(0), "leads\n"), "{}", done.stderr);
}

/// Makes the replica the master, the master its replica, and leads new connections to the new master. The
/// connections to the old one stay open.
fn move_master(address: &Address, old: &Server, new: &Server) {
    new.wait_in_sync(old);
    new.promote();
    old.replicate(new);
    address.lead_new_connections_to(new);
}

#[each_server]
fn runs_and_candidates_follow_their_address_to_the_new_master(kind: &ServerKind) {
    let stage = Stage::with(kind, 0);
    let (old, new) = Server::with_replica(kind);
    let address = Address::of(&old);
    let start = |words: &str, script: &str| {
        let mut dlock = stage.dlock(words);
        dlock.env("DLOCK_SERVERS", address.url()).args(["--", "sh", "-c", script]);
        stage.start(dlock)
    };
    let wait_for = |file: &str| format!("echo $$ > started-{file}; until [ -e {file} ]; do sleep 0.02; done");
    let job = start("run job --ttl 3s", &wait_for("job"));
    stage.until_written("started-job");
    let waiter = start("run job --wait 10m", "echo ran");
    let leader = start("elect scheduler --ttl 3s", &wait_for("leader"));
    stage.until_written("started-leader");
    let candidate = start("elect scheduler", "echo leads");
    let waiting = |server: &Server, resource: &str| queue::tokens(&mut server.connect(), resource).len();
    until("both wait", || waiting(&old, "job") == 1 && waiting(&old, "scheduler") == 1);

    move_master(&address, &old, &new);
    until("both wait at the new master", || waiting(&new, "job") == 1 && waiting(&new, "scheduler") == 1);
    // The job and the leader keep their locks for longer than a lease.
    for resource in ["job", "scheduler"] {
        stage::until_renewed(&mut new.connect(), resource);
        stage::until_renewed(&mut new.connect(), resource);
    }
    for (file, holder, next, shown) in
        [("job", job, waiter, "ran\n"), ("leader", leader, candidate, "leads\n")]
    {
        stage.write(file, "");
        let done = holder.wait();
        assert_eq!(done.code, Some(0), "{file}: {}", done.stderr);
        let done = next.wait();
        assert_eq!((done.code, &*done.stdout), (Some(0), shown), "{file}: {}", done.stderr);
    }
}

/// A candidate stands for election again at the new master after it has lost its lead at the old one.
#[each_server]
fn a_leader_that_is_stopped_during_the_move_leads_again(kind: &ServerKind) {
    let stage = Stage::with(kind, 0);
    let (old, new) = Server::with_replica(kind);
    let address = Address::of(&old);
    let mut elect = stage.dlock("elect scheduler --ttl 3s -- sh -c");
    elect.env("DLOCK_SERVERS", address.url());
    elect.arg("echo $$ >> leads; until [ -e go ]; do sleep 0.02; done");
    let leader = stage.start(elect);
    stage.until_written("leads");
    leader.signal("STOP");
    move_master(&address, &old, &new);
    until("the lease has ended", || queue::holders(&mut new.connect(), "scheduler").is_empty());
    signal(leader.id(), "CONT");
    until("it leads again", || stage.file("leads").lines().count() == 2);
    assert_eq!(queue::holders(&mut new.connect(), "scheduler").len(), 1);
    assert_eq!(stage.create_go_and_wait(leader).code, Some(0));
}

/// The link of the replica is down, so it has no locks.
#[each_server]
fn an_answer_of_a_replica_about_a_lock_does_not_count(kind: &ServerKind) {
    let stage = Stage::with(kind, 2);
    stage.connect().ok("DLOCK.ACQUIRE r t 600000");
    // No server listens on port 1.
    stage.servers[1].connect().ok("REPLICAOF 127.0.0.1 1");
    let replica = format!("redis://127.0.0.1:{}", stage.servers[1].port());
    let sentence = "is a replica: write redis://127.0.0.1:1, its master";
    for words in ["acquire r --no-wait", "wait r --timeout 200ms", "inspect r", "list", "list --json"] {
        let mut asked = stage.dlock(words);
        asked.env("DLOCK_SERVERS", &replica);
        let done = stage.execute(asked);
        assert_eq!(done.code, Some(69), "{words}: {}{}", done.stdout, done.stderr);
        assert!((done.stdout + &done.stderr).contains(sentence), "{words}: {}", done.stderr);
    }
}

/// Number of calls of INSPECT.
fn inspections(server: &Server) -> u64 {
    let stats = server.connect().ok("INFO commandstats").text().to_lowercase();
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_dlock.inspect:calls="));
    calls.and_then(|rest| rest.split(',').next()).map_or(0, |calls| calls.parse().expect("a number"))
}

/// The connection is open when the master becomes a replica, which then loses its locks.
#[each_server]
fn a_wait_asks_again_while_its_address_leads_to_a_replica(kind: &ServerKind) {
    let stage = Stage::with(kind, 0);
    let (old, new) = Server::with_replica(kind);
    let address = Address::of(&old);
    old.connect().ok("DLOCK.ACQUIRE r t 600000");
    let mut wait = stage.dlock("wait r");
    wait.env("DLOCK_SERVERS", address.url());
    let waits = stage.start(wait);
    until("it has asked the master", || inspections(&old) > 0);
    new.wait_in_sync(&old);
    new.promote();
    let empty = Server::start(kind);
    old.replicate(&empty);
    let before = inspections(&old);
    until("it has asked the replica", || inspections(&old) > before + 1);
    address.lead_new_connections_to(&new);
    until("it has asked the new master", || inspections(&new) > 0);
    new.connect().ok("DLOCK.BREAK r");
    let done = waits.wait();
    assert_eq!(done.code, Some(0), "{}", done.stderr);
}
