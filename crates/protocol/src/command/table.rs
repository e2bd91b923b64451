//! Every command with its form and what it does, for COMMAND DOCS, HELP and the manual.

/// One command.
pub struct Doc {
    pub name: &'static str,
    /// What follows the name.
    pub form: &'static str,
    pub summary: &'static str,
    pub complexity: &'static str,
}

pub const ACQUIRE: Doc = Doc {
    name: "DLOCK.ACQUIRE",
    form: "key token <ttl | MAX> [SHARED | PERMITS n] [REENTRANT | DEPTH n] [BLOCK ms] [EPHEMERAL] [DELAY ms] [LABEL text]",
    summary: "Acquires the lock for a token for ttl ms; returns the hold's fence, or null",
    complexity: "O(1); O(log H) with H holders of a shared or counted lock",
};
pub const RELEASE: Doc = Doc {
    name: "DLOCK.RELEASE",
    form: "key token [ALL | DEPTH n]",
    summary: "Releases the token's hold, or one of its counts, and removes its waiters; returns how many counts ended",
    complexity: "O(log H) with H holders, and O(log W) for each waiter granted",
};
pub const EXTEND: Doc = Doc {
    name: "DLOCK.EXTEND",
    form: "key token <ttl | MAX>",
    summary: "Sets the lease to ttl ms from now; returns 1, or 0 if the token holds nothing",
    complexity: "O(1); O(log H) with H holders",
};
pub const CONFIRM: Doc = Doc {
    name: "DLOCK.CONFIRM",
    form: "key token fence <ttl | MAX>",
    summary: "Raises the hold's fence and sets its lease, the confirm phase of a fenced quorum; returns the fence",
    complexity: "O(1); O(log H) with H holders",
};
pub const HOLDS: Doc = Doc {
    name: "DLOCK.HOLDS",
    form: "key token",
    summary: "Returns the token's hold count, 0 for none",
    complexity: "O(1); O(log H) with H holders",
};
pub const PTTL: Doc = Doc {
    name: "DLOCK.PTTL",
    form: "key [token]",
    summary: "Returns the ms left of the token's lease, or of the longest one; -2 for none",
    complexity: "O(1); O(log H) with H holders",
};
pub const INSPECT: Doc = Doc {
    name: "DLOCK.INSPECT",
    form: "key [COUNT n]",
    summary: "Returns the holders (n of them, or 1000) and how many wait, as a map; null if there are none",
    complexity: "O(log H + n) with H holders, n of them shown",
};
pub const WAITERS: Doc = Doc {
    name: "DLOCK.WAITERS",
    form: "key [COUNT n]",
    summary: "Returns the wait queue, head first",
    complexity: "O(n) with n waiters shown",
};
pub const CANCEL: Doc = Doc {
    name: "DLOCK.CANCEL",
    form: "key token | key CLIENT id",
    summary: "Removes waiters from the queue, whose ACQUIRE returns null; returns how many",
    complexity: "O(log W) with W waiters",
};
pub const LIST: Doc = Doc {
    name: "DLOCK.LIST",
    form: "cursor [MATCH pattern] [COUNT n] [WAITED]",
    summary: "Walks over the locks of the database, as SCAN over keys; returns the next cursor and locks",
    complexity: "O(1) for each call, O(N) for a walk over N locks, whatever other keys there are",
};
pub const BREAK: Doc = Doc {
    name: "DLOCK.BREAK",
    form: "key",
    summary: "Ends every hold of the key, whatever its token, for operators; returns how many",
    complexity: "O(1); what many holders leave behind is cleared up in the background",
};
pub const TOKEN: Doc = Doc {
    name: "DLOCK.TOKEN",
    form: "",
    summary: "Returns a fresh token: 27 characters, 20 bytes of the operating system's randomness",
    complexity: "O(1)",
};
pub const HELP: Doc = Doc { name: "DLOCK.HELP", form: "", summary: "Returns this list", complexity: "O(1)" };

/// The effect that is replicated and logged; refused to everybody else.
pub const SET: Doc = Doc {
    name: "DLOCK._SET",
    form: "key change",
    summary: "Internal: the effect of another command, as sent to replicas and the append only file",
    complexity: "O(n log H) with n holds changed of H",
};

/// Asks the server itself whether it lets a write through.
pub const MAY: Doc = Doc {
    name: "DLOCK._MAY",
    form: "key",
    summary: "Internal: does nothing; a dry run tells the module whether the server accepts writes",
    complexity: "O(1)",
};

/// What people use, in the order of the manual.
pub const TABLE: [&Doc; 13] = [
    &ACQUIRE, &RELEASE, &EXTEND, &CONFIRM, &HOLDS, &PTTL, &INSPECT, &WAITERS, &CANCEL, &LIST, &BREAK, &TOKEN,
    &HELP,
];
