//! The exact text of each [`Misuse`]: clients may match on it.

use dlock_protocol::command::{
    Acquire, Cancel, Confirm, Extend, Holds, Inspect, Pttl, Release, Waiters, no_arguments, only_key,
};
use dlock_protocol::error::Misuse;
use dlock_protocol::{Ttl, Wait};

const MAX_TTL: u64 = 86_400_000;
/// Longer than the longest lease, as on a server with a short `dlock.restart-grace`.
const LONGEST_POSITION: u64 = 100_000_000;
const ARGUMENTS: &str = "ERR syntax error: wrong number of arguments, DLOCK.HELP lists every form";
const TOKEN: &str = "ERR a token has 1 to 255 bytes, DLOCK.TOKEN makes one";
const LABEL: &str = "ERR a label has at most 255 bytes";
const OWNER: &str = "ERR an owner has 1 to 255 bytes";
const NOTIFY: &str = "ERR NOTIFY and SNOTIFY take a channel and a message of 1 to 255 bytes each";
const NOTIFY_ALONE: &str = "ERR syntax error: NOTIFY and SNOTIFY require QUEUE ms";
const TTL: &str = "ERR ttl must be a whole number of milliseconds from 1 to 86400000 (dlock.max-ttl, or a shorter dlock.restart-grace)";
const FENCE: &str = "ERR fence must be a whole number from 1 to 9007199254740991";
const CLIENT: &str = "ERR CLIENT id must be a whole number from 0 to 9223372036854775807";

/// Texts that no argument accepts as a number.
const NO_NUMBERS: [&str; 16] = [
    "",
    "+5",
    "-1",
    " 5",
    "5 ",
    "05",
    "00",
    "5.0",
    "1e3",
    "0x5",
    "five",
    "5\0",
    // The Arabic digit five.
    "\u{665}",
    "18446744073709551616",
    "99999999999999999999",
    "340282366920938463463374607431768211456",
];

/// Splits a line into words at blanks. `~` stands for a blank in a word.
fn words(line: &str) -> Vec<Vec<u8>> {
    line.split(' ').filter(|word| !word.is_empty()).map(|word| word.replace('~', " ").into_bytes()).collect()
}

fn parse(args: &[Vec<u8>]) -> Result<(), Misuse> {
    let max_ttl = Ttl::from_millis(MAX_TTL).expect("in range");
    let longest_position = Ttl::from_millis(LONGEST_POSITION).expect("in range");
    let rest: Vec<&[u8]> = args[1..].iter().map(Vec::as_slice).collect();
    match args[0].as_slice() {
        b"ACQUIRE" => Acquire::parse(&rest, max_ttl, longest_position).map(drop),
        b"RELEASE" => Release::parse(&rest, max_ttl).map(drop),
        b"EXTEND" => Extend::parse(&rest, max_ttl).map(drop),
        b"CONFIRM" => Confirm::parse(&rest, max_ttl).map(drop),
        b"HOLDS" => Holds::parse(&rest).map(drop),
        b"PTTL" => Pttl::parse(&rest).map(drop),
        b"WAITERS" => Waiters::parse(&rest).map(drop),
        b"CANCEL" => Cancel::parse(&rest).map(drop),
        b"INSPECT" => Inspect::parse(&rest).map(drop),
        b"BREAK" => only_key(&rest).map(drop),
        b"TOKEN" | b"HELP" => no_arguments(&rest),
        other => panic!("no command: {other:?}"),
    }
}

fn assert_refused(args: &[Vec<u8>], text: &str) {
    let refusal = parse(args).err().map(|misuse| misuse.to_string());
    let shown: Vec<_> = args.iter().map(|arg| arg.escape_ascii().to_string()).collect();
    assert_eq!(refusal.as_deref(), Some(text), "{shown:?}");
}

#[test]
fn a_wrong_number_of_arguments_is_refused() {
    let lines = "ACQUIRE, ACQUIRE k, ACQUIRE k t, RELEASE, RELEASE k, EXTEND, EXTEND k, EXTEND k t, EXTEND k t 5 5, \
        CONFIRM k, CONFIRM k t, CONFIRM k t 5, CONFIRM k t 5 5 5, HOLDS, HOLDS k, HOLDS k t t, PTTL, PTTL k t t, \
        WAITERS, CANCEL, CANCEL k, CANCEL k CLIENT 5 5, INSPECT, BREAK, BREAK k k, TOKEN k, HELP k";
    for line in lines.split(", ") {
        assert_refused(&words(line), ARGUMENTS);
    }
}

#[test]
fn tokens_labels_and_owners_of_a_wrong_length_are_refused() {
    for line in [
        "ACQUIRE k T 5",
        "RELEASE k T",
        "EXTEND k T 5",
        "CONFIRM k T 5 5",
        "HOLDS k T",
        "PTTL k T",
        "CANCEL k T",
    ] {
        for token in [vec![], vec![b'x'; 256]] {
            let mut args = words(line);
            args[2] = token;
            assert_refused(&args, TOKEN);
        }
        let mut args = words(line);
        args[2] = vec![0; 255];
        assert_eq!(parse(&args), Ok(()));
    }
    let mut args = words("ACQUIRE k t 5 LABEL text");
    args[5] = vec![b'x'; 256];
    assert_refused(&args, LABEL);
    args[5].pop();
    assert_eq!(parse(&args), Ok(()));
    let mut args = words("ACQUIRE k t 5 OWNER id");
    for wrong in [vec![], vec![b'x'; 256]] {
        args[5] = wrong;
        assert_refused(&args, OWNER);
    }
    args[5] = vec![0; 255];
    assert_eq!(parse(&args), Ok(()));
    for at in [7, 8] {
        let mut args = words("ACQUIRE k t 5 QUEUE 5 NOTIFY c m");
        for wrong in [vec![], vec![b'x'; 256]] {
            args[at] = wrong;
            assert_refused(&args, NOTIFY);
        }
        args[at] = vec![b'x'; 255];
        assert_eq!(parse(&args), Ok(()));
    }
}

#[test]
fn wrong_options_are_refused() {
    let twice = |what| format!("ERR syntax error: {what} may be given only once");
    let exclusive = |one, other| {
        format!("ERR syntax error: {one} and {other} exclude each other: give one of them, once")
    };
    let value = |what| format!("ERR syntax error: {what} requires a value");
    let unknown = |what| format!("ERR syntax error: unknown option '{what}', DLOCK.HELP lists every form");
    let cases = [
        ("ACQUIRE k t 5 SHARED SHARED", exclusive("SHARED", "PERMITS")),
        ("ACQUIRE k t 5 SHARED PERMITS 2", exclusive("SHARED", "PERMITS")),
        ("ACQUIRE k t 5 permits 2 shared", exclusive("SHARED", "PERMITS")),
        ("ACQUIRE k t 5 PERMITS 2 PERMITS 2", exclusive("SHARED", "PERMITS")),
        ("ACQUIRE k t 5 REENTRANT REENTRANT", exclusive("REENTRANT", "DEPTH")),
        ("ACQUIRE k t 5 REENTRANT DEPTH 2", exclusive("REENTRANT", "DEPTH")),
        ("ACQUIRE k t 5 DEPTH 2 DEPTH 2", exclusive("REENTRANT", "DEPTH")),
        ("ACQUIRE k t 5 BLOCK 0 BLOCK 0", twice("BLOCK")),
        ("ACQUIRE k t 5 QUEUE 5 queue 5", twice("QUEUE")),
        ("ACQUIRE k t 5 QUEUE 5 NOTIFY c m NOTIFY c m", exclusive("NOTIFY", "SNOTIFY")),
        ("ACQUIRE k t 5 QUEUE 5 snotify c m SNOTIFY c m", exclusive("NOTIFY", "SNOTIFY")),
        ("ACQUIRE k t 5 SNOTIFY c m QUEUE 5 NOTIFY c m", exclusive("NOTIFY", "SNOTIFY")),
        ("ACQUIRE k t 5 EPHEMERAL Ephemeral", twice("EPHEMERAL")),
        ("ACQUIRE k t 5 DELAY 0 DELAY 0", twice("DELAY")),
        ("ACQUIRE k t 5 LABEL a LABEL a", twice("LABEL")),
        ("ACQUIRE k t 5 OWNER a owner a", twice("OWNER")),
        ("RELEASE k t ALL ALL", exclusive("ALL", "DEPTH")),
        ("RELEASE k t ALL DEPTH 2", exclusive("ALL", "DEPTH")),
        ("RELEASE k t DEPTH 2 all", exclusive("ALL", "DEPTH")),
        ("RELEASE k t DELAY 1 delay 1", twice("DELAY")),
        ("RELEASE k t DELAY 1 ALL DELAY 1", twice("DELAY")),
        ("WAITERS k COUNT 2 COUNT 2", twice("COUNT")),
        ("ACQUIRE k t 5 PERMITS", value("PERMITS")),
        ("ACQUIRE k t 5 DEPTH", value("DEPTH")),
        ("ACQUIRE k t 5 BLOCK", value("BLOCK")),
        ("ACQUIRE k t 5 QUEUE", value("QUEUE")),
        ("ACQUIRE k t 5 QUEUE 5 NOTIFY", value("NOTIFY")),
        ("ACQUIRE k t 5 QUEUE 5 NOTIFY c", value("NOTIFY")),
        ("ACQUIRE k t 5 QUEUE 5 SNOTIFY", value("SNOTIFY")),
        ("ACQUIRE k t 5 QUEUE 5 SNOTIFY c", value("SNOTIFY")),
        ("ACQUIRE k t 5 NOTIFY c m", NOTIFY_ALONE.to_owned()),
        ("ACQUIRE k t 5 SNOTIFY c m BLOCK 5", NOTIFY_ALONE.to_owned()),
        ("EXTEND k t 5 SNOTIFY c m", ARGUMENTS.to_owned()),
        ("ACQUIRE k t 5 NOTIFY c m BLOCK 5", NOTIFY_ALONE.to_owned()),
        ("ACQUIRE k t 5 DELAY", value("DELAY")),
        ("ACQUIRE k t 5 LABEL", value("LABEL")),
        ("ACQUIRE k t 5 OWNER", value("OWNER")),
        ("RELEASE k t DEPTH", value("DEPTH")),
        ("RELEASE k t ALL DELAY", value("DELAY")),
        ("WAITERS k COUNT", value("COUNT")),
        // A word that is not short and alphabetic may be a token, so the text shows `..` instead.
        ("ACQUIRE k t 5 FAIR", unknown("FAIR")),
        ("ACQUIRE k t 5 SHARED 2", unknown("..")),
        ("RELEASE k t One", unknown("One")),
        ("RELEASE k DELAY 5", unknown("..")),
        ("RELEASE k t LABEL a", unknown("LABEL")),
        ("WAITERS k all", unknown("all")),
        ("CANCEL k ID 5", unknown("ID")),
        ("RELEASE k t 0123456789abcdef0123456789abcdef01234567", unknown("..")),
        ("ACQUIRE k t 5 abcdefghijklmnopq", unknown("..")),
        ("ACQUIRE k t 5 SHARED~", unknown("..")),
    ];
    for (line, text) in cases {
        assert_refused(&words(line), &text);
    }
    // Without an id, CLIENT is a token.
    assert_eq!(parse(&words("CANCEL k CLIENT")), Ok(()));
}

#[test]
fn numbers_out_of_range_are_refused() {
    let range =
        |what, least: u64, most: u64| format!("ERR {what} must be a whole number from {least} to {most}");
    let count = i32::MAX as u64;
    let cases = [
        ("ACQUIRE k t N", TTL.to_owned(), 1, MAX_TTL),
        ("EXTEND k t N", TTL.to_owned(), 1, MAX_TTL),
        ("CONFIRM k t 5 N", TTL.to_owned(), 1, MAX_TTL),
        ("CONFIRM k t N 5", FENCE.to_owned(), 1, (1 << 53) - 1),
        ("ACQUIRE k t 5 PERMITS N", range("PERMITS", 1, count), 1, count),
        ("ACQUIRE k t 5 DEPTH N", range("DEPTH", 1, count), 1, count),
        ("RELEASE k t DEPTH N", range("DEPTH n", 0, count), 0, count),
        ("RELEASE k t DELAY N", range("DELAY ms", 0, MAX_TTL), 0, MAX_TTL),
        ("WAITERS k COUNT N", range("COUNT", 1, count), 1, count),
        ("ACQUIRE k t 5 BLOCK N", range("BLOCK ms", 0, Wait::MAX_MILLIS), 0, Wait::MAX_MILLIS),
        ("ACQUIRE k t 5 QUEUE N", range("QUEUE ms", 1, LONGEST_POSITION), 1, LONGEST_POSITION),
        ("ACQUIRE k t 5 DELAY N", range("DELAY ms", 0, MAX_TTL), 0, MAX_TTL),
        ("CANCEL k CLIENT N", CLIENT.to_owned(), 0, i64::MAX as u64),
    ];
    for (line, text, least, most) in cases {
        let with = |number: &str| -> Vec<Vec<u8>> {
            words(line).into_iter().map(|word| if word == b"N" { number.into() } else { word }).collect()
        };
        for number in NO_NUMBERS {
            assert_refused(&with(number), &text);
        }
        assert_refused(&with(&(most + 1).to_string()), &text);
        assert_refused(&with(&u64::MAX.to_string()), &text);
        if least > 0 {
            assert_refused(&with(&(least - 1).to_string()), &text);
        }
        for number in [least, most] {
            assert_eq!(parse(&with(&number.to_string())), Ok(()), "{line} with {number}");
        }
    }
}
