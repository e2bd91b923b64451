//! LIST: an iteration over the locks of a database, a few at a time. First the locks with waiters, in the
//! order in which their queues began; then the locks that are held or in a lock-delay (option DELAY of
//! ACQUIRE), by their slot in the schedule of deadlines. A lock can be in both parts. Neither order changes,
//! so a lock that exists during the whole iteration is always returned.

use dlock_protocol::Bytes;
use dlock_protocol::command::List;

use crate::background::Background;
use crate::queue::{WaiterId, Waiting};

/// The place at which an iteration continues. Clients see its number as the cursor. As in SCAN, a client
/// sends 0 to begin an iteration, and receives 0 at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the locks with waiters, after the queue that this waiter began.
    Waited(WaiterId),
    /// In the held locks, at this slot of the schedule.
    Scheduled(u32),
}

impl Place {
    /// Accepts any number, as clients may send any.
    pub fn of(cursor: u64) -> Place {
        match cursor & 1 {
            0 => Place::Waited(WaiterId(cursor >> 1)),
            _ => Place::Scheduled(u32::try_from(cursor >> 1).unwrap_or(u32::MAX)),
        }
    }

    pub fn cursor(self) -> u64 {
        match self {
            Place::Waited(id) => id.0 << 1,
            Place::Scheduled(slot) => u64::from(slot) << 1 | 1,
        }
    }
}

/// The result of one call of LIST.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// The keys of locks with waiters.
    pub waited: Vec<Bytes>,
    /// The keys of locks that are held or in a lock-delay.
    pub scheduled: Vec<Bytes>,
    /// `None` at the end.
    pub next: Option<Place>,
}

/// The work of one call is limited in steps. A lock costs this many. An empty slot, or a queue of another
/// database, costs one.
const STEPS_PER_LOCK: usize = 16;
/// A long key costs more steps: its length divided by this number. Matching the key with a pattern costs the
/// product of both lengths, divided by this number.
const BYTES_PER_STEP: usize = 64;

/// The next part of an iteration over the locks of `db`, from the cursor of `list`.
pub fn part(list: &List<'_>, db: i32, waiting: &Waiting, background: &Background) -> Part {
    let locks = list.count.map_or(List::DEFAULT_COUNT, |n| n.get().min(List::MAX_EXAMINED));
    // The steps that are left. `None` once a lock has exceeded them: that lock is the last one of this call.
    let mut left = Some(locks as usize * STEPS_PER_LOCK);
    // Returns whether the key matches, and its cost in steps.
    let mut examine = |key: &[u8]| {
        let wanted = list.pattern.is_none_or(|pattern| matches(pattern, key));
        let match_steps = list.pattern.map_or(0, |pattern| pattern.len() * key.len() / BYTES_PER_STEP);
        (wanted, STEPS_PER_LOCK + key.len() / BYTES_PER_STEP + match_steps)
    };
    let mut part = Part::default();
    let mut from = 0;
    match Place::of(list.cursor) {
        Place::Waited(behind) => {
            for (id, name) in waiting.queues_behind(behind) {
                let (wanted, steps) = if name.db == db { examine(&name.key) } else { (false, 1) };
                part.waited.extend(wanted.then(|| (&*name.key).into()));
                left = left.and_then(|left| left.checked_sub(steps));
                if left.is_none() {
                    part.next = Some(Place::Waited(id));
                    return part;
                }
            }
        }
        Place::Scheduled(slot) => from = slot,
    }
    if list.waited {
        return part;
    }
    for (slot, key) in background.slots(db, from) {
        if left.is_none() {
            part.next = Some(Place::Scheduled(slot));
            return part;
        }
        let (wanted, steps) = key.map_or((false, 1), &mut examine);
        part.scheduled.extend(key.filter(|_| wanted).map(Bytes::from));
        left = left.and_then(|left| left.checked_sub(steps));
    }
    part
}

/// Returns whether all of `text` matches a pattern of KEYS and SCAN: `*` stands for any bytes, `?` for one,
/// `[a-z]` for one of these, `[^a-z]` for one of the others, and `\` escapes the next byte. Takes at most as
/// many steps as both lengths multiplied.
fn matches(mut pattern: &[u8], mut text: &[u8]) -> bool {
    // The pattern after the last star, and the text with which this pattern was last compared. If they do not
    // match, the star stands for one more byte of the text.
    let mut star = None;
    loop {
        let (matched, behind) = match pattern {
            [b'*', behind @ ..] => {
                (star, pattern) = (Some((behind, text)), behind);
                continue;
            }
            [] if text.is_empty() => return true,
            [] => (false, pattern),
            _ => first_matches(pattern, text.first().copied()),
        };
        match star {
            _ if matched => (pattern, text) = (behind, &text[1..]),
            Some((behind, [_, rest @ ..])) => (star, pattern, text) = (Some((behind, rest)), behind, rest),
            _ => return false,
        }
    }
}

/// Returns two values: whether the first element of the pattern, which is not a star, matches the byte; and
/// the pattern after this element. No element matches the end of the text (`None`).
fn first_matches(pattern: &[u8], byte: Option<u8>) -> (bool, &[u8]) {
    match pattern {
        [] => (false, pattern),
        [b'?', behind @ ..] => (byte.is_some(), behind),
        [b'[', class @ ..] => {
            let (negated, class) = class.strip_prefix(b"^").map_or((false, class), |class| (true, class));
            let (found, behind) = in_class(class, byte.unwrap_or_default());
            (byte.is_some() && found != negated, behind)
        }
        [b'\\', literal, behind @ ..] | [literal, behind @ ..] => (byte == Some(*literal), behind),
    }
}

/// Returns two values: whether the byte is in the class, and the pattern after the class. A class without `]`
/// extends to the end of the pattern.
fn in_class(mut class: &[u8], byte: u8) -> (bool, &[u8]) {
    let mut found = false;
    loop {
        let (range, behind) = match class {
            [] => return (found, class),
            [b']', behind @ ..] => return (found, behind),
            [b'\\', one, behind @ ..] => (*one..=*one, behind),
            [from, b'-', to, behind @ ..] => (*from.min(to)..=*from.max(to), behind),
            [one, behind @ ..] => (*one..=*one, behind),
        };
        found |= range.contains(&byte);
        class = behind;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::num::NonZeroU32;

    use dlock_protocol::{ClientId, Fence, Instant, LockRequest, Mode, Token, Ttl};

    use super::*;
    use crate::lock::{Hold, Lock};
    use crate::queue::{Name, NewWaiter, Rank, WaitKind};
    use crate::schedule::Slot;

    const NOW: Instant = Instant::from_millis(1_000);

    #[derive(Default)]
    struct World {
        waiting: Waiting,
        background: Background,
    }

    impl World {
        fn hold(&mut self, db: i32, key: &str) -> Slot {
            let mut lock = Lock::default();
            let (token, ttl) = (Token::new(b"t").unwrap(), Ttl::MAX);
            let fence = Fence::from_outside(1).unwrap();
            lock.add(Hold::new(token, fence, NOW, NOW + ttl, ttl), Mode::Exclusive);
            self.background.schedule(&mut lock, db, key.as_bytes(), 0);
            lock.slot().unwrap()
        }

        fn wait(&mut self, db: i32, key: &str) -> WaiterId {
            let request = LockRequest::new(Token::new(key.as_bytes()).unwrap(), Ttl::MAX);
            let (name, kind) = (Name::new(db, key.as_bytes()), WaitKind::Blocked(ClientId(1)));
            let (request, rank) = (request.borrowed(), Rank::Newcomer);
            let newcomer = NewWaiter { name, rank, request, kind, since: NOW, until: None };
            self.waiting.join(newcomer).unwrap()
        }

        /// Walks over all locks in parts, and calls `meanwhile` between them.
        fn walk(
            &mut self,
            list: List<'_>,
            mut meanwhile: impl FnMut(&mut World),
        ) -> (Vec<String>, Vec<String>) {
            let (mut list, mut all) = (list, Part::default());
            let texts =
                |keys: Vec<Bytes>| keys.iter().map(|k| String::from_utf8(k.to_vec()).unwrap()).collect();
            loop {
                let part = part(&list, 0, &self.waiting, &self.background);
                all.waited.extend(part.waited);
                all.scheduled.extend(part.scheduled);
                let Some(next) = part.next else { return (texts(all.waited), texts(all.scheduled)) };
                list.cursor = next.cursor();
                assert_eq!(Place::of(list.cursor), next);
                assert_ne!(list.cursor, 0, "the cursor 0 means the end");
                meanwhile(self);
            }
        }
    }

    fn list(count: u32) -> List<'static> {
        List { cursor: 0, pattern: None, count: NonZeroU32::new(count), waited: false }
    }

    #[test]
    fn a_walk_lists_every_lock_and_queue_of_its_database_once() {
        let mut world = World::default();
        let held: Vec<String> = (0..2500).map(|n| format!("lock:{n}")).collect();
        let slots: Vec<Slot> = held.iter().map(|key| world.hold(0, key)).collect();
        world.hold(3, "elsewhere");
        for key in ["lock:7", "a", "b"] {
            world.wait(0, key);
            world.wait(0, key);
        }
        world.wait(3, "c");
        // Removes two of three locks, and all of a chunk of the schedule (1,024 slots).
        let stays = |at: usize| at.is_multiple_of(3) && !(1024..2048).contains(&at);
        for (_, slot) in slots.iter().enumerate().filter(|(at, _)| !stays(*at)) {
            world.background.unschedule(*slot, 0);
        }
        let left: Vec<&String> = held.iter().enumerate().filter(|(at, _)| stays(*at)).map(|x| x.1).collect();
        for count in [1, 7, 1000, 100_000] {
            let (waited, scheduled) = world.walk(list(count), |_| {});
            assert_eq!(waited, ["lock:7", "a", "b"], "{count}");
            assert_eq!(scheduled.iter().collect::<Vec<_>>(), left, "{count}");
        }
        let waited = world.walk(List { waited: true, ..list(1) }, |_| {});
        assert_eq!(waited, (vec!["lock:7".into(), "a".into(), "b".into()], vec![]));
        let (waited, scheduled) = world.walk(List { pattern: Some(b"*:[67]*5"), ..list(10) }, |_| {});
        assert!(waited.is_empty() && scheduled.len() > 5, "{scheduled:?}");
        assert!(scheduled.iter().all(|key| key.ends_with('5')), "{scheduled:?}");
    }

    #[test]
    fn a_walk_lists_every_lock_that_exists_throughout() {
        let mut world = World::default();
        let mut slots: Vec<Slot> = (0..3000).map(|n| world.hold(0, &format!("{n}"))).collect();
        let mut waiters: Vec<WaiterId> = (0..500).map(|n| world.wait(0, &format!("{n}w"))).collect();
        let (mut random, mut added) = (1_u64, 0);
        let (waited, scheduled) = world.walk(list(13), |world| {
            for _ in 0..5 {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = (random >> 33) as usize;
                added += 1;
                // Locks and waiters of even numbers stay.
                match random >> 62 {
                    0 => world.background.unschedule(slots[(at % slots.len()) | 1], 0),
                    1 => drop(world.waiting.leave(waiters[(at % waiters.len()) | 1])),
                    2 => slots.extend([world.hold(0, "new"), world.hold(0, "new")]),
                    _ => waiters
                        .extend([world.wait(0, &format!("{added}n")), world.wait(0, &format!("{added}m"))]),
                }
            }
        });
        let (waited, scheduled): (BTreeSet<_>, BTreeSet<_>) =
            (waited.into_iter().collect(), scheduled.into_iter().collect());
        assert!((0..500).step_by(2).all(|n| waited.contains(&format!("{n}w"))));
        assert!((0..3000).step_by(2).all(|n| scheduled.contains(&format!("{n}"))));
    }

    #[test]
    fn the_work_of_a_call_is_bounded_when_locks_are_far_apart() {
        let mut world = World::default();
        let slots: Vec<Slot> = (0..50_000).map(|n| world.hold(0, &format!("{n}"))).collect();
        // One lock stays in each chunk, so that no chunk is freed.
        for (_, slot) in slots.iter().enumerate().filter(|(at, _)| at % 1024 > 0) {
            world.background.unschedule(*slot, 0);
        }
        let first = part(&list(10), 0, &world.waiting, &world.background);
        assert_eq!(first.scheduled.len(), 1);
        // The call has the steps of 10 locks. The first lock cost those of one lock, and each empty slot cost
        // one step. The slot that exceeds the limit was still examined.
        assert_eq!(first.next, Some(Place::Scheduled(9 * STEPS_PER_LOCK as u32 + 2)));
        assert_eq!(world.walk(list(10), |_| {}).1.len(), 49);
    }

    #[test]
    fn a_walk_from_any_cursor_ends() {
        let mut world = World::default();
        world.hold(0, "k");
        world.wait(0, "k");
        for cursor in [1, 2, 3, 4, 1 << 40, u64::MAX - 1, u64::MAX] {
            // A call must not panic in a database without locks.
            part(&List { cursor, ..list(5) }, 7, &world.waiting, &world.background);
            let part = part(&List { cursor, ..list(5) }, 0, &world.waiting, &world.background);
            assert_eq!(part.next, None, "{cursor}");
        }
    }

    #[test]
    fn names_match_as_in_redis() {
        for (pattern, text, matched) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a", "", false),
            ("?", "", false),
            ("[a]", "", false),
            ("job:*", "job:", true),
            ("job:*", "jobs", false),
            ("*:1", "a:1:1", true),
            ("*a*b", "xaxbxaxb", true),
            ("*a*b", "xaxbxaxbc", false),
            ("a**c", "abc", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hello", false),
            ("h[^e]llo", "hbllo", true),
            ("h[b-a]", "ha", true),
            ("h[a-", "ha", true),
            ("h[a", "ha", true),
            ("h[\\]]", "h]", true),
            ("h[]", "h]", false),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("a\\", "a\\", true),
            ("\\?", "?", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), matched, "{pattern} {text}");
        }
    }

    #[test]
    fn a_hostile_pattern_takes_no_more_steps_than_both_lengths_multiplied() {
        let pattern = b"*a".repeat(500);
        assert!(!matches(&[&pattern[..], b"b"].concat(), &b"a".repeat(10_000)));
    }
}
