//! Effects in an append only file: replayed, malformed and forged. An effect is the command `DLOCK._SET` with
//! the new state of a lock as bytes.

use std::fs;

use super::{acquire_all_kinds, all_states, state};
use dlock_testkit::{Options, Server, ServerKind, aof, each_server, encode, line};

fn plain_aof(kind: &ServerKind) -> Options {
    // Without the fence mark, a file beside the data, a restarted server knows its last fence only from the
    // append only file. Without an RDB preamble, that file consists of commands.
    Server::options(kind).synced().confs(&["dlock.fence-mark no", "aof-use-rdb-preamble no"])
}

/// Appends these commands to the append only file of a stopped server.
fn append(server: &Server, commands: &[Vec<Vec<u8>>]) {
    let file = aof::incremental(server.dir());
    let mut bytes = fs::read(&file).expect("the file");
    bytes.extend(commands.iter().flat_map(|command| encode(command)));
    fs::write(&file, bytes).expect("the file can be written");
}

fn command(words: &[&[u8]]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.to_vec()).collect()
}

#[each_server]
fn effects_replayed_twice_change_nothing(kind: &ServerKind) {
    let mut server = plain_aof(kind).start();
    let mut conn = server.connect();
    acquire_all_kinds(&mut conn);
    // Several changes of one lock. The second replay applies all of them to the lock's final state.
    for command in [
        "DLOCK.ACQUIRE k t 600000",
        "DLOCK.ACQUIRE k t 600000 DEPTH 3",
        "DLOCK.EXTEND k t 700000",
        "DLOCK.RELEASE k t ALL",
        "DLOCK.ACQUIRE k u 600000 LABEL last",
    ] {
        assert!(conn.ok(command).int() > 0);
    }
    let before = (all_states(&mut conn), state(&mut conn, "k"));
    let fence = server.number("dlock_fence");
    server.kill9();
    let effects: Vec<Vec<Vec<u8>>> = aof::commands(server.dir());
    assert!(effects.iter().filter(|effect| effect[0].starts_with(b"DLOCK.")).count() > 15);
    append(&server, &effects);
    server.restart();
    let mut conn = server.connect();
    assert_eq!((all_states(&mut conn), state(&mut conn, "k")), before);
    assert_eq!(server.number("dlock_fence"), fence);
    // The 10 locks with 10 holders of `acquire_all_kinds`, and `k`.
    assert_eq!(server.numbers(["dlock_held", "dlock_holders"]), [11, 11]);
}

#[each_server]
fn a_malformed_effect_is_reported_and_ends_no_hold(kind: &ServerKind) {
    let mut server = plain_aof(kind).start();
    let mut conn = server.connect();
    assert!(conn.ok("DLOCK.ACQUIRE k t 600000").int() > 0);
    conn.ok("SET text x");
    let fence = server.number("dlock_fence");
    server.kill9();
    let commands = aof::commands(server.dir());
    let effect = commands.iter().find(|command| command[0] == b"DLOCK._SET").expect("the grant's effect");
    let [_, _, change] = &effect[..] else { panic!("{}", line(effect)) };
    let with_byte = |at: usize, byte: u8| {
        let mut other = change.clone();
        other[at] = byte;
        other
    };
    // The argument of an effect consists of the last fence (8 bytes), a byte with the version and the mode
    // (0x51: version 5, exclusive; the `j` of "junk", 0x6a: version 6), and the rest of the lock's state.
    // From an effect of a newer version, the server reads only the last fence.
    let later = fence + 1000;
    let newer = [&later.to_le_bytes()[..], &[0x51], &change[9..]].concat();
    let malformed = [
        (command(&[b"DLOCK._SET", b"x", b""]), "end too early"),
        (command(&[b"DLOCK._SET", b"x", b"\0\0\0\0\0\0\0\0junk"]), "version 6"),
        (command(&[b"DLOCK._SET", b"x", &change[..change.len() - 1]]), "end too early"),
        (command(&[b"DLOCK._SET", b"x", &newer]), "version 5, this module reads 4"),
        (command(&[b"DLOCK._SET", b"x", &with_byte(8, 0x49)]), "impossible mode"),
        (command(&[b"DLOCK._SET", b"x", &with_byte(7, 0xff)]), "impossible last fence"),
        (command(&[b"DLOCK._SET", b"text", change]), "WRONGTYPE"),
    ];
    append(&server, &malformed.iter().map(|(command, _)| command.clone()).collect::<Vec<_>>());
    server.restart();
    let log = server.log();
    for (command, why) in &malformed {
        assert!(log.contains(why), "{}: {log}", line(command));
    }
    assert_eq!(log.matches("sending an error to its").count(), malformed.len(), "{log}");
    assert_eq!(server.number("dlock_effects_skipped"), malformed.len() as i64);
    let mut conn = server.connect();
    assert_eq!((conn.ok("DLOCK.HOLDS k t"), conn.ok("EXISTS x")), (1.into(), 0.into()));
    assert_eq!(server.number("dlock_fence"), later);
    assert!(conn.ok("DLOCK.ACQUIRE x t 600000").int() > 0);
}

#[each_server]
fn an_effect_without_all_arguments_is_reported_or_refused(kind: &ServerKind) {
    for cut in [&[&b"DLOCK._SET"[..], b"x"][..], &[b"DLOCK._SET"]] {
        let mut server = plain_aof(kind).start();
        assert!(server.connect().ok("DLOCK.ACQUIRE k t 600000").int() > 0);
        server.kill9();
        append(&server, &[command(cut)]);
        // Valkey 9 and later check the number of arguments themselves, and do not start.
        match server.try_restart() {
            Ok(()) => {
                assert!(server.log().contains("how a master tells replicas"), "{}", server.log());
                assert_eq!(server.connect().ok("DLOCK.HOLDS k t"), 1);
            }
            Err(log) => assert!(log.contains("wrong number of arguments for 'DLOCK._SET'"), "{log}"),
        }
    }
}

#[each_server]
fn clients_cannot_send_effects(kind: &ServerKind) {
    let server = plain_aof(kind).start();
    let mut conn = server.connect();
    let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
    conn.ok("DLOCK.ACQUIRE other t 600000");
    let effects = aof::commands(server.dir());
    let effect = effects.iter().find(|command| command[0] == b"DLOCK._SET").expect("the grant's effect");
    conn.ok("DLOCK.RELEASE k t");
    let refusal = "ERR this command is how a master tells replicas and the append only file what happened";
    assert!(conn.call(effect).error().starts_with(refusal));

    conn.ok("MULTI");
    assert_eq!(conn.call(effect), "QUEUED");
    let answers = conn.ok("EXEC");
    assert!(answers.items()[0].error().starts_with(refusal));

    let script = b"return redis.call(ARGV[1], KEYS[1], ARGV[2])".to_vec();
    let [name, key, change] = &effect[..] else { panic!("{}", line(effect)) };
    let call = [b"EVAL".to_vec(), script, b"1".to_vec(), key.clone(), name.clone(), change.clone()];
    assert!(conn.call(&call).error().contains("not allowed from script"));

    assert_eq!(conn.ok("DLOCK.HOLDS k t"), 0);
    assert!(server.number("dlock_fence") > fence);
}
