//! What becomes of the proof's file, and of the files that it speaks of: behind the server's back, or by
//! CONFIG SET.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use dlock_testkit::{Folder, Port, each_server, until};

use super::super::proven::{path, proven};
use super::super::{ALWAYS, assert_grace, assert_unproven, end, until_proven, with_grace};
use super::{comes_back_with_grace, shell};

#[test]
fn what_an_operator_may_do_to_the_folder_while_the_server_is_down() {
    each_server(|kind| {
        for script in [
            // A backup that is put back, whole or in parts, at the same place.
            "mkdir b; cp -a *.proof *.fence appendonlydir b; rm -r *.proof *.fence appendonlydir; cp -a b/* .",
            "cp -a appendonlydir b; rm -r appendonlydir; cp -a b appendonlydir",
            "cp -a *.proof b; rm *.proof; mv b $(basename *.fence .fence).proof",
            // Its bytes.
            "for f in *.proof; do tr 0-8 1-9 <$f >b; cat b >$f; done",
            "for f in *.proof; do : >$f; done",
            "rm *.proof; mkfifo $(basename *.fence .fence).proof",
            "rm *.fence",
        ] {
            let mut server = proven(kind);
            server.connect().ok("DLOCK.ACQUIRE early t 600000");
            server.kill9();
            shell(script, server.dir());
            comes_back_with_grace(&mut server, script);
        }
    });
}

#[test]
fn a_link_that_was_planted_is_neither_believed_nor_followed() {
    each_server(|kind| {
        let mut server = proven(kind);
        server.kill9();
        let elsewhere = server.dir().join("elsewhere");
        fs::rename(path(&server), &elsewhere).expect("it can be moved");
        symlink(&elsewhere, path(&server)).expect("a link");
        let bytes = fs::read(&elsewhere).expect("the proof");
        symlink(&elsewhere, server.dir().join(format!("dlock-{}.proof.tmp", server.port()))).expect("a link");
        comes_back_with_grace(&mut server, "a link");
        end(&server);
        until_proven(&server);
        assert_eq!(fs::read(&elsewhere).expect("it is still there"), bytes);
        let proof = fs::symlink_metadata(path(&server)).expect("a new one");
        assert!(proof.is_file());
    });
}

#[test]
fn another_append_only_file() {
    each_server(|kind| {
        for conf in ["appendfilename other.aof", "appenddirname other"] {
            let mut server = proven(kind);
            server.connect().ok("DLOCK.ACQUIRE early t 600000");
            server.kill9();
            server.restart_with(|options| options.conf(conf));
            assert_grace(&mut server.connect(), "DLOCK.ACQUIRE k other 1000");
            assert!(!path(&server).exists(), "{conf}");
        }
    });
}

#[test]
fn another_folder_or_port_while_it_runs() {
    each_server(|kind| {
        let folder = Folder::fresh();
        let options = ALWAYS.iter().fold(with_grace(kind), |options, line| options.conf(line));
        let mut server = options.conf("enable-protected-configs yes").start();
        end(&server);
        until_proven(&server);
        let mut conn = server.connect();
        assert_eq!(conn.ok(&format!("CONFIG SET dir {}", folder.path().display())), "OK");
        assert!(!path(&server).exists());
        assert_unproven(&server, "dir has changed");
        server.kill9();
        comes_back_with_grace(&mut server, "dir");

        let (mut server, port) = (proven(kind), Port::claim());
        let mut conn = server.connect();
        assert_eq!(conn.ok(&format!("CONFIG SET port {}", port.number())), "OK");
        assert!(!path(&server).exists());
        let moved = server.dir().join(format!("dlock-{}.proof", port.number()));
        until("it stands under the new port", || moved.exists());
        server.kill9();
        comes_back_with_grace(&mut server, "port");
    });
}

/// Makes a file that nobody can remove, not even root.
struct Immutable<'a>(&'a Path);

impl Immutable<'_> {
    fn set(&self, how: &str) -> bool {
        Command::new("chattr").arg(how).arg(self.0).output().is_ok_and(|output| output.status.success())
    }
}

impl Drop for Immutable<'_> {
    fn drop(&mut self) {
        self.set("-i");
    }
}

#[test]
fn one_that_cannot_be_removed_stops_grants_until_it_can() {
    each_server(|kind| {
        let server = proven(kind);
        let mut conn = server.connect();
        let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
        let (mut next, path) = (server.connect(), path(&server));
        next.send(&["DLOCK.ACQUIRE", "k", "next", "600000", "BLOCK", "0"]);
        until("it waits", || server.info("dlock_waiting") == "1");
        let proof = Immutable(&path);
        if !proof.set("+i") {
            return eprintln!("!! skipped: no file can be made immutable here (as root it can)");
        }
        assert_eq!(conn.ok("CONFIG SET appendfsync everysec"), "OK");
        assert_eq!(server.info("dlock_restart_proof"), "failing");
        assert_eq!(server.log().matches("Nothing new is granted until it is").count(), 1);
        assert_grace(&mut conn, "DLOCK.ACQUIRE free t 1000");
        // What is held goes on, and nobody gets what is given back.
        assert_eq!(conn.ok("DLOCK.ACQUIRE k t 600000"), fence);
        assert_eq!(conn.ok("DLOCK.RELEASE k t"), 1);
        assert_eq!(conn.ok("DLOCK.INSPECT k").field("mode"), &"free");
        assert!(proof.set("-i"));
        assert!(next.read().int() > fence, "whoever waits is served");
        assert!(!path.exists());
        assert_eq!(server.info("dlock_restart_proof"), "none");
        assert!(conn.ok("DLOCK.ACQUIRE free t 1000").int() > fence);
    });
}
