//! `dlock top` on a terminal.

use super::*;
use crate::terminal::Terminal;
use dlock_testkit::cluster::{EQUAL_SLOTS, cluster_with, owner};
use dlock_testkit::{ServerKind, each_server};

/// The size of the terminal at the start.
const SIZE: (u16, u16) = (30, 120);

/// Starts dlock top in a shell, which afterwards prints the exit code and the state of the terminal. Writes
/// the path of the terminal to the file `tty`, and the process id of dlock to the file `pid`.
const SHELL: &str = "stty rows 30 cols 120; tty > tty; \
    sh -c 'echo $$ > pid; exec \"$DLOCK\" top --interval 100ms'; \
    echo code $?; stty -a | grep -ow -e '-*icanon' -e '-*echo'";

struct Top(Terminal);

impl Top {
    fn start(stage: &Stage) -> Top {
        Top(Terminal::with(stage, SHELL))
    }

    #[track_caller]
    fn until_shows(&self, what: &str) {
        until(&format!("the screen shows {what:?}"), || self.0.screen(SIZE.0, SIZE.1).contains(what));
    }

    /// Returns the locks among `names` that the screen lists, in the order of their rows.
    fn locks(&self, names: &[&str]) -> Vec<String> {
        let screen = self.0.screen(SIZE.0, SIZE.1);
        let first = screen.lines().filter_map(|line| line.split_whitespace().next().map(str::to_owned));
        first.filter(|word| names.contains(&word.as_str())).collect()
    }

    /// Checks that dlock top has ended and the terminal is restored.
    #[track_caller]
    fn assert_ended(self, code: i32) {
        let end = self.0.wait();
        // `ESC [?1049l` switches from the screen of dlock top back to the main screen.
        let text = end.stdout.rsplit("\u{1b}[?1049l").next().expect("the main screen").to_owned();
        assert!(text.contains(&format!("code {code}\r\n")), "{text:?}");
        assert!(text.contains("icanon") && !text.contains("-icanon") && !text.contains("-echo"), "{text:?}");
    }
}

#[each_server]
fn top_sorts_filters_inspects_and_breaks_after_a_question(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    for (name, label) in [("alpha", "first"), ("beta", "second"), ("gamma", "third")] {
        for server in &stage.servers {
            server.connect().ok(&format!("DLOCK.ACQUIRE {name} token-of-{name} 600000 LABEL {label}"));
        }
    }
    let _waiter = queue::waiter(&stage.servers[0], "DLOCK.ACQUIRE beta next 600000 BLOCK 0");
    let mut top = Top::start(&stage);
    let names = ["alpha", "beta", "gamma"];
    top.until_shows("3 of 3 servers, 3 locks");
    top.until_shows("second");
    until("beta is first, most clients wait for it", || top.locks(&names) == ["beta", "alpha", "gamma"]);
    top.until_shows("s for beta, held by second");
    top.0.types("n");
    top.until_shows("by name");
    until("the locks are sorted", || top.locks(&names) == names);

    top.0.types("/amm\r");
    until("one lock matches", || top.locks(&names) == ["gamma"]);
    top.0.types("/\r");
    until("all locks match", || top.locks(&names) == names);

    // Selects the second lock, inspects it, and answers no to break.
    top.0.types("j\r");
    top.until_shows("beta is held");
    top.until_shows("Waiting:");
    top.0.types("b");
    top.until_shows("End every hold of beta? [y/N]");
    top.0.types("n");
    top.until_shows("no hold was ended");
    assert_eq!(stage.held_on("beta"), 3);
    top.0.types("\r");
    top.until_shows("RESOURCE");
    // `b` for break, `y` for the question.
    top.0.types("by");
    top.until_shows("beta: ended 3 holds");
    top.until_shows("broken");
    assert_eq!((stage.held_on("alpha"), stage.held_on("gamma")), (3, 3));
    // The screen shows no whole token, because a token is enough to release the lock.
    assert!(!top.0.screen(SIZE.0, SIZE.1).contains("token-of-alpha"));
    top.0.types("q");
    top.assert_ended(0);
}

#[each_server]
fn top_survives_a_resize_and_a_lost_server_and_restores_the_terminal(kind: &ServerKind) {
    let mut stage = Stage::with(kind, 2);
    stage.connect().ok("DLOCK.ACQUIRE alpha t 600000 LABEL by-hand");
    let top = Top::start(&stage);
    top.until_shows("2 of 2 servers, 1 locks");
    let tty = stage.lines("tty").remove(0);
    let resize = |rows: u16, columns: u16| {
        let done = stage.execute(stage.shell(&format!("stty -F {tty} rows {rows} cols {columns}")));
        assert_eq!(done.code, Some(0), "{}", done.stderr);
    };
    // Shrinks the terminal below the size of any table, then enlarges it.
    resize(2, 3);
    resize(20, 100);
    until("the screen is drawn anew", || {
        let screen = top.0.screen(20, 100);
        screen.lines().last().is_some_and(|line| line.contains("q quit")) && screen.contains("by-hand")
    });
    stage.servers[0].kill9();
    until("the server is missing", || top.0.screen(20, 100).contains("1 of 2 servers"));
    stage.servers[0].restart();
    until("the server is back", || top.0.screen(20, 100).contains("2 of 2 servers"));

    // The terminal is restored after each kind of end. Ctrl-C (`\x03`) sends no signal, because the terminal
    // is in raw mode.
    let mut top = top;
    top.0.types("\x03");
    top.assert_ended(0);
    for (signal, number) in [("TERM", 15), ("INT", 2)] {
        let top = Top::start(&stage);
        top.until_shows("2 of 2 servers");
        crate::stage::signal(stage.process_id("pid"), signal);
        top.assert_ended(128 + number);
    }
}

/// Each master has locks of its own, and a node that is lost takes only its own from the screen.
#[each_server]
fn top_shows_every_master_of_a_cluster(kind: &ServerKind) {
    let nodes = cluster_with(kind, EQUAL_SLOTS, &["cluster-require-full-coverage no"]);
    let address = format!("redis-cluster://127.0.0.1:{}", nodes[0].port());
    let stage = Stage::at(Vec::from(nodes), address);
    let names = ["r0", "r1", "r2"];
    for name in names {
        owner(&stage.servers, name).connect().ok(&format!("DLOCK.ACQUIRE {name} token-of-{name} 600000"));
    }
    let mut top = Top::start(&stage);
    top.until_shows("3 of 3 servers, 3 locks");
    top.0.types("n");
    until("the locks are sorted", || top.locks(&names) == names);
    top.0.types("\r");
    top.until_shows("r0 is held");
    top.0.types("by");
    top.until_shows("r0: ended 1 hold");
    top.0.types("q");
    top.assert_ended(0);
    let top = Top::start(&stage);
    top.until_shows("3 of 3 servers, 2 locks");
    owner(&stage.servers, "r1").kill9();
    top.until_shows("2 of 3 servers");
    let mut top = top;
    top.0.types("q");
    top.assert_ended(0);
}

#[each_server]
fn top_needs_a_terminal(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let done = stage.execute(stage.dlock("top"));
    assert_eq!(done.code, Some(64));
    done.assert_stderr("requires a terminal");
}
