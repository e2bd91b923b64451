//! kill -9 at random moments under load.

use super::rounds::{Rounds, Tally};
use super::{LONGEST, always, with_grace};
use dlock_testkit::{Options, Random, Server, ServerKind, each_server, until};

#[each_server]
fn kill_9_loses_no_acknowledged_command_with_appendfsync_always(kind: &ServerKind) {
    let rounds = Rounds {
        name: "kill -9, appendfsync always",
        leases: &[100, 600_000, 600_000],
        grants: 300,
        all_is_given_back: true,
    };
    let tally = rounds.run(always(kind).start(), |server, random| {
        begin(server, random, "BGREWRITEAOF");
        server.kill9();
    });
    tally.assert_nothing_lost();
}

/// A client may rely on a lost hold for the length of its lease.
fn run_with_grace(
    name: &'static str,
    options: Options,
    mut fault: impl FnMut(&Server, &mut Random),
) -> Tally {
    // At most the grace period.
    let rounds = Rounds { name, leases: &[60, 250, LONGEST], grants: 300, all_is_given_back: false };
    let tally = rounds.run(options.start(), |server, random| {
        fault(server, random);
        server.kill9();
    });
    assert!(tally.grace > 0, "grace was never asked for");
    tally
}

#[each_server]
fn grace_covers_grants_lost_to_kill_9_with_appendfsync_everysec(kind: &ServerKind) {
    let options = with_grace(kind).conf("appendonly yes").conf("auto-aof-rewrite-min-size 100kb");
    run_with_grace("kill -9, appendfsync everysec", options, |server, random| {
        begin(server, random, "BGREWRITEAOF");
    });
}

/// In every second round the append only file is switched off for a while by CONFIG, which redis.conf does
/// not know.
#[each_server]
fn grace_covers_grants_lost_to_kill_9_with_the_append_only_file_switched_off(kind: &ServerKind) {
    let options = with_grace(kind).conf("appendonly yes").conf("appendfsync always");
    let mut round = 0;
    let tally = run_with_grace("kill -9, appendonly switched off", options, |server, _| {
        round += 1;
        if round % 2 == 0 {
            return;
        }
        assert_eq!(server.connect().ok("CONFIG SET appendonly no"), "OK");
        let granted = || server.info("dlock_grants").parse::<u64>().expect("a number");
        let before = granted();
        until("something is granted that is not kept", || granted() > before + 20);
    });
    assert!(!tally.lost.is_empty(), "a server that kept nothing lost nothing?");
}

#[each_server]
fn grace_covers_grants_lost_to_kill_9_with_snapshots_only(kind: &ServerKind) {
    let tally = run_with_grace("kill -9, snapshots only", with_grace(kind), |server, random| {
        let save = *random.of(&["SAVE", "BGSAVE"]);
        begin(server, random, save);
    });
    assert!(!tally.lost.is_empty(), "a server with old snapshots only lost nothing?");
}

#[each_server]
fn grace_covers_grants_lost_to_kill_9_without_persistence(kind: &ServerKind) {
    let tally = run_with_grace("kill -9, nothing kept", with_grace(kind), |_, _| ());
    assert!(!tally.lost.is_empty(), "a server that keeps nothing lost nothing?");
}

/// In every second round a background write is in progress at the crash, or was just before.
fn begin(server: &Server, random: &mut Random, command: &str) {
    if !random.once_in(2) {
        return;
    }
    let mut conn = server.connect();
    // The server refuses a second background write while one is in progress.
    let _ = conn.say(command);
    if random.once_in(2) {
        until("the server has done so", || {
            ["aof_rewrite_in_progress", "rdb_bgsave_in_progress"]
                .iter()
                .all(|field| server.info(field) == "0")
        });
    }
}
