//! What makes the proof void: it goes from the disk before the first grant that it would not cover.

mod files;

use std::fs;
use std::path::Path;
use std::process::Command;

use super::proven::{path, proven};
use super::{ALWAYS, assert_grace, assert_unproven, end, logged, until_proven, with_grace};
use dlock_testkit::{Server, Value, each_server, module_path, until};

/// The server was killed, and comes back as it is configured: it may have forgotten something.
#[track_caller]
fn comes_back_with_grace(server: &mut Server, what: &str) {
    let begun = logged(server).0;
    server.restart();
    assert_grace(&mut server.connect(), "DLOCK.ACQUIRE k other 1000");
    let (after, _, why) = logged(server);
    assert_eq!(after, begun + 1, "{what}: {}", server.log());
    assert!(why.contains("the server started"), "{what}: {why}");
}

/// What an operator may set while the server runs, and take back before it ends, or not.
#[test]
fn options_that_were_others_while_it_ran() {
    each_server(|kind| {
        for commands in [
            &["CONFIG SET appendonly no"][..],
            &["CONFIG SET appendfsync everysec"],
            &["CONFIG SET appendfsync no"],
            &["CONFIG SET no-appendfsync-on-rewrite yes"],
            &["CONFIG SET dlock.restart-grace 0"],
            &["CONFIG SET dlock.fence-mark no"],
        ] {
            let mut server = proven(kind);
            let mut conn = server.connect();
            // The file is gone when the answer comes, and the grant comes after it.
            for command in commands {
                assert_eq!(conn.ok(command), "OK");
            }
            assert!(!path(&server).exists(), "{commands:?}");
            assert!(conn.ok("DLOCK.ACQUIRE k t 600000").int() > 0);
            server.kill9();
            comes_back_with_grace(&mut server, commands[0]);
        }
    });
}

#[test]
fn an_option_that_is_set_in_the_transaction_that_grants() {
    each_server(|kind| {
        let mut server = proven(kind);
        let answers = server.connect().say_together(&[
            "MULTI",
            "CONFIG SET appendonly no",
            "DLOCK.ACQUIRE k t 600000",
            "EXEC",
        ]);
        assert!(answers[3].items()[1].int() > 0, "{answers:?}");
        server.kill9();
        comes_back_with_grace(&mut server, "MULTI");
    });
}

#[test]
fn switched_off_and_on_again_it_is_proven_anew() {
    each_server(|kind| {
        let mut server = proven(kind);
        let before = fs::read_to_string(path(&server)).expect("the proof");
        let mut conn = server.connect();
        assert_eq!(conn.ok("CONFIG SET appendonly no"), "OK");
        assert_unproven(&server, "no append only file");
        let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
        assert_eq!(conn.ok("CONFIG SET appendonly yes"), "OK");
        until_proven(&server);
        assert_ne!(fs::read_to_string(path(&server)).expect("the proof"), before);
        server.kill9();
        server.restart();
        assert_eq!(server.connect().ok("DLOCK.ACQUIRE k t 600000"), fence);
        assert_eq!(logged(&server).0, 1);
    });
}

#[test]
fn a_start_without_the_file_or_with_a_snapshot_in_between() {
    each_server(|kind| {
        let mut server = proven(kind);
        server.connect().ok("DLOCK.ACQUIRE early t 600000");
        server.connect().ok("SAVE");
        for conf in ["dlock.restart-grace 0", "dlock.restart-grace 600000"] {
            server.kill9();
            server.restart_with(|options| options.conf("appendonly no").conf(conf));
            end(&server);
            server.connect().ok("DLOCK.ACQUIRE k t 600000");
            server.kill9();
            server.restart_with(|options| options.conf("appendonly yes").conf("dlock.restart-grace 600000"));
            assert_grace(&mut server.connect(), "DLOCK.ACQUIRE k other 1000");
            end(&server);
            until_proven(&server);
        }
    });
}

/// A lagging replica keeps all that it has received, which is not all that its master has granted.
#[test]
fn a_replica_that_lagged_and_starts_as_a_master() {
    each_server(|kind| {
        for proven_before in [false, true] {
            let master = Server::start(kind);
            let mut replica =
                ALWAYS.iter().fold(with_grace(kind), |options, line| options.conf(line)).start();
            if proven_before {
                end(&replica);
                until_proven(&replica);
            }
            replica.replicate(&master);
            assert!(!path(&replica).exists());
            let fence = master.connect().ok("DLOCK.ACQUIRE early t 600000").int();
            replica.wait_in_sync(&master);
            until("its file holds what it received", || {
                ["aof_rewrite_in_progress", "aof_rewrite_scheduled"].iter().all(|is| replica.info(is) == "0")
            });
            let begun = logged(&replica).0;
            replica.kill9();
            // This one it does not receive.
            master.connect().ok("DLOCK.ACQUIRE k t 600000");
            master.kill9();
            replica.restart();
            let mut conn = replica.connect();
            assert_eq!(conn.ok("DLOCK.ACQUIRE early t 600000"), fence, "its file is whole");
            assert_grace(&mut conn, "DLOCK.ACQUIRE k other 1000");
            assert_eq!(logged(&replica).0, begun + 1);
        }
    });
}

/// Its own file is whole, and its replica was master meanwhile.
#[test]
fn a_master_whose_replica_was_promoted_and_lost() {
    each_server(|kind| {
        let (mut master, replica) = (proven(kind), Server::start(kind));
        replica.replicate(&master);
        until("it is withdrawn", || !path(&master).exists());
        assert_unproven(&master, "a replica has followed");
        master.kill9();
        let mut conn = replica.connect();
        assert_eq!(conn.ok("REPLICAOF NO ONE"), "OK");
        assert!(conn.ok("DLOCK.ACQUIRE k t 600000").int() > 0);
        drop(replica);
        comes_back_with_grace(&mut master, "a replica");
    });
}

#[test]
fn a_master_that_followed_another_and_came_back() {
    each_server(|kind| {
        let (mut server, master) = (proven(kind), Server::start(kind));
        let mut conn = server.connect();
        assert_eq!(conn.ok(&format!("REPLICAOF 127.0.0.1 {}", master.port())), "OK");
        assert!(!path(&server).exists());
        assert_eq!(conn.ok("REPLICAOF NO ONE"), "OK");
        assert_unproven(&server, "no grace period has ended");
        server.kill9();
        comes_back_with_grace(&mut server, "a promotion");
        // A start as a replica withdraws it too.
        let mut server = proven(kind);
        server.kill9();
        server.restart_with(|options| options.conf(&format!("replicaof 127.0.0.1 {}", master.port())));
        assert!(!path(&server).exists());
    });
}

fn shell(script: &str, folder: &Path) {
    let status = Command::new("sh").args(["-ec", script]).current_dir(folder).status().expect("sh runs");
    assert!(status.success(), "{script}");
}

#[test]
fn a_module_that_is_loaded_late_has_loaded_nothing() {
    each_server(|kind| {
        // By arguments: redis.conf may not name an option of a module that is not loaded.
        let options = Server::options(kind).module_args("restart-grace 600000");
        let mut server = ALWAYS.iter().fold(options, |options, line| options.conf(line)).start();
        end(&server);
        until_proven(&server);
        server.kill9();
        let proof = fs::read(path(&server)).expect("the proof");
        // No server without the module reads this file, so it begins anew.
        shell("rm -r appendonlydir", server.dir());
        server.restart_with(|options| options.without_module());
        assert_eq!(fs::read(path(&server)).expect("it is still there"), proof);
        let mut conn = server.connect();
        let module = module_path().to_str().expect("a path of text");
        let load = ["MODULE", "LOADEX", module, "CONFIG", "dlock.restart-grace", "600000"];
        assert_eq!(conn.call(&load), Value::Simple("OK".into()));
        assert_grace(&mut conn, "DLOCK.ACQUIRE k other 1000");
        until("it is withdrawn", || !path(&server).exists());
    });
}
