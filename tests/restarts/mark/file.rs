//! The mark file. It contains the fence mark, a number that no fence exceeds. A server that starts without
//! its other data continues above the mark, so that fences rise.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::{logged, mark_path, status, stored_mark, until_status};
use dlock_testkit::{Conn, Folder, Port, Server, ServerKind, Value, each_server, until};

#[each_server]
fn the_mark_exists_before_the_first_grant_and_stays_ahead_of_the_clock(kind: &ServerKind) {
    let server = Server::start(kind);
    let first = stored_mark(&mark_path(&server));
    let fence = server.connect().ok("DLOCK.ACQUIRE k t 600000").int();
    // A mark is 7 s ahead of the clock. The server writes another one every 5 s, even without grants.
    assert!((1..=7_000_000).contains(&(first - fence)), "mark {first}, fence {fence}");
    until("another mark is written", || stored_mark(&mark_path(&server)) > first);
    let further = stored_mark(&mark_path(&server));
    until("INFO shows the mark", || server.number("dlock_fence_mark") >= further);
    assert!((further - first) >= 4_000_000, "mark {further} after {first}");
    assert_eq!((status(&server), server.number("dlock_fences_beyond_mark")), ("ok".into(), 0));
    assert_eq!(logged(&server, ""), 0, "{}", server.log());
}

#[each_server]
fn the_mark_rises_above_a_confirmed_fence(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
    // 9.5 s ahead of the clock: above the mark (7 s), and within the skew bound of CONFIRM (10 s).
    let raised = fence + 9_500_000;
    let confirm = format!("DLOCK.CONFIRM k t {raised} 600000");
    let answers = conn.say_together(&[confirm.as_str(), "DLOCK.ACQUIRE other t 600000", "INFO dlock"]);
    assert_eq!((answers[0].int(), answers[1].int()), (raised, raised + 1));
    // The counter includes the fence of the ACQUIRE, but not that of the CONFIRM, which the server did not
    // issue.
    assert!(answers[2].text().contains("dlock_fences_beyond_mark:1"), "{answers:?}");
    until("the mark covers the raised fence", || stored_mark(&mark_path(&server)) > raised + 1);
    until("INFO shows the new mark", || server.number("dlock_fence_mark") > raised + 1);
    assert_eq!(conn.ok("DLOCK.ACQUIRE third t 600000"), raised + 2);
    assert_eq!(server.number("dlock_fences_beyond_mark"), 1);
}

/// A user with write access to the folder could redirect the server's write with a link.
#[each_server]
fn a_planted_link_is_not_followed(kind: &ServerKind) {
    let mut server = Server::start(kind);
    server.kill9();
    let (precious, mark) = (server.dir().join("precious"), mark_path(&server));
    fs::write(&precious, "precious").expect("the file can be written");
    // Temporary names of an earlier version and of this one.
    let (earlier, temporary) = (mark.with_extension("tmp"), mark.with_extension("fence.tmp"));
    for link in [&earlier, &temporary] {
        symlink(&precious, link).expect("the link can be created");
    }
    server.restart();
    assert_eq!(fs::read(&precious).expect("the file is still there"), b"precious");
    assert_eq!(status(&server), "ok");
    let found = fs::symlink_metadata(&mark).expect("the mark");
    assert!(found.is_file() && found.permissions().mode() & 0o777 == 0o600, "{found:?}");
    assert!(fs::symlink_metadata(&temporary).is_err(), "the temporary file is removed");
    // A folder blocks the temporary name, so the server uses another name.
    let first = stored_mark(&mark);
    fs::create_dir_all(temporary.join("below")).expect("the folder can be created");
    until("another mark is written", || stored_mark(&mark) > first);
    assert_eq!(status(&server), "ok");
    // A link in place of the mark file is neither read nor replaced.
    server.kill9();
    fs::rename(&mark, &precious).expect("the mark can be moved");
    symlink(&precious, &mark).expect("the link can be created");
    let before = fs::read(&precious).expect("the earlier mark");
    server.restart();
    assert_eq!(status(&server), "failing");
    assert_eq!(logged(&server, "cannot be written: it is a link, not a file"), 1);
    assert_eq!(fs::read(&precious).expect("the file is still there"), before);
    fs::remove_file(&mark).expect("the file can be removed");
    until_status(&server, "ok");
}

/// Writes the file while the server is down, and restarts the server.
#[track_caller]
fn restart_with_mark(server: &mut Server, bytes: &[u8]) {
    server.kill9();
    fs::write(mark_path(server), bytes).expect("the file can be written");
    server.restart();
}

#[each_server]
fn an_invalid_mark_is_logged_and_replaced(kind: &ServerKind) {
    let mut server = Server::start(kind);
    let invalid: [&[u8]; 7] = [
        b"",
        b"dlock-fence-mark 1 17952791706617", // truncated
        b"dlock-fence-mark 1 1795279170661712 7211920084079270\n", // the mark and its check have a wrong sum
        b"dlock-fence-mark 1 9007199254740992 0\n", // 2^53
        b"dlock-fence-mark 1 99999999999999999999999999 1\n", // beyond 64 bits
        &[0xff; 100],
        &[b'1'; 1 << 20],
    ];
    for (n, bytes) in invalid.into_iter().enumerate() {
        restart_with_mark(&mut server, bytes);
        assert_eq!(logged(&server, "was damaged: fences go on from the clock alone"), n + 1);
        let fence = server.connect().ok("DLOCK.ACQUIRE k t 600000").int();
        assert!(stored_mark(&mark_path(&server)) > fence);
        assert_eq!(status(&server), "ok");
    }
}

#[each_server]
fn the_mark_of_a_newer_module_is_not_replaced(kind: &ServerKind) {
    let mut server = Server::start(kind);
    let newer = b"dlock-fence-mark 2 and more\n";
    restart_with_mark(&mut server, newer);
    assert_eq!(status(&server), "failing");
    assert_eq!(logged(&server, "a newer module wrote it"), 1);
    assert!(server.connect().ok("DLOCK.ACQUIRE k t 600000").int() > 0);
    assert_eq!(fs::read(mark_path(&server)).expect("the file"), newer);
    fs::remove_file(mark_path(&server)).expect("the file can be removed");
    until_status(&server, "ok");
    assert_eq!(logged(&server, "is written again"), 1);
}

#[each_server]
fn a_folder_or_a_pipe_in_place_of_the_mark_does_not_block_the_server(kind: &ServerKind) {
    for pipe in [false, true] {
        let mut server = Server::start(kind);
        server.kill9();
        let path = mark_path(&server);
        fs::remove_file(&path).expect("the mark can be removed");
        if pipe {
            let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo runs");
            assert!(made.success());
        } else {
            fs::create_dir(&path).expect("the folder can be created");
        }
        server.restart();
        assert_eq!(status(&server), "failing");
        assert_eq!(logged(&server, "cannot be written: it is no file"), 1);
        assert!(server.connect().ok("DLOCK.ACQUIRE k t 600000").int() > 0);
    }
}

/// Returns the contents of a mark file: the mark and, as a check, its difference from 2^53 - 1.
fn mark_file(mark: u64) -> Vec<u8> {
    format!("dlock-fence-mark 1 {mark} {}\n", (1 << 53) - 1 - mark).into_bytes()
}

#[each_server]
fn a_mark_far_ahead_of_the_clock_is_used(kind: &ServerKind) {
    let mut server = Server::start(kind);
    // The year 2200.
    let far = 7_258_118_400_000_000;
    restart_with_mark(&mut server, &mark_file(far));
    assert_eq!(logged(&server, "s ahead of the clock: fences go on above it"), 1);
    let mut conn = server.connect();
    let first = conn.ok("DLOCK.ACQUIRE k t 600000").int();
    assert_eq!(first, far as i64 + 1);
    assert_eq!(conn.ok("DLOCK.RELEASE k t"), 1);
    assert_eq!(conn.ok("DLOCK.ACQUIRE k t 600000"), first + 1);
    assert!(stored_mark(&mark_path(&server)) > first);
    // The greatest possible mark leaves no further fence.
    restart_with_mark(&mut server, &mark_file((1 << 53) - 1));
    let refused = server.connect().say("DLOCK.ACQUIRE k t 600000");
    assert_eq!(refused.error(), "ERR no fence is left below 2^53 on this server");
}

#[each_server]
fn servers_that_share_a_folder_have_separate_marks(kind: &ServerKind) {
    let folder = Folder::fresh();
    let dir = format!("dir {}", folder.path().display());
    let servers: Vec<Server> = (0..3).map(|_| Server::options(kind).conf(&dir).start()).collect();
    for server in &servers {
        let file = folder.path().join(format!("dlock-{}.fence", server.port()));
        let fence = server.connect().ok("DLOCK.ACQUIRE k t 600000").int();
        assert!(stored_mark(&file) > fence);
        assert_eq!(status(server), "ok");
        assert_eq!(logged(server, ""), 0);
    }
    assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 3);
}

#[each_server]
fn a_mark_written_by_another_server_is_logged_and_raises_the_fences(kind: &ServerKind) {
    let server = Server::start(kind);
    let other_mark = stored_mark(&mark_path(&server)) + 3_000_000;
    // Writes the file as another server would.
    fs::write(mark_path(&server), mark_file(other_mark as u64)).expect("the file can be written");
    until("the second writer is logged", || logged(&server, "is written by another server too") == 1);
    let fence = server.connect().ok("DLOCK.ACQUIRE k t 600000").int();
    assert!(fence > other_mark && stored_mark(&mark_path(&server)) > fence, "{fence} after {other_mark}");
}

#[each_server]
fn the_mark_follows_the_dir_option(kind: &ServerKind) {
    let (folder, options) = (Folder::fresh(), Server::options(kind).conf("enable-protected-configs yes"));
    let server = options.start();
    let mut conn = server.connect();
    let file = folder.path().join(format!("dlock-{}.fence", server.port()));
    assert_eq!(conn.ok(&format!("CONFIG SET dir {}", folder.path().display())), "OK");
    until("the mark is in the new folder", || file.exists());
    until("INFO shows the mark", || server.number("dlock_fence_mark") == stored_mark(&file));
    let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
    assert!(stored_mark(&file) > fence);
    let (old, first) = (stored_mark(&mark_path(&server)), stored_mark(&file));
    until("the mark rises in the new folder", || stored_mark(&file) > first);
    assert_eq!(stored_mark(&mark_path(&server)), old, "the mark in the old folder no longer rises");
    assert_eq!((status(&server), logged(&server, "")), ("ok".into(), 0));
}

#[each_server]
fn the_mark_follows_the_port_option(kind: &ServerKind) {
    let (server, port) = (Server::start(kind), Port::claim());
    let mut conn = server.connect();
    assert_eq!(conn.ok(&format!("CONFIG SET port {}", port.number())), "OK");
    let file = server.dir().join(format!("dlock-{}.fence", port.number()));
    until("the mark has the new name", || file.exists());
    // `conn` was opened before the port changed. `server.number` would connect to the old port.
    let shown = |conn: &mut Conn| conn.ok("INFO dlock").text().contains(&stored_mark(&file).to_string());
    until("INFO shows the mark", || shown(&mut conn));
    assert!(conn.ok("DLOCK.ACQUIRE k t 600000").int() < stored_mark(&file));
}

#[each_server]
fn the_mark_can_be_switched_off_and_on(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    let before = stored_mark(&mark_path(&server));
    assert_eq!(conn.ok("CONFIG SET dlock.fence-mark no"), "OK");
    assert_eq!((status(&server), server.number("dlock_fence_mark")), ("off".into(), 0));
    assert!(conn.ok("DLOCK.ACQUIRE k t 600000").int() > 0);
    assert_eq!(stored_mark(&mark_path(&server)), before, "the server does not write the file");
    assert_eq!(conn.ok("CONFIG SET dlock.fence-mark yes"), "OK");
    until_status(&server, "ok");
    // The server may have issued fences up to the old mark, so the next fence must be greater.
    let next = conn.ok("DLOCK.ACQUIRE other t 600000").int();
    assert!(next > before && stored_mark(&mark_path(&server)) > next);
    assert_eq!(logged(&server, ""), 0, "{}", server.log());
}

#[each_server]
fn a_module_loaded_at_run_time_writes_the_mark_before_the_first_grant(kind: &ServerKind) {
    let server = Server::options(kind).without_module().start();
    let mut conn = server.connect();
    let module = dlock_testkit::module_path().to_str().expect("the path is UTF-8");
    assert_eq!(conn.call(&["MODULE", "LOAD", module]), Value::Simple("OK".into()));
    let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
    assert!(stored_mark(&mark_path(&server)) > fence);
}

#[each_server]
fn the_mark_is_written_again_when_its_removed_folder_is_back(kind: &ServerKind) {
    let folder = Folder::fresh();
    let dir = folder.path().join("below");
    fs::create_dir(&dir).expect("the folder can be created");
    let server = Server::options(kind).conf(&format!("dir {}", dir.display())).start();
    fs::remove_dir_all(&dir).expect("the folder can be removed");
    until_status(&server, "failing");
    assert_eq!(logged(&server, "cannot be written: No such file or directory"), 1);
    assert!(server.connect().ok("DLOCK.ACQUIRE k t 600000").int() > 0);
    fs::create_dir(&dir).expect("the folder can be created");
    until_status(&server, "ok");
}
