//! Errors in the arguments of a command.

use std::fmt;

use crate::names::{Label, OwnerId, Token};
use crate::notify::Notify;
use crate::request::MAX_PATTERN;
use crate::units::Ttl;

/// Why the arguments of a command are refused, before any key is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misuse {
    Arguments,
    TokenLength,
    LabelLength,
    OwnerLength,
    PatternLength,
    NotifyLength,
    /// NOTIFY without QUEUE.
    NotifyAlone,
    /// The name of the argument, its least and its greatest value.
    Range(&'static str, u64, u64),
    Ttl(Ttl),
    Twice(&'static str),
    /// Two options that exclude each other.
    Exclusive(&'static str, &'static str),
    NoValue(&'static str),
    Unknown(String),
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misuse::Arguments => {
                write!(f, "ERR syntax error: wrong number of arguments, DLOCK.HELP lists every form")
            }
            Misuse::TokenLength => {
                write!(f, "ERR a token has 1 to {} bytes, DLOCK.TOKEN makes one", Token::MAX_LEN)
            }
            Misuse::LabelLength => write!(f, "ERR a label has at most {} bytes", Label::MAX_LEN),
            Misuse::OwnerLength => write!(f, "ERR an owner has 1 to {} bytes", OwnerId::MAX_LEN),
            Misuse::PatternLength => {
                write!(f, "ERR a MATCH pattern has at most {} bytes", MAX_PATTERN)
            }
            Misuse::NotifyLength => {
                write!(f, "ERR NOTIFY takes a channel and a message of 1 to {} bytes each", Notify::MAX_LEN)
            }
            Misuse::NotifyAlone => f.write_str("ERR syntax error: NOTIFY requires QUEUE ms"),
            Misuse::Range(what, least, greatest) => {
                write!(f, "ERR {what} must be a whole number from {least} to {greatest}")
            }
            Misuse::Ttl(max) => write!(
                f,
                "ERR ttl must be a whole number of milliseconds from 1 to {} (dlock.max-ttl, or a shorter \
                 dlock.restart-grace)",
                max.millis()
            ),
            Misuse::Twice(what) => write!(f, "ERR syntax error: {what} may be given only once"),
            Misuse::Exclusive(one, other) => {
                write!(f, "ERR syntax error: {one} and {other} exclude each other: give one of them, once")
            }
            Misuse::NoValue(what) => write!(f, "ERR syntax error: {what} requires a value"),
            Misuse::Unknown(what) => {
                write!(f, "ERR syntax error: unknown option '{what}', DLOCK.HELP lists every form")
            }
        }
    }
}

impl std::error::Error for Misuse {}
