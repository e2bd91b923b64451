//! Figures of a soak: its work and its remains.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use crate::operator::Operator;
use dlock_testkit::history::History;
use dlock_testkit::workers::Worker;
use dlock_testkit::{Server, until_some};

#[derive(Default)]
pub struct Figures {
    episodes: usize,
    asked: usize,
    grants: usize,
    /// Positions whose connection was gone and that were granted.
    found_granted: usize,
    releases: usize,
    hung_up: usize,
    errors: BTreeMap<String, usize>,
    looks: usize,
    /// Number of observations with a waiter.
    waiting: usize,
    longest_queue: usize,
    breaks: usize,
    cancelled: usize,
    disturbed: usize,
    /// Last reported progress, in units of ten minutes.
    told: u64,
}

impl Figures {
    pub fn of(workers: &[Worker<'_>], operator: &Operator<'_>) -> Figures {
        let sum = |count: &dyn Fn(&Worker<'_>) -> usize| workers.iter().map(count).sum();
        let mut errors = BTreeMap::new();
        for (word, count) in workers.iter().flat_map(|worker| &worker.errors) {
            *errors.entry(word.clone()).or_default() += count;
        }
        Figures {
            episodes: 1,
            asked: sum(&|worker| worker.holds.len()),
            grants: sum(&|worker| worker.granted),
            found_granted: sum(&|worker| worker.found_granted),
            releases: sum(&|worker| worker.released),
            hung_up: sum(&|worker| worker.hung_up),
            errors,
            breaks: operator.breaks.len(),
            cancelled: operator.cancelled,
            disturbed: operator.disturbed,
            ..Figures::default()
        }
    }

    /// Adds a history whose observations have been checked.
    pub fn checked(&mut self, history: &History) {
        self.looks = history.looks.len();
        self.waiting = history.looks.iter().map(|look| look.queue.len()).sum();
        self.longest_queue = history.looks.iter().map(|look| look.queue.len()).max().unwrap_or(0);
    }

    pub fn add(&mut self, other: Figures) {
        self.episodes += other.episodes;
        self.asked += other.asked;
        self.grants += other.grants;
        self.found_granted += other.found_granted;
        self.releases += other.releases;
        self.hung_up += other.hung_up;
        self.looks += other.looks;
        self.waiting += other.waiting;
        self.longest_queue = self.longest_queue.max(other.longest_queue);
        self.breaks += other.breaks;
        self.cancelled += other.cancelled;
        self.disturbed += other.disturbed;
        for (word, count) in other.errors {
            *self.errors.entry(word).or_default() += count;
        }
    }

    /// Asserts that every kind of event happened: a test in which nothing happens proves nothing.
    pub fn assert_everything_happened(&self) {
        let Figures { grants, found_granted, releases, hung_up, waiting, .. } = self;
        assert!(
            [grants, found_granted, releases, hung_up, waiting].iter().all(|count| **count > 0),
            "{}",
            self.text()
        );
    }

    /// Rewrites one line on a terminal; elsewhere prints a line every ten minutes.
    pub fn show_progress(&mut self, server: &Server, gone: Duration, time: Duration) {
        let (name, gone, time) = (&server.kind().name, gone.as_secs(), time.as_secs());
        let line = format!("{name}: {gone} of {time} s, {} grants, nothing found", self.grants);
        if io::stderr().is_terminal() {
            eprint!("\r{line} ");
        } else if gone / 600 > self.told {
            self.told = gone / 600;
            eprintln!("{line}");
        }
    }

    /// Prints the figures past the capture of test output.
    pub fn show(&self, server: &Server, gone: Duration, before: &Size, after: &Size) {
        let (kind, text) = (server.kind(), self.text());
        let end = if io::stderr().is_terminal() { "\n" } else { "" };
        let gone = gone.as_secs();
        let report = format!(
            "{end}soak, {} {}, {gone} s: {text}; {before:?} then {after:?}\n",
            kind.name, kind.version
        );
        io::stderr().write_all(report.as_bytes()).expect("stderr can be written");
    }

    fn text(&self) -> String {
        let Figures { episodes, asked, grants, found_granted, releases, hung_up, errors, .. } = self;
        let Figures { looks, waiting, longest_queue, breaks, cancelled, disturbed, .. } = self;
        format!(
            "{episodes} episodes, {asked} acquisitions, {grants} grants ({found_granted} without a \
             connection), {releases} releases, {hung_up} hang-ups, \
             {looks} looks that saw {waiting} waiting, at most {longest_queue} at once, {breaks} breaks, {cancelled} \
             cancelled, {disturbed} disturbances, refusals {errors:?}"
        )
    }
}

/// Memory and files of an idle server.
#[derive(Debug)]
pub struct Size {
    used_memory: u64,
    rss: u64,
    open_files: usize,
}

impl Size {
    fn of(server: &Server) -> Size {
        let number = |field: &str| server.info(field).parse().expect("a number");
        let open_files = fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("the process").count();
        Size { used_memory: number("used_memory"), rss: number("used_memory_rss"), open_files }
    }

    /// Measures until two results agree: closed resources are freed a moment later.
    pub fn settled(server: &Server) -> Size {
        let mut last = Size::of(server);
        until_some("the server's memory has settled", || {
            let size = Size::of(server);
            let settled =
                size.used_memory.abs_diff(last.used_memory) * 200 < size.used_memory && quiet(server);
            last = Size::of(server);
            settled.then_some(size)
        })
    }

    /// Waits for used memory within 5 % of before and no more open files. Resident pages, which are never
    /// quite full, within 25 %.
    pub fn small_again(server: &Server, before: &Size) -> Size {
        let mut last = None;
        let wait = || {
            let size = Size::of(server);
            let small = size.used_memory * 20 <= before.used_memory * 21 && size.rss * 4 <= before.rss * 5;
            let found = (small && size.open_files <= before.open_files && quiet(server)).then_some(());
            last = Some(size);
            found
        };
        until_some(&format!("the server is as small as {before:?}"), wait);
        last.expect("looked at")
    }
}

/// Returns true if no child rewrites a file.
fn quiet(server: &Server) -> bool {
    ["aof_rewrite_in_progress", "rdb_bgsave_in_progress"].iter().all(|field| server.info(field) == "0")
}
