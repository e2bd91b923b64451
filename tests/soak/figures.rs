//! Figures of a soak test: the work of the clients, and the size of the idle server before and after it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use crate::operator::Operator;
use dlock_testkit::workers::Worker;
use dlock_testkit::{Server, until_some};

/// Counts by name, summed over the episodes, which are the parts of a run.
#[derive(Default)]
pub struct Figures {
    counts: BTreeMap<String, usize>,
    /// Last reported progress, in units of ten minutes.
    reported: u64,
}

impl Figures {
    /// Returns the figures of one episode.
    pub fn of(workers: &[Worker<'_>], operator: &Operator<'_>) -> Figures {
        let sum = |count: &dyn Fn(&Worker<'_>) -> usize| workers.iter().map(count).sum();
        let counts = [
            ("episodes", 1),
            ("requests", sum(&|worker| worker.holds.len())),
            ("grants", sum(&|worker| worker.granted)),
            // Part of "grants".
            ("grants to queued positions", sum(&|worker| worker.found_granted)),
            ("releases", sum(&|worker| worker.released)),
            ("hang-ups", sum(&|worker| worker.hung_up)),
            ("reports", operator.reports.len()),
            ("waiters seen", operator.reports.iter().map(|report| report.queue.len()).sum()),
            ("breaks", operator.breaks.len()),
            ("cancelled waits", operator.cancelled),
            ("disturbances", operator.disturbances),
        ];
        let mut figures = Figures::default();
        for (name, count) in counts {
            figures.count(name, count);
        }
        for (error_word, count) in workers.iter().flat_map(|worker| &worker.errors) {
            figures.count(error_word, *count);
        }
        figures
    }

    fn count(&mut self, name: &str, count: usize) {
        *self.counts.entry(name.to_string()).or_default() += count;
    }

    pub fn add(&mut self, other: &Figures) {
        for (name, count) in &other.counts {
            self.count(name, *count);
        }
    }

    /// Asserts that every kind of event happened: otherwise the test proves nothing.
    pub fn assert_everything_happened(&self) {
        for name in ["grants", "grants to queued positions", "releases", "hang-ups", "waiters seen"] {
            assert!(self.counts[name] > 0, "{name}: {:?}", self.counts);
        }
    }

    /// Rewrites one line on a terminal; elsewhere prints a line every ten minutes.
    pub fn show_progress(&mut self, server: &Server, passed: Duration, time: Duration) {
        let (name, passed, time) = (&server.kind().name, passed.as_secs(), time.as_secs());
        let line = format!("{name}: {passed} of {time} s, {} grants, no fault found", self.counts["grants"]);
        if io::stderr().is_terminal() {
            eprint!("\r{line} ");
        } else if passed / 600 > self.reported {
            self.reported = passed / 600;
            eprintln!("{line}");
        }
    }

    /// Prints the figures. Writes to stderr itself, because the test harness hides what a passing test prints
    /// with `eprintln!`.
    pub fn show(&self, server: &Server, passed: Duration, before: &Size, after: &Size) {
        let end_of_progress = if io::stderr().is_terminal() { "\n" } else { "" };
        let (name, version, passed) = (&server.kind().name, &server.kind().version, passed.as_secs());
        let counts = &self.counts;
        writeln!(
            io::stderr(),
            "{end_of_progress}soak, {name} {version}, {passed} s: {counts:?}; {before:?} then {after:?}"
        )
        .expect("stderr can be written");
    }
}

/// Memory and files of an idle server.
#[derive(Debug)]
pub struct Size {
    used_memory: i64,
    rss: i64,
    open_files: usize,
}

impl Size {
    fn of(server: &Server) -> Size {
        let open_files = fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("the process").count();
        let [used_memory, rss] = server.numbers(["used_memory", "used_memory_rss"]);
        Size { used_memory, rss, open_files }
    }

    /// Measures until used memory changes by less than 0.5 % between two measurements, because the server
    /// frees closed resources a moment later.
    pub fn settled(server: &Server) -> Size {
        let mut last = Size::of(server);
        until_some("the server's memory has settled", || {
            let size = Size::of(server);
            let change = (size.used_memory - last.used_memory).abs();
            let settled = change * 200 < size.used_memory && has_no_child(server);
            last = Size::of(server);
            settled.then_some(size)
        })
    }

    /// Waits until the server is nearly as small as `before`. It may have 5 % more used memory and 25 % more
    /// resident memory, but not more open files. Resident memory may grow more, because a page stays resident
    /// while any part of it is in use.
    pub fn small_again(server: &Server, before: &Size) -> Size {
        until_some(&format!("the server is as small as {before:?}"), || {
            let size = Size::of(server);
            let small = size.used_memory * 20 <= before.used_memory * 21 && size.rss * 4 <= before.rss * 5;
            (small && size.open_files <= before.open_files && has_no_child(server)).then_some(size)
        })
    }
}

/// Returns true if no child process writes a snapshot or rewrites the append only file.
fn has_no_child(server: &Server) -> bool {
    server.numbers(["aof_rewrite_in_progress", "rdb_bgsave_in_progress"]) == [0, 0]
}
