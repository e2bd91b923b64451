//! The longer texts of `--help` and of the manual.

/// How the examples begin.
pub const EXAMPLES: &str = "Examples:\n";

/// Below the short help.
pub const AFTER_HELP: &str = "`dlock --help` has examples, `dlock run --help` all options of a subcommand.";

pub const AFTER_LONG_HELP: &str = "\
Examples:
  export DLOCK_SERVERS=redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3
  dlock run nightly-report --wait 2s -- ./report.sh
  dlock inspect nightly-report
  dlock run --help           what run does in detail
  dlock man | man -l -       the manual, with the exit codes";

pub const RUN: &str = "\
Hold a lock while a command runs.

Waits for the lock, runs the command, renews the lease for as long as the command runs, and releases the lock. \
The exit code is the command's, 128 + n if signal n ended it. In a terminal the place in line is shown while waiting; \
otherwise nothing is printed but errors.

Should the lock be lost (the servers cannot be reached, an operator broke it), the command and everything that it has \
started is sent SIGTERM, and SIGKILL after --kill-after: before the lease ends, and with it the right to act. \
The exit code is 79 then.

Signals that are sent to dlock (TERM, INT, HUP, QUIT, USR1, USR2, TSTP) are passed on to the command. The command \
stays in the process group and on the terminal of dlock, so that Ctrl-C and Ctrl-Z reach it as without dlock, once. \
What a process sends to the whole group (kill -TERM -- -PGID) reaches it twice: from there, and through dlock. \
While it is stopped by Ctrl-Z nothing is renewed: if the lease ends meanwhile, the command is killed when it is continued.

The command finds in its environment:
  DLOCK_RESOURCE  what is locked
  DLOCK_TOKEN     the token of the hold
  DLOCK_FENCE     its fence, if it has one (one server, or --fenced)";

pub const RUN_EXAMPLES: &str = "\
Examples:
  A job that starts on several machines, and runs on one (over several servers not --no-wait: the
  votes of machines that ask in the same moment can be split, and nobody would run it):
    dlock run nightly-report --wait 2s -- ./report.sh

  A migration that every instance begins with, one after the other:
    dlock run migrate --wait 5m -- ./manage.py migrate

  More than one command:
    dlock run backup -- sh -c 'pg_dump shop | gzip > shop.gz'

  A lock whose name begins with -:
    dlock run --no-wait -- -x ./report.sh

  A store that refuses writers who lost the lock without noticing:
    dlock run invoices --fenced -- sh -c './export --fence \"$DLOCK_FENCE\"'";

pub const ACQUIRE: &str = "\
Take a lock and keep it; print its token and fence.

The lock is held until `release`, or until its lease ends: nobody renews it but `extend`. Prints one line with the token \
and, if there is one, the fence: one server has one always, several only with --fenced. `dlock run` is safer wherever one command can do the work.";

pub const ACQUIRE_EXAMPLES: &str = "\
Examples:
  held=$(dlock acquire invoice:42 --fenced --ttl 10m) || exit
  token=${held% *} fence=${held#* }
  ...
  dlock release invoice:42 \"$token\"";

pub const EXTEND_EXAMPLES: &str = "\
Examples:
  dlock extend invoice:42 \"$token\" --ttl 10m";

pub const INSPECT: &str = "\
Show who holds a lock and who waits for it, on every server.

The first line says what the servers make of it together: a lock is held where a majority of them has the same token. \
The table has a row for each server and holder. The exit code is 69 if too few servers answered, and 0 otherwise.

With --json an object is printed:
  resource  what was looked at
  state     what the servers make of it together:
    free       nobody holds it
    delayed    nobody holds it, and for a while nobody is granted it (--delay)
    held       a majority has the same holder
    undecided  no holder has a majority: somebody is just trying, or died while trying
    no_quorum  too few servers answered
  masters   one object for each server, with its address as `server` and either
    found       what it says: mode, permits, fence, holders, waiters, delay_ms; null for a free lock
    line        who waits there: client, token, mode, waited_ms, left_ms, label
  or
    unanswered  why it said nothing";

pub const INSPECT_EXAMPLES: &str = "\
Examples:
  dlock inspect invoice:42
  watch -n 1 dlock inspect invoice:42
  dlock inspect invoice:42 --json | jq -r .state";

pub const WAIT_EXAMPLES: &str = "\
Examples:
  dlock wait migrate --timeout 5m && ./serve";

pub const RELEASE_EXAMPLES: &str = "\
Examples:
  dlock release invoice:42 \"$token\"";

pub const BREAK_EXAMPLES: &str = "\
Examples:
  dlock inspect invoice:42
  dlock break invoice:42";

pub const BREAK: &str = "\
For operators: end every hold of a lock.

Whoever holds it learns that at its next renewal at the latest, a third of its ttl from now, and may run beside the next \
holder until then. Asks first; without a terminal to ask on, --yes is needed.";

pub const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  dlock completions bash > ~/.local/share/bash-completion/completions/dlock
  dlock completions zsh > ~/.zfunc/_dlock
  dlock completions fish > ~/.config/fish/completions/dlock.fish";

pub const MAN_EXAMPLES: &str = "\
Examples:
  dlock man | man -l -
  dlock man run > ~/.local/share/man/man1/dlock-run.1";
