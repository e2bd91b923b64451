//! The longer texts of `--help` and the manual.

/// The heading of the examples.
pub const EXAMPLES: &str = "Examples:\n";

/// Examples with their heading.
pub fn examples(examples: &str) -> String {
    format!("{EXAMPLES}{examples}")
}

/// The last line of the short help.
pub const AFTER_HELP: &str = "`dlock --help` has examples, `dlock run --help` all options of a subcommand.";

pub const AFTER_LONG_HELP: &str = "  export DLOCK_SERVERS=redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3
  dlock run nightly-report --wait 2s -- ./report.sh
  dlock inspect nightly-report
  dlock run --help           details of a subcommand
  dlock man | man -l -       the manual, with the exit codes";

pub const RUN: &str = "\
Hold a lock while a command runs.

Waits for the lock, runs the command, renews the lease while the command runs, and releases the lock. The \
exit code is that of the command, or 128 + n if signal n killed it. While waiting in a terminal, dlock \
shows the position in the wait queue; otherwise it prints only errors.

If the lock is lost (the servers cannot be reached, an operator broke it), dlock sends SIGTERM to the \
command and everything that it has started, and SIGKILL after --kill-after, both before the lease ends. The \
exit code is 79.

dlock forwards to the command every signal that a process can handle, except SIGPIPE and realtime signals. \
The command stays in the process group and on the terminal of dlock, so Ctrl-C and \
Ctrl-Z reach it once, as without dlock. A signal to the whole group (kill -TERM -- -PGID) reaches it twice: \
directly, and through dlock. While the command is stopped by Ctrl-Z, the lease is not renewed. If the lease \
ends meanwhile, the command is killed as soon as it continues.

The command's environment describes the hold (with several resources, one line for each, in sorted order):
  DLOCK_RESOURCE  the locked resource
  DLOCK_TOKEN     the token of the hold
  DLOCK_FENCE     its fence, if it has one (a single server, or --fenced)
  DLOCK_OWNER     the owner of the run, one for all its resources

A nested run finds the holds of its parent run in these variables. If the servers confirm a hold, the \
nested run re-enters it. If it needs no other lock, its command replaces its process: the parent run renews \
the lease, forwards signals and ends the command if the lock is lost.

If runs would wait for each other for ever (a deadlock), the run that would begin the last of these waits \
exits with code 75 at once. The servers detect this if a nested run is itself the command of its parent run \
(dlock run a -- dlock run b -- ..). They do not detect it if a script starts the nested run, because the \
script may start several at once: limit the wait of such a run with --wait.";

pub const RUN_EXAMPLES: &str =
    "  A job that starts on several machines and runs on one, even while servers restart:
    dlock run nightly-report --wait 2s -- ./report.sh

  A job that each of several crontabs starts every minute, although their clocks differ:
    dlock run poll --wait 2s --at-least 30s --quiet -- ./poll.sh

  A report that is done once a day; after a failure, the next machine tries:
    dlock run report:$(date +%F) --done-for 20h -- ./report.sh

  A migration that every instance runs at its start, one after the other:
    dlock run migrate --wait 5m -- ./manage.py migrate

  Two resources, all or none; exit code 1 and no message if another owner holds one:
    dlock run account:1 account:2 --no-wait -E 1 --quiet -- ./transfer

  At most three downloads at a time, none for longer than an hour (with a single server):
    dlock run downloads --permits 3 --max-hold 1h -- ./download

  Several commands:
    dlock run backup -- sh -c 'pg_dump shop | gzip > shop.gz'

  A resource whose name begins with -:
    dlock run --no-wait -- -x ./report.sh

  Writes with the fence, so that the store can reject a writer that has lost the lock:
    dlock run invoices --fenced -- sh -c './export --fence \"$DLOCK_FENCE\"'";

pub const ACQUIRE: &str = "\
Acquire a lock and keep it; print its token and fence.

The lock is held until `release`, or until its lease ends; only `extend` renews it. Prints one line with \
the token and, if there is one, the fence: a single server always gives one, several only with --fenced. \
Prefer `dlock run` where a single command can do the work.";

pub const ACQUIRE_EXAMPLES: &str = "  held=$(dlock acquire invoice:42 --fenced --ttl 10m) || exit
  token=${held% *} fence=${held#* }
  ...
  dlock release invoice:42 \"$token\"";

pub const EXTEND_EXAMPLES: &str = "  dlock extend invoice:42 \"$token\" --ttl 10m";

pub const INSPECT: &str = "\
Show the holders and the waiters of a lock, on every server.

The first line is the state of the lock over all servers: it is held if a majority of them has the same \
holder. The table has a row for each server and holder. The exit code is 69 if too few servers answered, \
otherwise 0.

With --json, prints an object:
  resource  the resource; resource_base64 has its bytes if they are no UTF-8 text
  state     its state over all servers:
    free       it is not held
    delayed    it is not held, and a delay keeps it from being granted (--delay)
    held       a majority has the same holder
    undecided  no holder has a majority: an acquisition is under way, or a client died during one
    no_quorum  too few servers answered
  masters   an object for each server, with its address as `server` and either
    found       its answer: mode, permits, fence, holders, waiters, delay_ms; null for a free lock
    queue       the wait queue: client, token, mode, waited_ms, left_ms, label
  or
    unanswered  why there is no answer";

pub const INSPECT_EXAMPLES: &str = "  dlock inspect invoice:42
  watch -n 1 dlock inspect invoice:42
  dlock inspect invoice:42 --json | jq -r .state";

pub const WAIT_EXAMPLES: &str = "  dlock wait migrate --timeout 5m && ./serve";

pub const RELEASE_EXAMPLES: &str = "  dlock release invoice:42 \"$token\"";

pub const BREAK_EXAMPLES: &str = "  dlock inspect invoice:42
  dlock break invoice:42";

pub const BREAK: &str = "\
For operators: end every hold of a lock, and a delay that keeps it closed (--at-least, --done-for).

The servers notify the holder of an exclusive lock, which takes about a tenth of a second. Other holders \
notice it at their next renewal, at most a third of their ttl from now. Until then they may run at the same \
time as the next holder. dlock asks for confirmation; without a terminal, --yes is required.";

pub const COMPLETIONS_EXAMPLES: &str =
    "  dlock completions bash > ~/.local/share/bash-completion/completions/dlock
  dlock completions zsh > ~/.zfunc/_dlock
  dlock completions fish > ~/.config/fish/completions/dlock.fish";

pub const MAN_EXAMPLES: &str = "  dlock man | man -l -
  dlock man run > ~/.local/share/man/man1/dlock-run.1";

pub const LIST: &str = "\
Show all locks of the servers, with holder, time held, lease left and number of waiters.

Prints a row for each resource that is held, waited for or in a delay: the label of its holder (or the \
beginning of its token), the address it was acquired from, the time it has been held, the rest of its \
lease, and the number of waiters. Long names are shortened, and control characters escaped; --json has whole \
names. With several servers, a lock is held if a majority of them has the same holder.

The rows come in the order in which the servers list the locks, those with waiters first. With several \
servers, a row comes once each server has listed the lock. A lock that changes meanwhile may be shown twice. \
Servers that do not answer are named on standard error, and so are the slots of a cluster that no known \
master has; the exit code is 69 if too few servers answered or slots have no master, otherwise 0.

With --json, prints an object per line, with the whole name:
  resource  the name; resource_base64 has its bytes if they are no UTF-8 text
  state     see `inspect`
  mode, holders, waiters, held_ms, left_ms
  servers   how many list it
  holder    the first holder: label, address, fence, token";

pub const LIST_EXAMPLES: &str = "  dlock list
  dlock list 'invoice:*'
  dlock list --json | jq -r 'select(.waiters > 0) | .resource'";

pub const LOG: &str = "\
Show recent incidents on the servers, newest first (DLOCK.LOG).

Shows holds that expired, were broken, or vanished with their key; long holds and waits \
(dlock.log-slower-than); deadlocks, full queues, closed connections. The servers keep the last entries \
(dlock.log-max-len) in memory. The user needs the right +dlock.log. Servers that do not answer are named on \
standard error, and their entries are missing; the exit code is 69 if too few servers answered, or slots of \
a cluster have no known master, otherwise 0.

Long names are shortened, and control characters escaped. With --json, prints an object per line: server, \
id, time_ms (since 1970), what, db, resource (resource_base64 has its bytes if they are no UTF-8 text), \
token (its first bytes), label, client, address, fence, held_ms or waited_ms.";

pub const LOG_EXAMPLES: &str = "  dlock log -n 10
  dlock log nightly-report
  dlock log --follow --json | jq -r 'select(.what == \"expired\") | .resource'";

pub const STATUS: &str = "\
Show the state of each server, for health checks.

Prints a row for each server: version, role, rest of its grace period, fence mark (a file by which fences \
rise after data loss), locks held, waiters, warnings (dlock_warning_words), and in a cluster its slots. \
Behind the role is the error with which a master refuses to grant locks: NOREPLICAS, OOM or MISCONF. The \
exit code is 0 if all is well; 1 if locks can be acquired, but a server is down, no master, in its grace \
period or unable to write its mark, or if the address names nodes of several clusters; 69 if too few servers \
can grant locks, or slots of a cluster have no known master. Warnings do not change the exit code: see \
`dlock doctor`.

Below them, a row for each replica, and in a cluster for each master without slots, with its module, its \
master and its lag in seconds; and one for each sentinel, with the server that it names as the master, \
its quorum and how many sentinels it knows. Neither changes the exit code.

With --json, prints an object: status (ok, attention, no_quorum); servers, replicas and sentinels, each an \
array of objects with the address as `server` and either its values (of a sentinel: in `found`) or \
`unanswered`; missing_slots, an array of ranges such as 5461-10922; map_error, why no node shows the map of \
the cluster, or null; and other_clusters, the nodes of the address that are in another cluster.";

pub const STATUS_EXAMPLES: &str = "  dlock status
  dlock status --json | jq -r '.servers[] | select(.role != \"master\") | .server'";

pub const DOCTOR: &str = "\
Check the servers, and recommend changes.

Checks each server's role, grace period, warnings, eviction, keyspace events, fence mark, persistence, \
longest lease, and whether this user may lock the resource; for a quorum, also whether the clocks agree, \
each member is a different server, and the connected clients name the same members; for replicas, whether \
they have the module and receive the locks, and for masters of a cluster without slots, whether they have \
it; whether options of dlock and versions of the module differ; in a cluster and for sentinels, whether each \
master has a replica that may take over, and whether a failover begins before the leases end, and is \
followed by a grace period; for sentinels, whether they suffice for a failover; for a cluster, whether a \
master has each slot, and all nodes of the address are of one cluster; and whether a server refuses to grant \
locks. Changes nothing. Each finding comes with a remedy, where possible as a command for redis-cli.

The exit code is 0 if there is nothing to change, 1 if there is, and 69 if too few servers answered, or \
slots of a cluster have no known master. With --json, prints an object: findings, an array of objects with \
server (null: all servers), what and fix; notes, an array of texts about what needs no change, such as a long \
wait for a lock that is closed (--at-least, --done-for).";

pub const DOCTOR_EXAMPLES: &str = "  dlock doctor
  dlock doctor invoice:42 --ttl 10m";

pub const METRICS: &str = "\
Print the metrics of the servers once, in the text format of Prometheus.

They are the fields of INFO dlock by server (counters end with _total, times are in seconds), dlock_up, \
dlock_quorum (1 if a majority of the servers can grant locks, of a cluster all masters, which have all \
slots), dlock_missing_slots, dlock_server_info, dlock_refusal, dlock_warning, the replicas and the sentinels \
(dlock_replica_.., dlock_sentinel_up), and the resources with the most waiters. Standard error names the \
servers that cannot be used. The exit code is 69 if dlock_quorum is 0, otherwise 0.";

pub const EXPORTER: &str = "\
Serve the metrics of the servers over HTTP, for Prometheus.

One process serves any number of servers. Each GET of /metrics asks the servers anew; a server that does not \
answer has a dlock_up of 0, and standard error says why. `dlock metrics --help` describes the metrics. The \
exporter has no encryption and no password: listen on a network that you trust.";

pub const EXPORTER_EXAMPLES: &str =
    "  dlock exporter --listen 0.0.0.0:9736 -s redis://10.0.0.1 -s redis://10.0.0.2
  curl http://127.0.0.1:9736/metrics

  In prometheus.yml:
    scrape_configs:
      - job_name: dlock
        static_configs: [{targets: ['10.0.0.9:9736']}]";

pub const METRICS_EXAMPLES: &str = "  dlock metrics
  dlock metrics --resources 0 > /var/lib/prometheus/node-exporter/dlock.prom";

pub const TOP: &str = "\
Watch servers and locks live: the locks with the most waiters, how long they have been held, grants per \
second, and recent incidents.

Keys:
  w h l n        sort by waiters, time held, lease left, name
  /              filter: a part of the name, or a pattern as for `list`; an empty one shows all
  up down, j k   select a lock
  enter          inspect it: every server's answer, and the waiters; again to return
  b              break it: end every hold of it, after confirmation
  q, Ctrl-C      quit";

pub const TOP_EXAMPLES: &str = "  dlock top
  dlock top --interval 5s";

pub const HOLD: &str = "\
Hold a lock for as long as a process lives, such as the script that asks for it.

Returns when the lock is held, and prints its token and, if there is one, its fence. A background process of \
dlock renews the lease, and releases the lock when the process PID ends, whatever ends it. SIGTERM does not \
end the background process before PID ends. If the lock is lost, PID gets SIGTERM, and the background process \
writes the reason to standard error if that is a terminal or a file: it closes a pipe as soon as the lock is held. If PID or dlock ends while \
dlock waits for the lock, the wait ends too. Prefer `dlock run` where a single command can do the work: if the \
lock is lost, it ends everything that the command has started, and does so before the lease ends.";

pub const HOLD_EXAMPLES: &str = "  #!/bin/sh
  dlock hold backup --pid $$ --wait 1m > /dev/null || exit
  pg_dump shop | gzip > shop.gz
  rclone copy shop.gz remote:";

pub const ELECT: &str = "\
Elect a leader among all candidates, which runs a command for as long as it leads.

Waits for the lock of this name, runs the command and renews the lease, as `dlock run` does. If the lead is \
lost, dlock ends the command before the lease ends, and stands for election again, even while too few \
servers answer. It also stands again after a pause while the wait queue is full. When the command ends by itself, so does dlock, with its exit code, and the next candidate \
leads.

With --observe, prints a line for the current leader, and one for each change (a lead of less than a quarter \
of a second may be missed): since when, the name, the leader's label and the fence. With --json, prints an \
object per line: name, known (whether enough servers answer), leader (its label; null if there is none), \
fence, address, since.";

pub const ELECT_EXAMPLES: &str = "  dlock elect scheduler -- ./scheduler
  dlock elect scheduler --observe
  dlock elect scheduler --observe --json | jq -r .leader";
