//! Errors: their text, and their class for a client. The last test is about values of options.

use dlock_protocol::error::{Class, Denied, Error, Misuse, Refusal, is_own_cycle, shortened};
use dlock_protocol::{Token, Ttl, event, options};
use proptest::prelude::*;

fn token(name: &str) -> Token {
    Token::new(name.as_bytes()).expect("a token")
}

/// Errors of all kinds. A new kind must be added here, and in [`class`], which does not compile without it.
fn all() -> Vec<Error> {
    let refusals = [
        Refusal::OtherMode,
        Refusal::CountFull,
        Refusal::FencesUsedUp,
        Refusal::LeaseTooLong(Ttl::MAX),
        Refusal::CountAboveOne(2),
        Refusal::TooManyHolders(100),
    ];
    let misuses = [
        Misuse::Arguments,
        Misuse::TokenLength,
        Misuse::LabelLength,
        Misuse::OwnerLength,
        Misuse::PatternLength,
        Misuse::NotifyLength,
        Misuse::NotifyAlone,
        Misuse::Range("BLOCK ms", 0, 5),
        Misuse::Ttl(Ttl::MAX),
        Misuse::Twice("BLOCK"),
        Misuse::Exclusive("SHARED", "PERMITS"),
        Misuse::NoValue("BLOCK"),
        Misuse::Unknown("FAIR".into()),
    ];
    let others = [
        Error::Grace(58_475),
        Error::QueueFull { on_the_server: 10, on_a_key: 5, queued: 7 },
        Error::Deadlock(vec![token("a"), token("b"), token("a")]),
        Error::FenceAhead { ms: 7, bound: 5 },
        Error::WrongType,
        Error::NotAGate,
        Error::Nested,
        Error::CannotGuard,
        Error::NeedsAllRights,
        Error::NoConnection,
        Error::Replica,
        Error::NotHeld,
        Error::StaleFence(7),
        Error::Moving,
        Error::ClusterDown,
        Error::Demoted,
        Error::CannotWait,
        Error::NoChannel,
        Error::OtherSlot,
        Error::NoCluster,
        Error::EffectFromClient,
        Error::NoRandomness("none".into()),
    ];
    others.into_iter().chain(refusals.map(Error::from)).chain(misuses.map(Error::from)).collect()
}

/// The expected class of an error.
fn class(error: &Error) -> Class<'static> {
    match error {
        Error::Grace(_) => Class::Grace(58_475),
        Error::QueueFull { .. } => Class::QueueFull,
        Error::Deadlock(_) => Class::Deadlock("a -> b -> a"),
        Error::FenceAhead { .. } => Class::FenceAhead,
        Error::NotHeld => Class::NotHeld,
        Error::StaleFence(_) => Class::StaleFence(7),
        Error::Moving | Error::ClusterDown => Class::NotNow,
        Error::Demoted => Class::NoMaster,
        Error::NoChannel => Class::Forbidden(Denied::Channel),
        Error::WrongType => Class::WrongType,
        Error::OtherSlot => Class::Other,
        Error::Misuse(_)
        | Error::Refused(_)
        | Error::NotAGate
        | Error::Nested
        | Error::CannotGuard
        | Error::NeedsAllRights
        | Error::NoConnection
        | Error::NoCluster
        | Error::Replica
        | Error::CannotWait
        | Error::EffectFromClient
        | Error::NoRandomness(_) => Class::Misuse,
    }
}

/// The reference is docs/commands.md.
#[test]
fn the_reference_lists_every_error_word_and_event() {
    let reference = include_str!("../../../docs/commands.md");
    for error in all() {
        let text = error.to_string();
        let word = text.split(' ').next().unwrap_or_default();
        let row = reference.lines().find(|line| line.starts_with("| `") && line[3..].starts_with(word));
        assert!(row.is_some(), "the table of error words lacks {word}");
    }
    for event in event::TABLE {
        let event = event.to_str().expect("ASCII");
        let row =
            reference.lines().find(|line| line.starts_with("| `") && line.contains(&format!("`{event}`")));
        assert!(row.is_some(), "the table of events lacks {event}");
    }
}

#[test]
fn every_error_is_classified() {
    for error in all() {
        assert_eq!(Class::of(&error.to_string()), class(&error), "{error}");
    }
    assert_eq!(Class::of("ERR unknown command 'DLOCK.ACQUIRE', with args .."), Class::NoModule);
    assert_eq!(Class::of("NOPERM No permissions to access a key"), Class::Forbidden(Denied::Key));
    // Redis 7.0, and later servers.
    for text in [
        "NOPERM this user has no permissions to run the 'dlock.acquire' command",
        "NOPERM User keycloak has no permissions to run the 'dlock.acquire' command",
    ] {
        assert_eq!(Class::of(text), Class::Forbidden(Denied::Command));
    }
    let text = "NOPERM this user has no permissions to access one of the keys used as arguments";
    assert_eq!(Class::of(text), Class::Forbidden(Denied::Key));
    assert_eq!(Class::of("NOAUTH Authentication required."), Class::Login);
    assert_eq!(Class::of(""), Class::Other);
    for owner in [&b"ann"[..], b"a much longer name", b"\xff"] {
        let own = Error::Deadlock([owner, owner].map(|name| Token::new(name).unwrap()).to_vec()).to_string();
        let Class::Deadlock(cycle) = Class::of(&own) else { panic!("{own}") };
        assert!(is_own_cycle(cycle, owner) && !is_own_cycle(cycle, b"bob"), "{cycle}");
        assert!(!is_own_cycle(&format!("{cycle} -> bob"), owner));
    }
    for word in ["BUSY", "LOADING", "OOM", "MISCONF", "NOREPLICAS", "CLUSTERDOWN", "TRYAGAIN"] {
        assert_eq!(Class::of(&format!("{word} why")), Class::NotNow);
    }
    for word in ["READONLY", "UNBLOCKED", "MASTERDOWN"] {
        assert_eq!(Class::of(&format!("{word} why")), Class::NoMaster);
    }
}

/// Older modules send only the number.
#[test]
fn grace_is_read_without_a_text_after_its_number() {
    assert_eq!(Class::of("GRACE 58475"), Class::Grace(58_475));
    assert_eq!(Class::of("GRACE soon"), Class::Other);
}

#[test]
fn an_error_is_one_line_and_names_only_existing_options() {
    for error in all() {
        let text = error.to_string();
        assert!(!text.contains(['\r', '\n']) && text.len() < 500, "{text}");
        for name in text.split("dlock.").skip(1) {
            let end = name.find(|c: char| c != '-' && !c.is_ascii_lowercase()).unwrap_or(name.len());
            assert!(options::TABLE.iter().any(|option| option.name == &name[..end]), "{text}");
        }
    }
}

#[test]
fn a_deadlock_error_shortens_long_cycles_and_tokens() {
    let tokens = prop::collection::vec(prop::collection::vec(any::<u8>(), 1..=255), 1..30);
    crate::random(tokens, 300, |cycle| {
        let cycle: Vec<Token> = cycle.iter().map(|bytes| Token::new(bytes).expect("a token")).collect();
        let text = Error::Deadlock(cycle.clone()).to_string();
        assert!(text.len() <= 512 && text.is_ascii(), "{text}");
        // Of a cycle of more than eight tokens, the text shows the first four and the last four.
        assert_eq!(text.contains(&format!("({} more)", cycle.len().saturating_sub(8))), cycle.len() > 8);
    });
    assert_eq!(*shortened(b"12345678"), *b"12345678");
    assert_eq!(*shortened(b"123456789"), *b"12345678...");
}

#[test]
fn values_of_options_are_read_as_redis_conf_writes_them() {
    assert!(options::MAX_TTL.is("max-ttl") && options::MAX_TTL.is("DLOCK.Max-TTL"));
    assert!(!options::MAX_TTL.is("max-tt") && !options::MAX_TTL.is("dlock.dlock.max-ttl"));
    assert_eq!(options::FENCE_MARK.read("YES"), Ok(1));
    assert_eq!(options::FENCE_MARK.read("1"), Err("yes or no".into()));
    assert_eq!(options::MAX_TTL.read("0"), Err("a number from 1 to 4294967295".into()));
    for option in options::TABLE {
        assert!(
            matches!(option.kind, options::Kind::YesNo { .. })
                || option.read(&option.default().to_string()).is_ok()
        );
    }
}
