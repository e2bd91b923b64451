//! Power cuts: unsynced data is lost, including data in the kernel's cache.

use super::disk::Disk;
use super::rounds::Rounds;
use super::{LONGEST, always, with_grace};
use dlock_testkit::{ServerKind, each_server};

#[each_server]
fn a_power_cut_loses_no_acknowledged_command_with_appendfsync_always(kind: &ServerKind) {
    let (kind, disk) = Disk::of(kind);
    let rounds = Rounds {
        name: "power cut, appendfsync always",
        leases: &[100, 600_000, 600_000],
        grants: 300,
        all_is_given_back: true,
    };
    let tally = rounds.run(always(&kind).start(), |server, _| {
        server.kill9();
        disk.lose_power(server.dir());
    });
    tally.assert_nothing_lost();
}

#[each_server]
fn grace_covers_grants_lost_to_a_power_cut_with_weaker_settings(kind: &ServerKind) {
    for (name, fsync) in [
        ("power cut, appendfsync everysec", "appendfsync everysec"),
        ("power cut, appendfsync no", "appendfsync no"),
    ] {
        let (kind, disk) = Disk::of(kind);
        let rounds = Rounds { name, leases: &[60, 250, LONGEST], grants: 300, all_is_given_back: false };
        let mut bytes = 0;
        let tally = rounds.run(with_grace(&kind).conf("appendonly yes").conf(fsync).start(), |server, _| {
            server.kill9();
            bytes += disk.lose_power(server.dir());
        });
        assert!(tally.grace > 0);
        if fsync == "appendfsync no" {
            assert!(bytes > 0 && !tally.lost.is_empty(), "nothing was ever synced, and nothing lost?");
        }
    }
}
