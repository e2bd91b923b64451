//! dlock on a terminal. script(1) provides the terminal: a pipe feeds its keys, and its output goes into a
//! file.

use dlock_testkit::{ServerKind, each_server};
use std::io::Write;
use std::process::{ChildStdin, Stdio};
use std::time::Duration;

use super::*;
use crate::stage::{is_alive, is_stopped};
use dlock_client::now;

/// A program on a terminal.
pub struct Terminal {
    running: Running,
    keys: ChildStdin,
}

impl Terminal {
    pub fn with(stage: &Stage, command: &str) -> Terminal {
        let mut script = stage.command("script");
        script.args(["--quiet", "--return", "--flush", "--command", command, "/dev/null"]);
        // The same shell for every developer, without start files from a home directory.
        script
            .env("SHELL", "/bin/sh")
            .env("HOME", "/nonexistent")
            .env("TERM", "dumb")
            .env("PS1", "$ ")
            .stdin(Stdio::piped());
        let mut running = stage.start(script);
        let keys = running.take_stdin();
        Terminal { running, keys }
    }

    #[track_caller]
    pub fn types(&mut self, text: &str) {
        self.keys.write_all(text.as_bytes()).and_then(|()| self.keys.flush()).expect("the terminal reads");
    }

    /// The contents of the screen of a terminal of this size.
    pub fn screen(&self, height: u16, width: u16) -> String {
        let mut screen = vt100::Parser::new(height, width, 0);
        screen.process(&self.running.stdout_bytes());
        screen.screen().contents()
    }

    fn output(&self) -> String {
        self.running.stdout()
    }

    /// Waits until the program has ended. The pipe stays open until then, because script(1) may drop typed
    /// keys when the pipe closes.
    #[track_caller]
    pub fn wait(self) -> Done {
        let _keys = self.keys;
        self.running.wait()
    }
}

const CTRL_C: &str = "\x03";
const CTRL_S: &str = "\x13";
const CTRL_Z: &str = "\x1a";

/// A script that records the signals that it receives in the file `signals`. The test sends SIGUSR1 last.
/// Once SIGUSR1 is recorded, no SIGINT is still on its way.
const SIGNAL_RECORDER: &str = "trap 'echo INT >> signals' INT; trap 'echo USR1 >> signals' USR1; echo $PPID > dlock; \
    echo $$ > ready; until [ -e go ]; do sleep 0.02; done";

/// Types Ctrl-C while `dlock run` runs a script, and checks that the script receives one SIGINT. `launcher`
/// is a program that starts the script, or empty.
fn assert_interrupted_once(stage: &Stage, launcher: &str) {
    stage.write("script", SIGNAL_RECORDER);
    // `exec` replaces the shell with dlock. A shell that receives Ctrl-C while it waits for dlock may end
    // itself by SIGINT, whatever dlock's exit code is.
    let run = format!("exec \"$DLOCK\" run r -- {launcher} sh script");
    let mut terminal = Terminal::with(stage, &run);
    stage.until_written("ready");
    terminal.types(CTRL_C);
    until("SIGINT is received", || stage.file("signals").contains("INT\n"));
    crate::stage::signal(stage.process_id("dlock"), "USR1");
    until("SIGUSR1 is received", || stage.file("signals").contains("USR1\n"));
    assert_eq!(stage.lines("signals"), ["INT", "USR1"]);
    stage.write("go", "");
    assert_eq!(terminal.wait().code, Some(0));
}

#[each_server]
fn ctrl_c_reaches_the_command_once(kind: &ServerKind) {
    assert_interrupted_once(&Stage::one(kind), "");
}

/// timeout(1) and setsid(1) put a command into a process group of its own, which the keys of the terminal do
/// not reach. dlock must forward the signal.
#[each_server]
fn ctrl_c_reaches_a_command_in_its_own_process_group(kind: &ServerKind) {
    assert_interrupted_once(&Stage::one(kind), "setsid");
}

#[each_server]
fn ctrl_c_ends_the_calling_script_too(kind: &ServerKind) {
    let stage = Stage::one(kind);
    stage.write(
        "script",
        "\"$DLOCK\" run r -- sh -c 'echo $$ > ready; exec sleep 1000'; echo went on > after",
    );
    let mut terminal = Terminal::with(&stage, "bash script");
    let command = stage.process_id("ready");
    terminal.types(CTRL_C);
    assert_eq!(terminal.wait().code, Some(130));
    assert!(!is_alive(command));
    assert_eq!(stage.file("after"), "");
    assert_eq!(stage.held_on("r"), 0);
}

#[each_server]
fn a_wait_shows_its_position_on_a_terminal_only(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let mut conn = stage.connect();
    conn.ok("DLOCK.ACQUIRE r other 600000");
    let piped = stage.start(stage.run("", "echo ran"));
    stage.until_waiting("r", 1);
    let terminal = Terminal::with(&stage, "\"$DLOCK\" run r -- echo ran");
    until("the position is shown", || terminal.output().contains("position 2 at redis://127.0.0.1"));
    let shows = |seconds: u32| terminal.output().contains(&format!(" {seconds} s"));
    until("the time advances", || (2..10).any(shows));
    assert_eq!(conn.say("DLOCK.RELEASE r other"), 1);
    let done = piped.wait();
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (Some(0), "ran\n", ""));
    let done = terminal.wait();
    assert_eq!(done.code, Some(0));
    assert!(done.stdout.starts_with("\r\x1b[Kwaiting for r: position 2"), "{:?}", done.stdout);
    assert!(done.stdout.ends_with("\r\x1b[Kran\r\n"), "{:?}", done.stdout);
}

#[each_server]
fn a_signal_ends_a_wait_while_ctrl_s_stops_the_terminal(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let mut conn = stage.connect();
    conn.ok("DLOCK.ACQUIRE r other 600000");
    let run = "echo $$ > dlock; exec \"$DLOCK\" run r -- true";
    let mut terminal = Terminal::with(&stage, run);
    until("the position is shown", || terminal.output().contains("position 1"));
    terminal.types(CTRL_S);
    // dlock redraws its line every second, so 3 s without output show that Ctrl-S has stopped the terminal.
    let (mut shown, mut since) = (String::new(), now());
    until("the display has stopped", || {
        if shown != terminal.output() {
            (shown, since) = (terminal.output(), now());
        }
        now().saturating_since(since) > Duration::from_secs(3)
    });
    let dlock = stage.process_id("dlock");
    crate::stage::signal(dlock, "TERM");
    until("the wait has ended", || queue::clients(&mut conn, "r").is_empty());
    until("dlock has ended", || !is_alive(dlock));
}

#[each_server]
fn run_without_a_wait_writes_nothing_to_the_terminal(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let done = Terminal::with(&stage, "printf 'at work... '; \"$DLOCK\" run r -- echo done").wait();
    assert_eq!(done.stdout, "at work... done\r\n");
}

/// Stops a run by Ctrl-Z, calls `then`, and continues it by `fg`. Returns the exit code of the run.
fn suspend_and_continue(stage: &Stage, ttl: &str, then: impl FnOnce()) -> String {
    // The script waits without starting a process, because a shell that is stopped between vfork and exec
    // hangs.
    assert_eq!(stage.execute(stage.shell("mkfifo go")).code, Some(0));
    stage.write("script", "echo $PPID > dlock; echo $$ > ready; read line < go");
    let mut terminal = Terminal::with(stage, "bash --norc --noprofile -i");
    terminal.types(&format!("\"$DLOCK\" run --ttl {ttl} r -- sh script\n"));
    let (command, dlock) = (stage.process_id("ready"), stage.process_id("dlock"));
    terminal.types(CTRL_Z);
    until("dlock and its command are stopped", || is_stopped(command) && is_stopped(dlock));
    then();
    terminal.types("fg\n");
    until("dlock and its command are continued", || !is_stopped(command) && !is_stopped(dlock));
    // Another process writes to the pipe. If dlock has already ended the script that reads from the pipe,
    // this process blocks when it opens the pipe.
    let go = stage.start(stage.shell("echo > go"));
    terminal.types("echo $? > code\n");
    let code = stage.lines("code").remove(0);
    assert!(!is_alive(command));
    drop(go);
    terminal.types("exit\n");
    terminal.wait();
    code
}

#[each_server]
fn ctrl_z_stops_dlock_and_its_command_and_fg_continues_both(kind: &ServerKind) {
    let stage = Stage::one(kind);
    assert_eq!(suspend_and_continue(&stage, "10m", || {}), "0");
    assert_eq!(stage.held_on("r"), 0);
}

#[each_server]
fn run_ends_a_command_that_continues_after_its_lease(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let mut conn = stage.connect();
    let code = suspend_and_continue(&stage, "2s", || {
        until("the lease has expired", || conn.ok("DLOCK.PTTL r") == -2);
    });
    assert_eq!(code, "79", "the exit code of a lost lock");
}

#[each_server]
fn break_asks_for_confirmation(kind: &ServerKind) {
    let stage = Stage::one(kind);
    stage.connect().ok("DLOCK.ACQUIRE r somebody 600000 LABEL by-hand");
    for (answer, code, held) in [("n\n", 75, 1), ("\n", 75, 1), ("y\n", 0, 0)] {
        let mut terminal = Terminal::with(&stage, "\"$DLOCK\" break r");
        until("the command asks", || terminal.output().contains("End every hold of r? [y/N]"));
        assert!(terminal.output().contains("by-hand"), "{}", terminal.output());
        terminal.types(answer);
        assert_eq!((terminal.wait().code, stage.held_on("r")), (Some(code), held), "{answer:?}");
    }
}

#[each_server]
fn resource_names_are_escaped_while_the_position_is_shown(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let mut conn = stage.connect();
    stage.write("name", "r\x1b]0;title\x07\x1b[2J");
    conn.call(&["DLOCK.ACQUIRE", &stage.file("name"), "other", "600000"]).int();
    let mut terminal = Terminal::with(&stage, "exec \"$DLOCK\" run \"$(cat name)\" -- true");
    until("the position is shown", || terminal.output().contains("position 1 at redis://127.0.0.1"));
    assert!(
        terminal.output().contains("waiting for r\\u{1b}]0;title\\u{7}\\u{1b}[2J"),
        "{}",
        terminal.output()
    );
    assert!(!terminal.output().contains("\x1b]") && !terminal.output().contains("\x1b[2J"));
    terminal.types(CTRL_C);
    terminal.wait();
}
