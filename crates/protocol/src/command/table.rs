//! The documentation of each command, for COMMAND DOCS, HELP and the manual.

/// The documentation of a command.
pub struct Doc {
    pub name: &'static str,
    /// The arguments, in the notation of the manual.
    pub form: &'static str,
    pub summary: &'static str,
    pub complexity: &'static str,
}

/// Defines a [`Doc`] for each command: name, form, summary, complexity.
macro_rules! docs {
    ($($(#[$about:meta])* $doc:ident: $name:literal $form:literal, $summary:literal, $complexity:literal;)*) => {
        $($(#[$about])* pub const $doc: Doc =
            Doc { name: $name, form: $form, summary: $summary, complexity: $complexity };)*
    };
}

docs! {
    ACQUIRE: "DLOCK.ACQUIRE"
        "key token <ttl | MAX> [SHARED | PERMITS n] [REENTRANT | DEPTH n] [BLOCK ms] [QUEUE ms [NOTIFY channel message | SNOTIFY channel message]] [EPHEMERAL] [DELAY ms] [LABEL text] [OWNER id]",
        "Acquires the lock for a token for ttl ms; returns the hold's fence, or null",
        "O(1); O(log H) with H holders of a shared or counted lock";
    RELEASE: "DLOCK.RELEASE" "key token [ALL | DEPTH n] [DELAY ms]",
        "Releases the token's hold, or one of its counts, and removes its waiters; returns how many counts ended",
        "O(log H) with H holders, and O(log W) for each waiter granted";
    EXTEND: "DLOCK.EXTEND" "key token <ttl | MAX>",
        "Sets the lease to ttl ms from now; returns 1, or 0 if the token holds nothing",
        "O(1); O(log H) with H holders";
    CONFIRM: "DLOCK.CONFIRM" "key token fence <ttl | MAX>",
        "Raises the hold's fence and sets its lease, the confirm phase of a fenced quorum; returns the fence",
        "O(1); O(log H) with H holders";
    HOLDS: "DLOCK.HOLDS" "key token",
        "Returns the token's hold count, 0 for none",
        "O(1); O(log H) with H holders";
    PTTL: "DLOCK.PTTL" "key [token]",
        "Returns the ms left of the token's lease, or of the longest one; -2 for none",
        "O(1); O(log H) with H holders";
    INSPECT: "DLOCK.INSPECT" "key [COUNT n]",
        "Returns the holders (n of them, or 1000) and the number of waiters, as a map; null if there are none",
        "O(log H + n) with H holders, n of them shown";
    WAITERS: "DLOCK.WAITERS" "key [COUNT n]",
        "Returns the wait queue, head first (n waiters, or 1000)",
        "O(n) with n waiters shown";
    CANCEL: "DLOCK.CANCEL" "key token | key CLIENT id",
        "Removes waiters from the queue, so their ACQUIRE returns null; returns how many",
        "O(log W) with W waiters";
    GUARD: "DLOCK.GUARD" "key token command [arg ...]",
        "Runs a command only if the token holds the key at this moment; returns its reply, or the error NOTHELD",
        "O(1); O(log H) with H holders; and that of the command";
    FENCED: "DLOCK.FENCED" "gate fence command [arg ...]",
        "Raises the gate to a fence and runs a command; the error STALEFENCE if the gate has seen a greater one",
        "O(1), and that of the command";
    LIST: "DLOCK.LIST" "cursor [MATCH pattern] [COUNT n] [WAITED]",
        "Iterates over the locks of the database, as SCAN over keys; returns the next cursor and locks",
        "O(1) for each call, O(N) for an iteration over N locks, whatever other keys there are";
    LOG: "DLOCK.LOG" "[COUNT n] [KEY key] | RESET",
        "Returns recent incidents, newest first: leases that expired, long holds and waits, deadlocks; or deletes them",
        "O(N) with N entries, at most dlock.log-max-len";
    BREAK: "DLOCK.BREAK" "key",
        "Ends every hold of the key, whatever its token, for operators; returns how many",
        "O(1); the memory of many holders is freed in the background";
    TOKEN: "DLOCK.TOKEN" "",
        "Returns a fresh token: 27 characters, 20 bytes of the operating system's randomness",
        "O(1)";
    HELP: "DLOCK.HELP" "",
        "Returns this list",
        "O(1)";
    /// Clients may not send this command.
    SET: "DLOCK._SET" "key change",
        "Internal: the effect of another command, as sent to replicas and the append only file",
        "O(n log H) with n holds changed of H";
    /// A write that does nothing, to test whether the server accepts writes.
    MAY: "DLOCK._MAY" "key",
        "Internal: does nothing; a dry run tells the module whether the server accepts writes",
        "O(1)";
}

/// The commands for clients, in the order of `docs/commands.md`.
pub const TABLE: [&Doc; 16] = [
    &ACQUIRE, &RELEASE, &EXTEND, &CONFIRM, &GUARD, &FENCED, &HOLDS, &PTTL, &INSPECT, &WAITERS, &CANCEL,
    &LIST, &LOG, &BREAK, &TOKEN, &HELP,
];
