//! What clients read when something is refused: the error word, what is the matter, what to do.

use std::borrow::Cow;

use dlock_core::{Limits, Refusal, Token};

pub fn refusal(refusal: Refusal) -> String {
    match refusal {
        Refusal::OtherPermits(n) => {
            format!(
                "ERR the semaphore is held with PERMITS {n}: ask for the same number, or wait until it is free"
            )
        }
        Refusal::OtherMode => {
            "ERR the token holds the lock in a mode that cannot be changed: release it first".into()
        }
        Refusal::CountFull => "ERR the hold's count is at its greatest: release some".into(),
        Refusal::FencesUsedUp => "ERR no fence is left below 2^53 on this server".into(),
        Refusal::EnteredOften(count) => format!(
            "ERR the token holds the lock exclusively with a count of {count}: SHARED alone shares it and needs a count \
             of 1, release the others first; to read inside a write section ask with REENTRANT or DEPTH"
        ),
        Refusal::TooManyHolders(most) => format!(
            "ERR {most} holders are as many as one key may have (dlock.max-holders-per-key): try again when some have \
             released"
        ),
        Refusal::LeaseTooLong(longest) => format!(
            "ERR the longest lease and lock-delay were lowered to {} ms while this waited (dlock.max-ttl, or a shorter \
             dlock.restart-grace): ask again for a shorter one",
            longest.millis()
        ),
    }
}

/// As much of a token as whoever may not write its key is shown: a token is the proof of ownership. One that is cut
/// off ends in three dots.
pub fn shortened(token: &[u8]) -> Cow<'_, [u8]> {
    const SHOWN: usize = 8;
    match token.get(..SHOWN) {
        Some(start) if token.len() > SHOWN => [start, b"..."].concat().into(),
        _ => token.into(),
    }
}

/// Of a long cycle its two ends.
pub fn deadlock(cycle: &[Token]) -> String {
    const END: usize = 4;
    let shown = |token: &Token| shortened(token.as_bytes()).escape_ascii().to_string();
    let mut tokens: Vec<String> = cycle.iter().map(shown).collect();
    if let between @ 1.. = tokens.len().saturating_sub(2 * END) {
        tokens.splice(END..END + between, [format!("({between} more)")]);
    }
    format!("DEADLOCK {}", tokens.join(" -> "))
}

pub fn queue_full(limits: Limits) -> String {
    format!(
        "QUEUEFULL too many clients wait: at most {} on this server (dlock.max-waiters) and {} on one key \
         (dlock.max-waiters-per-key)",
        limits.on_the_server, limits.on_a_key
    )
}

/// The ms come right behind the word: clients wait for so long.
pub fn grace(ms_left: u64) -> String {
    format!(
        "GRACE {ms_left} ms left: this server may have forgotten holds, so it grants no new ones until those have \
         expired; retry after that, or end it by CONFIG SET dlock.restart-grace 0 if you know that nobody holds \
         a lock"
    )
}

pub fn fence_ahead(ms: u64, bound: u64) -> String {
    format!(
        "FENCEAHEAD the fence lies {ms} ms beyond the {bound} ms by which it may be ahead of this server's clock: \
         look at the clock of the server that issued it"
    )
}

pub const EFFECT: &str = "ERR this command is how a master tells replicas and the append only file what happened; \
                          clients use DLOCK.ACQUIRE and its kin, see DLOCK.HELP";

pub const NO_CONNECTION: &str = "ERR EPHEMERAL cannot be used in a script, which has no connection of its own to end \
                                 with: send the command itself, or in MULTI";

pub const REPLICA: &str = "ERR this server is a replica, where nothing ends by itself: ask its master for BLOCK and \
                           EPHEMERAL";

/// The one error that clients of a cluster are meant to answer by asking again: they are sent to the right node then.
pub const MOVING: &str = "TRYAGAIN the key's slot is on its way between nodes: ask again where it is now";

pub const CANNOT_WAIT: &str = "ERR this server lets no client wait for a module's lock while it is subscribed to \
                               channels: unsubscribe first, or wait on another connection";
