//! DLOCK.GUARD and DLOCK.FENCED replicate the command that they run. DLOCK.FENCED also replicates the new
//! value of its gate, the key that has the greatest fence so far.

use dlock_testkit::{Server, ServerKind, Stream, each_server, line};

#[each_server]
fn a_guarded_command_is_replicated_as_without_its_guard(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    conn.ok("DLOCK.ACQUIRE k t MAX");
    conn.ok("DLOCK.FENCED g 4 PING");
    conn.ok("SADD set a");
    conn.ok("SET f 1.5");
    let mut stream = Stream::of(&server);
    conn.ok("SET x 0");
    stream.drain();
    let mut sent = |command: &str| {
        let _ = conn.say(command);
        stream.drain().iter().map(|command| line(command)).collect::<Vec<_>>()
    };
    for (command, replicated) in [
        ("SET x 1", &["SET x 1"][..]),
        ("INCR x", &["INCR x"]),
        // The loop compares this SPOP with one that has no guard, instead of with the empty list.
        ("SPOP set", &[]),
        ("INCRBYFLOAT f 0", &["SET f 1.5 KEEPTTL"]),
        ("PUBLISH c m", &["PUBLISH c m"]),
        ("GET x", &[]),
        ("INCR k", &[]),
        ("NOSUCH", &[]),
        ("SELECT 3", &[]),
    ] {
        // SPOP of the last member is sent as SREM or DEL, depending on the server.
        if command.starts_with("SPOP") {
            let alone = sent(command);
            sent("SADD set a");
            assert_eq!(sent(&format!("DLOCK.GUARD k t {command}")), alone, "{command}");
            continue;
        }
        assert_eq!(sent(&format!("DLOCK.GUARD k t {command}")), replicated, "{command}");
        assert!(sent(&format!("DLOCK.GUARD k other {command}")).is_empty(), "{command}");
        assert_eq!(sent(&format!("DLOCK.FENCED g 4 {command}")), replicated, "{command}");
    }
    assert_eq!(sent("DLOCK.FENCED g 5 SET x 1"), ["MULTI", "SET g 5", "SET x 1", "EXEC"]);
    assert_eq!(sent("DLOCK.FENCED g 6 GET x"), ["SET g 6"]);
    assert_eq!(sent("DLOCK.FENCED g 7 NOSUCH"), ["SET g 7"]);
    assert_eq!(sent("DLOCK.FENCED g 7 DEL g"), ["MULTI", "DEL g", "SET g 7", "EXEC"]);
    assert!(sent("DLOCK.FENCED g 3 SET x 1").is_empty());
    assert_eq!(sent("DLOCK.GUARD k t DLOCK.RELEASE k t"), ["DLOCK.RELEASE k t"]);
}
