//! Commands: each written command is read back, and invalid arguments are refused with a stable text.

mod refusals;

use std::num::NonZeroU32;

use dlock_protocol::command::{
    Acquire, Cancel, CancelTarget, Confirm, Extend, Fenced, Guard, Holds, Inspect, List, Log, Pttl, Queue,
    Release, Waiters, no_arguments, only_key,
};
use dlock_protocol::{
    Delay, Fence, LabelRef, LockRequest, Mode, NotifyRef, OwnerIdRef, Reentry, ReleaseCount, Token, Ttl, Wait,
};
use proptest::prelude::*;

/// Any bytes, including words that look like options.
fn bytes(least: usize, most: usize) -> impl Strategy<Value = Vec<u8>> {
    let most = if cfg!(miri) { most.min(8) } else { most };
    let words = ["SHARED", "depth", "0", "ALL", "CLIENT", "-1"].map(|word| word.as_bytes().to_vec());
    let words = prop::sample::select(words.to_vec()).prop_map(move |mut word| {
        word.truncate(most);
        word
    });
    prop_oneof![
        6 => prop::collection::vec(any::<u8>(), least..=most.min(30)),
        1 => prop::collection::vec(any::<u8>(), most),
        2 => words,
    ]
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    bytes(0, 600)
}

fn token() -> impl Strategy<Value = Token> {
    bytes(1, 255).prop_map(|bytes| Token::new(&bytes).expect("a token"))
}

fn ttl() -> impl Strategy<Value = Ttl> {
    (1..=u64::from(u32::MAX)).prop_map(|ms| Ttl::from_millis(ms).expect("in range"))
}

fn number() -> impl Strategy<Value = NonZeroU32> {
    (1..=i32::MAX as u32).prop_map(|n| NonZeroU32::new(n).expect("above 0"))
}

fn fence() -> impl Strategy<Value = Fence> {
    (1..=Fence::MAX).prop_map(|n| Fence::from_outside(n).expect("in range"))
}

/// Returns the arguments after the command's name. Fails if the command has another name.
fn args_of<'a>(args: &'a [Vec<u8>], name: &str) -> Vec<&'a [u8]> {
    assert_eq!(args[0], name.as_bytes());
    args[1..].iter().map(Vec::as_slice).collect()
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared), number().prop_map(Mode::Permits)]
}

fn reentry() -> impl Strategy<Value = Reentry> {
    prop_oneof![Just(Reentry::Keep), Just(Reentry::OneMore), number().prop_map(Reentry::AtLeast)]
}

fn block() -> impl Strategy<Value = Option<Wait>> {
    let ms = prop_oneof![Just(0), 0..=Wait::MAX_MILLIS];
    prop::option::of(ms.prop_map(|ms| Wait::from_millis(ms).expect("in range")))
}

/// Channel, message, and whether the channel is sharded.
type Notification = (Vec<u8>, Vec<u8>, bool);

fn queue() -> impl Strategy<Value = Option<(Ttl, Option<Notification>)>> {
    prop::option::of((ttl(), prop::option::of((bytes(1, 255), bytes(1, 255), any::<bool>()))))
}

#[test]
fn acquire_is_read_back_with_its_options_in_any_order() {
    let parts = (key(), token(), ttl(), mode(), reentry(), (block(), queue()));
    let label_and_owner = (bytes(0, 255), prop::option::of(bytes(1, 255)));
    let more = (any::<bool>(), any::<u32>(), label_and_owner, any::<[prop::sample::Index; 8]>());
    crate::random((parts, more), 4000, |(parts, more)| {
        let (key, token, ttl, mode, reentry, (block, queue)) = &parts;
        let (ephemeral, delay, (label, owner), order) = &more;
        let request = LockRequest {
            token: token.borrowed(),
            ttl: *ttl,
            mode: *mode,
            reentry: *reentry,
            ephemeral: *ephemeral,
            delay: Delay::from_millis((*delay).into()).expect("in range"),
            label: LabelRef::new(label).expect("a label"),
            owner: owner.as_ref().map(|owner| OwnerIdRef::new(owner).expect("an owner")),
        };
        assert_eq!(request.to_owned().borrowed(), request);
        let queue = queue.as_ref().map(|(ms, notify)| Queue {
            ms: *ms,
            notify: notify.as_ref().map(|(channel, message, is_sharded)| {
                let plain = NotifyRef::new(channel, message).expect("a channel and a message");
                if *is_sharded { plain.sharded() } else { plain }
            }),
        });
        let command = Acquire { key, request, block: *block, queue };
        let args = command.to_args();
        let args = args_of(&args, "DLOCK.ACQUIRE");
        assert_eq!(Acquire::parse(&args, Ttl::MAX, Ttl::MAX).as_ref(), Ok(&command));
        // The same options in another order and case.
        let mut options = options(&args[3..]);
        let len = options.len();
        for (at, index) in order.iter().enumerate().take(len) {
            options.swap(at, index.index(len));
        }
        let shuffled: Vec<Vec<u8>> =
            args[..3].iter().map(|arg| arg.to_vec()).chain(options.concat()).collect();
        let shuffled: Vec<&[u8]> = shuffled.iter().map(Vec::as_slice).collect();
        assert_eq!(Acquire::parse(&shuffled, Ttl::MAX, Ttl::MAX), Ok(command));
    });
}

/// Splits arguments into options with their values. Returns the names of the options in lower case.
fn options(mut args: &[&[u8]]) -> Vec<Vec<Vec<u8>>> {
    let mut options = Vec::new();
    while let [option, rest @ ..] = args {
        let value = match *option {
            b"SHARED" | b"REENTRANT" | b"EPHEMERAL" => 0,
            b"NOTIFY" | b"SNOTIFY" => 2,
            _ => 1,
        };
        let mut group = vec![option.to_ascii_lowercase()];
        group.extend(rest[..value].iter().map(|arg| arg.to_vec()));
        options.push(group);
        args = &rest[value..];
    }
    options
}

#[test]
fn release_is_read_back() {
    let above = (0..=i32::MAX as u32).prop_map(ReleaseCount::Above);
    let count = prop_oneof![Just(ReleaseCount::One), Just(ReleaseCount::All), above];
    let all = (key(), token(), count, any::<u32>());
    crate::random(all, 1000, |(key, token, count, ms)| {
        let delay = Delay::from_millis(ms.into()).expect("in range");
        let command = Release { key: &key, token: token.borrowed(), count, delay };
        assert_eq!(Release::parse(&args_of(&command.to_args(), "DLOCK.RELEASE"), Ttl::MAX), Ok(command));
    });
}

#[test]
fn extend_and_confirm_are_read_back() {
    crate::random((key(), token(), ttl(), fence()), 1000, |(key, token, ttl, fence)| {
        let (key, token) = (&key[..], token.borrowed());
        let command = Extend { key, token, ttl };
        assert_eq!(Extend::parse(&args_of(&command.to_args(), "DLOCK.EXTEND"), Ttl::MAX), Ok(command));
        let command = Confirm { key, token, fence, ttl };
        assert_eq!(Confirm::parse(&args_of(&command.to_args(), "DLOCK.CONFIRM"), Ttl::MAX), Ok(command));
    });
}

/// Any guarded command is read back unchanged.
#[test]
fn guard_and_fenced_are_read_back() {
    let inner = prop::collection::vec(bytes(0, 300), 1..8);
    crate::random((key(), token(), fence(), inner), 1000, |(key, token, fence, inner)| {
        let inner: Vec<&[u8]> = inner.iter().map(Vec::as_slice).collect();
        let guard = Guard { key: &key, token: token.borrowed(), command: &inner };
        assert_eq!(Guard::parse(&args_of(&guard.to_args(), "DLOCK.GUARD")), Ok(guard));
        let fenced = Fenced { key: &key, fence, command: &inner };
        assert_eq!(Fenced::parse(&args_of(&fenced.to_args(), "DLOCK.FENCED")), Ok(fenced));
        // The command is missing.
        assert!(Guard::parse(&[&key, token.as_bytes()]).is_err());
    });
}

/// MAX may be written in upper or lower case.
#[test]
fn max_stands_for_the_longest_lease() {
    let word = prop::sample::select(vec!["MAX", "max", "Max", "mAx"]);
    crate::random((key(), token(), ttl(), fence(), word), 1000, |(key, token, longest, fence, word)| {
        let (key, token, word, fence_text) =
            (&key[..], token.borrowed(), word.as_bytes(), fence.get().to_string());
        let request = LockRequest::new(token, longest);
        let acquire = Acquire { key, request, block: None, queue: None };
        assert_eq!(Acquire::parse(&[key, token.as_bytes(), word], longest, longest), Ok(acquire));
        let extend = Extend { key, token, ttl: longest };
        assert_eq!(Extend::parse(&[key, token.as_bytes(), word], longest), Ok(extend));
        let confirm = Confirm { key, token, fence, ttl: longest };
        let args = [key, token.as_bytes(), fence_text.as_bytes(), word];
        assert_eq!(Confirm::parse(&args, longest), Ok(confirm));
    });
}

#[test]
fn commands_that_read_a_lock_are_read_back() {
    let count = prop::option::of(number());
    crate::random((key(), token(), any::<bool>(), count), 1000, |(key, token, with_token, count)| {
        let (key, token) = (&key[..], token.borrowed());
        let command = Holds { key, token };
        assert_eq!(Holds::parse(&args_of(&command.to_args(), "DLOCK.HOLDS")), Ok(command));
        let command = Pttl { key, token: with_token.then_some(token) };
        assert_eq!(Pttl::parse(&args_of(&command.to_args(), "DLOCK.PTTL")), Ok(command));
        let command = Waiters { key, count };
        assert_eq!(Waiters::parse(&args_of(&command.to_args(), "DLOCK.WAITERS")), Ok(command));
        let command = Inspect { key, count };
        assert_eq!(Inspect::parse(&args_of(&command.to_args(), "DLOCK.INSPECT")), Ok(command));
        assert_eq!(only_key(&[key]), Ok(key));
        assert_eq!(no_arguments(&[]), Ok(()));
    });
}

#[test]
fn commands_for_operators_are_read_back() {
    let (pattern, key) = (prop::option::of(bytes(0, 40)), prop::option::of(key()));
    crate::random((any::<u64>(), pattern, key, prop::option::of(1..9u32), any::<bool>()), 1000, |parts| {
        let (cursor, pattern, key, count, waited) = parts;
        let count = count.and_then(NonZeroU32::new);
        let command = List { cursor, pattern: pattern.as_deref(), count, waited };
        assert_eq!(List::parse(&args_of(&command.to_args(), "DLOCK.LIST")), Ok(command));
        for command in [Log::Read { count, key: key.as_deref() }, Log::Reset] {
            assert_eq!(Log::parse(&args_of(&command.to_args(), "DLOCK.LOG")), Ok(command));
        }
    });
}

#[test]
fn cancel_is_read_back() {
    crate::random((key(), token(), 0..=i64::MAX as u64), 1000, |(key, token, id)| {
        for waiters in [CancelTarget::Token(token.borrowed()), CancelTarget::Client(id)] {
            let command = Cancel { key: &key, waiters };
            assert_eq!(Cancel::parse(&args_of(&command.to_args(), "DLOCK.CANCEL")), Ok(command));
        }
    });
}
