//! The fuzz targets as functions. The core's tests include this file and replay the corpus without a fuzzer,
//! so it uses nothing but the core and the protocol. Each function returns true if the input was valid.

use dlock_core::codec::{self, Anchor, Origin, Reader};
use dlock_core::{Change, Hold, Instant, Lock, Mode, Ttl};
use dlock_protocol::NotifyRef;
use dlock_protocol::command::{
    Acquire, Cancel, Confirm, Extend, Holds, Inspect, List, Log, Pttl, Release, Waiters, no_arguments,
    only_key,
};
use dlock_protocol::event::Published;

/// Parses a command. The first byte chooses the command; one argument follows the other, each after its
/// length. An accepted command is written and parsed again, and must be the same.
pub fn arguments(data: &[u8]) -> bool {
    let Some((command, mut rest)) = data.split_first() else { return false };
    let mut args: Vec<&[u8]> = Vec::new();
    while let Some((len, after)) = rest.split_first() {
        // The length 255 stands for 300, which exceeds the limits of tokens and labels.
        let len = if *len == u8::MAX { 300 } else { usize::from(*len) }.min(after.len());
        let (arg, after) = after.split_at(len);
        args.push(arg);
        rest = after;
    }
    macro_rules! round_trip {
        ($command:ident $(, $max_ttl:expr)*) => {{
            let parsed = $command::parse(&args $(, $max_ttl)*);
            if let Ok(parsed) = &parsed {
                let written = parsed.to_args();
                let written: Vec<&[u8]> = written[1..].iter().map(Vec::as_slice).collect();
                let again = $command::parse(&written $(, $max_ttl)*);
                assert_eq!(again.as_ref(), Ok(parsed));
            }
            parsed.map(drop)
        }};
    }
    let max = Ttl::MAX;
    let parsed = match command % 10 {
        0 => round_trip!(Acquire, max, max),
        1 => round_trip!(Release, max),
        2 => round_trip!(Extend, max),
        3 => round_trip!(Confirm, max),
        4 => round_trip!(Holds),
        5 => round_trip!(Pttl),
        6 => round_trip!(Waiters),
        7 => round_trip!(Cancel),
        8 => only_key(&args).map(drop).or_else(|_| round_trip!(Inspect)),
        _ => no_arguments(&args).or_else(|_| round_trip!(List)).or_else(|_| round_trip!(Log)),
    };
    if let Err(misuse) = &parsed {
        let text = misuse.to_string();
        assert!(text.starts_with("ERR ") && text.len() < 200 && !text.contains(['\r', '\n']), "{text}");
    }
    parsed.is_ok()
}

/// Reads a message of a wait. One with an outcome is what the server publishes for that outcome, perhaps with
/// more words.
pub fn messages(data: &[u8]) -> bool {
    let Some(Published { id, ended: Some(ended), secret }) = Published::read(data) else { return false };
    let message = if secret.is_empty() { id.to_vec() } else { [id, secret].join(&b' ') };
    let Some(notify) = NotifyRef::new(b"channel", &message) else { return false };
    let published = notify.to_owned().published(ended);
    assert!(data.strip_prefix(&published[..]).is_some_and(|more| more.is_empty() || more[0] == b' '));
    true
}

/// The time of the readers. The locks in the corpus were written at this time, too.
const NOW: Instant = Instant::from_micros(1_760_000_000_500_000);

/// Reads a stored lock. The first byte chooses the reader; the bytes of one lock follow.
pub fn stored(data: &[u8]) -> bool {
    let Some((choice, bytes)) = data.split_first() else { return false };
    let reader = reader(*choice);
    let Ok(written) = reader.read(bytes) else { return false };
    let mut lock = Lock::default();
    assert!(written.apply(&mut lock), "an empty lock has room for every hold that was read");
    assert_sound(&lock);
    let again = read_again(&lock, reader);
    assert_eq!(again, lock);
    assert_eq!(write(&again, reader), write(&lock, reader));
    true
}

/// Applies effects to one lock. The first byte chooses the reader; one effect follows the other, each after
/// two bytes with its length.
pub fn effects(data: &[u8]) -> bool {
    let Some((choice, mut rest)) = data.split_first() else { return false };
    let reader = reader(*choice);
    let mut lock = Lock::default();
    let mut applied = 0;
    while let Some(([low, high], after)) = rest.split_first_chunk() {
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(after.len());
        let (effect, after) = after.split_at(len);
        rest = after;
        let Ok(effect) = reader.read(effect) else { continue };
        let before = lock.clone();
        if effect.clone().apply(&mut lock) {
            let once = lock.clone();
            assert!(effect.apply(&mut lock));
            assert_eq!(sorted(&lock), sorted(&once), "an effect is idempotent");
            applied += 1;
        } else {
            assert_eq!(lock, before, "a refused effect changes nothing");
        }
        assert_sound(&lock);
        assert_eq!(read_again(&lock, reader), lock);
    }
    applied > 0
}

/// Returns a reader. The bits of `choice` choose the boot id of its machine, the offset of its clock, its
/// time, and the origin of the bytes (a file or a running server).
fn reader(choice: u8) -> Reader {
    let boot = if choice & 1 == 0 { 0x1122_3344_5566_7788 } else { 1 };
    let anchor = Anchor { boot, offset: 1_759_000_000_000 - i64::from(choice >> 4) * 1000 };
    let origin = if choice & 2 == 0 { Origin::Stored } else { Origin::Live };
    // Some clocks are at a whole millisecond, others 4 µs later. The bytes contain only milliseconds.
    let now = Instant::from_micros(NOW.micros() + u64::from(choice & 4));
    Reader { now, anchor, origin }
}

fn write(lock: &Lock, reader: Reader) -> Vec<u8> {
    let mut bytes = Vec::new();
    codec::write(lock, &Change::Whole, reader.now, reader.anchor, &mut bytes);
    bytes
}

fn read_again(lock: &Lock, reader: Reader) -> Lock {
    let mut again = Lock::default();
    let written = reader.read(&write(lock, reader)).expect("a written lock can be read");
    assert!(written.is_whole() && written.apply(&mut again));
    again
}

/// Returns the mode, the lock-delay and the holds, sorted by token. At the time 0, no stored lease has ended.
fn sorted(lock: &Lock) -> (Option<Mode>, u64, Vec<&Hold>) {
    let all = lock.at(Instant::from_micros(0));
    let mut holds: Vec<&Hold> = all.holds().collect();
    holds.sort_by_key(|hold| hold.token());
    (all.mode(), all.delay_left(), holds)
}

/// Checks that the holders fit the mode, that no token holds twice, and that the lock takes less than 1 MiB:
/// an input of a few KB must not make the server allocate much more.
fn assert_sound(lock: &Lock) {
    let (mode, _, holds) = sorted(lock);
    let most = match mode {
        None => 0,
        Some(Mode::Exclusive) => 1,
        Some(Mode::Shared) => usize::MAX,
        Some(Mode::Permits(n)) => n.get() as usize,
    };
    assert!(holds.len() <= most && holds.is_empty() == mode.is_none());
    assert!(holds.windows(2).all(|pair| pair[0].token() != pair[1].token()));
    assert!(lock.size() < 1 << 20);
}
