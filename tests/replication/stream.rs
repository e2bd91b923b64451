//! The exact replication stream: for each change of a lock, an effect (`DLOCK._SET`) with final values, or
//! the client's command verbatim; nothing else.

use dlock_testkit::{Conn, Layout, Server, ServerKind, Stream, each_server, line, until};

/// Formats a command verbatim, an effect as in `k whole exclusive [t x1 #123 600000 host] last 123`. The
/// words of an effect: the key; all holds (`whole`) or only the changed ones (`part`); the mode; ended holds
/// (`-t`); other holds (token, count, fence, ttl, label); the last fence of the server.
fn effect(command: &[Vec<u8>]) -> String {
    let [name, key, bytes] = command else { return line(command) };
    if name != b"DLOCK._SET" {
        return line(command);
    }
    let (last, bytes) = bytes.split_first_chunk().expect("a fence");
    let change = Layout::of(bytes);
    assert_eq!(change.version, 4, "the layout version");
    // `change.mode` is the mode, from 0 to 3, plus 4 if the effect is a part.
    let extent = ["whole", "part"][usize::from(change.mode / 4)];
    let mode = ["free", "exclusive", "shared", "permits"][usize::from(change.mode % 4)];
    let mut words = vec![String::from_utf8_lossy(key).into_owned(), extent.into(), mode.into()];
    words.extend(change.dropped.iter().map(|token| format!("-{}", token.escape_ascii())));
    for hold in &change.put {
        // The lease may have begun earlier in the test, at most 20 s ago. Its deadline is rounded up to the
        // next ms.
        let (left, ttl) = (hold.deadline - change.at, hold.ttl);
        assert!((ttl.saturating_sub(20_000)..=ttl + 1).contains(&left), "{left} ms left of {ttl} ms");
        let (token, label) = (hold.token.escape_ascii(), hold.label.escape_ascii());
        words.push(format!("[{token} x{} #{} {ttl} {label}]", hold.count, hold.fence));
    }
    words.push(format!("last {}", u64::from_le_bytes(*last)));
    words.join(" ")
}

/// Returns the reply of the command, and the one command that it adds to the stream.
#[track_caller]
fn run(stream: &mut Stream, conn: &mut Conn, command: &str) -> (i64, String) {
    let answer = conn.ok(command).int();
    let sent = stream.drain();
    let [sent] = &sent[..] else {
        panic!("{command}: {:?}", sent.iter().map(|c| line(c)).collect::<Vec<_>>())
    };
    (answer, effect(sent))
}

#[each_server]
fn each_change_is_one_effect_with_final_values(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    conn.ok("SET x y");
    let mut stream = Stream::of(&server);
    conn.ok("SET x z");
    assert_eq!(
        stream.drain().iter().map(|command| line(command)).collect::<Vec<_>>(),
        ["SELECT 0", "SET x z"]
    );

    let (fence, sent) = run(&mut stream, &mut conn, "DLOCK.ACQUIRE k t 600000 REENTRANT LABEL host");
    assert_eq!(sent, format!("k whole exclusive [t x1 #{fence} 600000 host] last {fence}"));
    let (_, sent) = run(&mut stream, &mut conn, "DLOCK.ACQUIRE k t 500 DEPTH 3");
    assert!(sent.starts_with(&format!("k whole exclusive [t x3 #{fence} 600000 host]")), "{sent}");
    let (_, sent) = run(&mut stream, &mut conn, "DLOCK.RELEASE k t");
    assert!(sent.contains(&format!("[t x2 #{fence} 600000 host]")), "{sent}");
    let (_, sent) = run(&mut stream, &mut conn, "DLOCK.EXTEND k t 700000");
    assert_eq!(sent, format!("k whole exclusive [t x2 #{fence} 700000 host] last {fence}"));
    let raised = fence + 5_000_000;
    let (_, sent) = run(&mut stream, &mut conn, &format!("DLOCK.CONFIRM k t {raised} 800000"));
    assert_eq!(sent, format!("k whole exclusive [t x2 #{raised} 800000 host] last {raised}"));
    let (_, sent) = run(&mut stream, &mut conn, "DLOCK.RELEASE k t ALL");
    assert_eq!(sent, "DLOCK.RELEASE k t ALL", "the command is sent verbatim");

    let (a, sent) = run(&mut stream, &mut conn, "DLOCK.ACQUIRE s a 600000 SHARED");
    assert_eq!(sent, format!("s part shared [a x1 #{a} 600000 ] last {a}"));
    let (b, sent) = run(&mut stream, &mut conn, "DLOCK.ACQUIRE s b 600000 SHARED");
    assert_eq!(sent, format!("s part shared [b x1 #{b} 600000 ] last {b}"), "hold a is not sent again");
    let (_, sent) = run(&mut stream, &mut conn, "DLOCK.RELEASE s a");
    assert_eq!(sent, format!("s part shared -a last {b}"));
    let (_, sent) = run(&mut stream, &mut conn, "DLOCK.BREAK s");
    assert_eq!(sent, format!("s whole free last {b}"));
}

#[each_server]
fn commands_without_a_change_send_no_effect(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    conn.ok("SET text x");
    conn.ok("DLOCK.ACQUIRE k t 600000 DEPTH 2 LABEL host");
    let mut stream = Stream::of(&server);
    for command in [
        "DLOCK.ACQUIRE k other 600000",
        "DLOCK.ACQUIRE k t 1000",
        "DLOCK.ACQUIRE k t 1000 DEPTH 2 LABEL host",
        "DLOCK.ACQUIRE k t 600000 PERMITS 2",
        "DLOCK.ACQUIRE k t 0",
        "DLOCK.ACQUIRE text t 600000",
        "DLOCK.RELEASE k other",
        "DLOCK.RELEASE k other ALL",
        // Lowers the hold count to 2, which it is already.
        "DLOCK.RELEASE k t DEPTH 2",
        "DLOCK.RELEASE free t",
        "DLOCK.EXTEND k other 600000",
        "DLOCK.CONFIRM k other 1 600000",
        "DLOCK.CONFIRM k t 1 700000",
        // Refused: the greatest possible fence is too far ahead of the clock.
        "DLOCK.CONFIRM k t 9007199254740991 700000",
        "DLOCK.HOLDS k t",
        "DLOCK.PTTL k",
        "DLOCK.INSPECT k",
        "DLOCK.WAITERS k",
        "DLOCK.CANCEL k t",
        "DLOCK.BREAK free",
        "DLOCK.TOKEN",
        "DLOCK.HELP",
        "DLOCK._SET k x",
    ] {
        let _ = conn.say(command);
        let sent = stream.drain();
        assert!(sent.is_empty(), "{command}: {}", line(&sent[0]));
    }
    conn.ok("DLOCK.RELEASE k t");
    assert_eq!(stream.drain().len(), 2, "SELECT and the effect: the stream works");
}

#[each_server]
fn the_effect_of_an_expiry_follows_a_select_of_its_database(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    let mut stream = Stream::of(&server);
    // Sent in one write, so that the lease cannot end before SET.
    let replies = conn.say_together(&["SELECT 5", "DLOCK.ACQUIRE k t 50", "SELECT 0", "SET x y"]);
    let fence = replies[1].int();
    until("the lease ends", || server.number("dlock_expiries") == 1);
    let sent = stream.drain();
    let [five, grant, zero, set, again, end] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!([five, zero, again].map(|c| line(c)), ["SELECT 5", "SELECT 0", "SELECT 5"]);
    assert_eq!(line(set), "SET x y");
    assert_eq!(effect(grant), format!("k whole exclusive [t x1 #{fence} 50 ] last {fence}"));
    assert_eq!(effect(end), format!("k whole free last {fence}"));
}

#[each_server]
fn the_effect_of_a_command_ends_an_expired_hold_too(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    let mut stream = Stream::of(&server);
    let answers =
        conn.say_together(&["DLOCK.ACQUIRE k t 20", "DEBUG SLEEP 0.05", "DLOCK.ACQUIRE k u 600000"]);
    let (first, second) = (answers[0].int(), answers[2].int());
    let sent = stream.drain();
    let [_, grant, next] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(effect(grant), format!("k whole exclusive [t x1 #{first} 20 ] last {first}"));
    assert_eq!(effect(next), format!("k whole exclusive [u x1 #{second} 600000 ] last {second}"));

    conn.say_together(&["DLOCK.BREAK k", "DLOCK.ACQUIRE k t 20", "DEBUG SLEEP 0.05", "DLOCK.RELEASE k t"])
        .iter()
        .for_each(|answer| assert!(!answer.is_nil()));
    let sent = stream.drain();
    assert_eq!(sent.len(), 3);
    assert_eq!(line(&sent[2]), "DLOCK.RELEASE k t", "the RELEASE ends the expired hold");
}

#[each_server]
fn transactions_and_scripts_send_their_effects_as_one_unit(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    let mut stream = Stream::of(&server);
    for command in
        ["MULTI", "DLOCK.ACQUIRE a t 600000", "SET x y", "DLOCK.ACQUIRE a u 600000", "DLOCK.RELEASE a t"]
    {
        conn.ok(command);
    }
    conn.ok("EXEC");
    let script =
        "redis.call('DLOCK.ACQUIRE', KEYS[1], 't', 600000) return redis.call('DLOCK.RELEASE', KEYS[1], 't')";
    assert_eq!(conn.call(&["EVAL", script, "1", "k"]), 1);
    let sent = stream.drain();
    // Leaves out the holds of the effects, because their fences differ in each run.
    let without_hold = |text: &str| text.split(" [").next().map(str::to_owned);
    let shown: Vec<String> = sent
        .iter()
        .filter_map(|command| without_hold(&effect(command)))
        .filter(|text| !text.starts_with("SELECT"))
        .collect();
    assert_eq!(
        shown,
        [
            "MULTI",
            "a whole exclusive",
            "SET x y",
            "DLOCK.RELEASE a t",
            "EXEC",
            "MULTI",
            "k whole exclusive",
            "DLOCK.RELEASE k t",
            "EXEC"
        ]
    );
}
