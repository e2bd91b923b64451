//! A grant in a transaction, script, function or guard is logged as an effect (the new state of the lock).
//! The next grant is an effect, too.

use super::{grant, grant_both, skipped, with_frozen_clock, words};
use dlock_testkit::{Server, ServerKind, Stream, compiled, each_server, locks};

const FUNCTION: &str = "#!lua name=lib\nredis.register_function('take', function(keys) \
                        return redis.call('DLOCK.ACQUIRE', keys[1], 't', 600000) end)";

/// A grant that is logged verbatim (as its command) builds on the log entry before it. But the module assumes
/// that a replica may lack the entry of a command in a transaction, script, function or guard. So it logs the
/// next grant as an effect. A release builds on no entry.
#[each_server(shimmed)]
fn transactions_scripts_functions_and_guards_send_effects(kind: &ServerKind) {
    let master = with_frozen_clock(kind).start();
    let replica = Server::start(kind);
    replica.replicate(&master);
    let mut conn = master.connect();
    assert_eq!(conn.call(&["FUNCTION", "LOAD", FUNCTION]), "lib");
    grant(&mut conn, "first");
    let mut stream = Stream::of(&master);
    let script = "return redis.call('DLOCK.ACQUIRE', KEYS[1], 't', 600000)";
    let nested: [(&[&[&str]], &[&str]); 4] = [
        (
            &[
                &["MULTI"],
                &["DLOCK.ACQUIRE", "a", "t", "600000"],
                &["DLOCK.RELEASE", "a", "t"],
                &["DLOCK.ACQUIRE", "b", "t", "600000"],
                &["EXEC"],
            ],
            &["effect a", "DLOCK.RELEASE a t", "effect b"],
        ),
        (&[&["EVAL", script, "1", "c"]], &["effect c"]),
        (&[&["FCALL", "take", "1", "d"]], &["effect d"]),
        (&[&["DLOCK.GUARD", "d", "t", "DLOCK.ACQUIRE", "e", "t", "600000"]], &["effect e"]),
    ];
    for (n, (commands, expected)) in nested.into_iter().enumerate() {
        grant_both(&mut conn, [&format!("{n}-before-1"), &format!("{n}-before-2")]);
        commands.iter().for_each(|command| assert!(!conn.call(command).is_nil()));
        grant_both(&mut conn, [&format!("{n}-after-1"), &format!("{n}-after-2")]);
        let sent = words(&stream.drain());
        let sent = sent.iter().map(String::as_str).filter(|word| !["MULTI", "EXEC"].contains(word));
        let before = format!("DLOCK.ACQUIRE {n}-before-2 t 600000");
        let after = [format!("effect {n}-after-1"), format!("DLOCK.ACQUIRE {n}-after-2 t 600000")];
        let expected = [&[&before[..]][..], expected, &after.each_ref().map(String::as_str)].concat();
        // Skips the grant of `before-1`, whose form depends on the round before.
        assert_eq!(sent.skip(1).collect::<Vec<_>>(), expected);
    }
    replica.wait_in_sync(&master);
    assert_eq!((locks(&replica), skipped(&replica)), (locks(&master), 0));
}

/// Only the master has the hidden grant. If the next grant were logged verbatim, replicas would derive a
/// lower fence than the master's.
#[each_server(shimmed)]
fn a_grant_after_a_command_hidden_from_replicas_is_an_effect(kind: &ServerKind) {
    let caller = compiled("tests/caller.c");
    let master = with_frozen_clock(kind).conf(&format!("loadmodule {}", caller.display())).start();
    let replica = Server::start(kind);
    replica.replicate(&master);
    let mut conn = master.connect();
    let mut stream = Stream::of(&master);
    grant(&mut conn, "a");
    // The server replicates a command of CALLER only if the format (here `v`) has a `!`.
    assert!(conn.ok("CALLER v DLOCK.ACQUIRE unknown t 600000").int() > 0);
    grant_both(&mut conn, ["b", "c"]);
    assert_eq!(words(&stream.drain()), ["effect a", "effect b", "DLOCK.ACQUIRE c t 600000"]);
    assert!(conn.ok("DLOCK.BREAK unknown").int() > 0);
    replica.wait_in_sync(&master);
    assert_eq!((locks(&replica), skipped(&replica)), (locks(&master), 0));
}
