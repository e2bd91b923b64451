//! Deadlines that were written with one clock and are read with another.

use dlock_core::codec::{Anchor, Origin, Reader};
use dlock_core::{Instant, Lock};
use proptest::prelude::*;

use super::{ANCHOR, AT, hold, read, whole};
use dlock_testkit::{HoldLayout, Layout};

const OTHER_BOOT: Anchor = Anchor { boot: 5, offset: -77 };

/// A shared lock (mode 2), written at [`AT`], with a lease of 10 s, of which 4 s are left. For 3 s more, the
/// lock grants nothing because of a DELAY. An exclusive lock stores no such delay.
fn four_seconds_left() -> Vec<u8> {
    let hold = HoldLayout { deadline: AT + 4000, ..hold(b"a") };
    Layout { delay_until: AT + 3000, ..whole(2, 0, vec![hold]) }.bytes()
}

/// The remaining ms of the lease and of the delay when the bytes are read at `ms`.
fn left(ms: u64, anchor: Anchor, origin: Origin) -> (u64, u64) {
    let now = Instant::from_micros(ms * 1000);
    let lock = read(Reader { now, anchor, origin }, &four_seconds_left()).expect("a lock");
    (lock.at(now).longest_left().unwrap_or(0), lock.at(now).delay_left())
}

/// The server is down for a second. Meanwhile the wall clock is set forward or back by up to a day.
#[test]
fn time_left_is_exact_on_the_same_boot() {
    for clock_change in [-86_400_000, -1, 0, 1, 86_400_000] {
        let anchor = Anchor { offset: ANCHOR.offset + clock_change, ..ANCHOR };
        let now = (AT + 1000).saturating_add_signed(clock_change);
        for origin in [Origin::Stored, Origin::Live] {
            assert_eq!(left(now, anchor, origin), (3000, 2000), "{clock_change} {origin:?}");
        }
        let later = (AT + 4000).saturating_add_signed(clock_change);
        assert_eq!(left(later, anchor, Origin::Stored), (0, 0));
    }
}

#[test]
fn a_replicated_lease_counts_from_its_arrival() {
    for now in [1, AT - 86_400_000, AT, AT + 1, AT + 86_400_000] {
        assert_eq!(left(now, OTHER_BOOT, Origin::Live), (4000, 3000), "{now}");
    }
}

/// The offset is the wall clock minus the time since the boot. It is negative if the wall clock is near 1970.
#[test]
fn a_clock_offset_may_be_negative() {
    let anchor = Anchor { offset: -5000, ..ANCHOR };
    let hold = HoldLayout { deadline: 4000, ..hold(b"a") };
    let layout = Layout { offset: anchor.offset as u64, at: 1, ..whole(1, 0, vec![hold]) };
    let now = Instant::from_micros(2_000_000);
    let lock = read(Reader { now, anchor, origin: Origin::Stored }, &layout.bytes()).expect("a lock");
    assert_eq!(lock.at(now).longest_left(), Some(2000));
}

/// On another machine, or after another boot, only the wall clocks can be compared, and they may be wrong.
#[test]
fn the_wall_clock_decides_after_another_boot() {
    for (later, lease, delay) in
        [(0, 4000, 3000), (1000, 3000, 2000), (3500, 500, 0), (4000, 0, 0), (86_400_000, 0, 0)]
    {
        assert_eq!(left(AT + later, OTHER_BOOT, Origin::Stored), (lease, delay), "{later}");
    }
    // A clock that is behind makes neither the lease nor the delay longer than its full length.
    for earlier in [1, 5999, 6001, 86_400_000] {
        let (lease, delay) = left(AT - earlier, OTHER_BOOT, Origin::Stored);
        assert_eq!((lease, delay), ((4000 + earlier).min(10_000), 3000), "{earlier}");
    }
}

#[test]
fn a_lease_is_never_longer_than_its_ttl_by_any_clock() {
    let anchor = || (0..3u64, -(1i64 << 47)..1 << 47).prop_map(|(boot, offset)| Anchor { boot, offset });
    let time = || prop_oneof![0..1u64 << 48, AT - 100_000..AT + 100_000];
    let written = (super::any_whole(), anchor(), time(), any::<Option<u64>>());
    let read = (anchor(), time(), any::<bool>());
    crate::random((written, read), 4000, |((mut layout, writer, at, deadline), (anchor, now, live))| {
        (layout.boot, layout.offset, layout.at) = (writer.boot, writer.offset as u64, at);
        if let (Some(deadline), Some(hold)) = (deadline, layout.put.first_mut()) {
            hold.deadline = deadline;
        }
        let now = Instant::from_micros(now);
        let origin = if live { Origin::Live } else { Origin::Stored };
        let Ok(written) = (Reader { now, anchor, origin }).read(&layout.bytes()) else { return };
        let mut lock = Lock::default();
        assert!(written.apply(&mut lock));
        let view = lock.at(now);
        assert!(view.holds().all(|hold| hold.deadline().left(now) <= hold.ttl().millis() + 1));
        assert!(view.delay_left() <= u64::from(u32::MAX) + 1);
    });
}

/// The id is stored, so every version of dlock must compute the same id.
#[test]
fn the_id_of_a_boot_never_changes() {
    let id = "6d1b8b2e-3c47-4b19-9a0e-5f6e7d8c9b0a";
    assert_eq!(Anchor::boot(id, 0), Some(0x6d1b_8b2e_3c47_4b19));
    assert_eq!(Anchor::boot(&format!("{id}\n"), 0), Anchor::boot(id, 0));
    // The second argument is the offset of the boot-time clock in a time namespace, in ns. Each offset makes
    // another clock, which has an id of its own.
    let second = 1_000_000_000;
    assert_eq!(Anchor::boot(id, second), Some(0x6d1b_8b2e_3c47_4b19_u64.wrapping_add(ID_OFFSET)));
    assert_ne!(Anchor::boot(id, second), Anchor::boot(id, -second));
    assert_ne!(Anchor::boot(id, second), Anchor::boot(id, second + 1));
    for no_id in
        ["", "6d1b8b2e", "zd1b8b2e-3c47-4b19-9a0e-5f6e7d8c9b0a", "ä1b8b2e-3c47-4b19-9a0e-5f6e7d8c9b0a"]
    {
        assert_eq!(Anchor::boot(no_id, 0), None, "{no_id}");
    }
}

/// The amount that an offset of one second adds to the id: see [`Anchor::boot`].
const ID_OFFSET: u64 = 1_000_000_000_u64.wrapping_mul(0x9e37_79b9_7f4a_7c15);
