//! What the command says and how it ends where no server is asked. What it does with servers is tested with real ones,
//! in the workspace's tests/command_line.

use std::io::Write;
use std::process::{Command, Output, Stdio};

const SUBCOMMANDS: [&str; 9] =
    ["run", "acquire", "release", "extend", "inspect", "wait", "break", "completions", "man"];

fn dlock(words: &[&str]) -> Output {
    let mut dlock = Command::new(env!("CARGO_BIN_EXE_dlock"));
    for name in ["DLOCK_SERVERS", "DLOCK_SERVERS_FILE", "DLOCK_TOKEN"] {
        dlock.env_remove(name);
    }
    dlock.args(words).stdin(Stdio::null()).output().expect("dlock runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// A failure with this code says so on standard error, and nothing on standard output.
#[track_caller]
fn fails(words: &[&str], code: i32, says: &str) {
    let output = dlock(words);
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{words:?}: {complaint}");
    assert!(complaint.contains(says), "{words:?}: {complaint}");
    assert_eq!(stdout(&output), "");
}

#[test]
fn a_wrong_call_ends_with_64_and_says_what_to_do() {
    fails(&[], 64, "Usage: dlock <COMMAND>");
    fails(&["rum"], 64, "similar subcommand exists: 'run'");
    fails(&["run", "r", "ls"], 64, "<RESOURCE> -- <COMMAND>...");
    fails(&["run", "r", "--ttl", "30", "--", "ls"], 64, "times are written 30s, 500ms, 2m");
    fails(&["run", "r", "--", "ls"], 64, "DLOCK_SERVERS");
    fails(&["run", "r", "--ttl", "6s", "-k", "4s", "--", "ls"], 64, "a --ttl of 10s or more");
    fails(
        &["run", "r", "--servers-file", "/does/not/exist", "--", "ls"],
        64,
        "/does/not/exist: No such file",
    );
    fails(&["release", "r"], 64, "<TOKEN>");
    fails(&["man", "rum"], 64, "no subcommand rum");
}

#[test]
fn help_and_version_are_answers() {
    let version = dlock(&["--version"]);
    assert_eq!((version.status.code(), stdout(&version)), (Some(0), "dlock 0.1.0\n".to_string()));
    let help = dlock(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    for subcommand in SUBCOMMANDS {
        assert!(stdout(&help).contains(&format!("\n  {subcommand} ")), "{subcommand}");
        let help = dlock(&[subcommand, "--help"]);
        assert_eq!(help.status.code(), Some(0));
        let usage = format!("Usage: dlock {subcommand} ");
        assert!(stdout(&help).contains(&usage), "{subcommand}");
    }
}

#[test]
fn no_line_of_help_is_longer_than_a_terminal() {
    for subcommand in SUBCOMMANDS {
        for line in stdout(&dlock(&[subcommand, "--help"])).lines() {
            assert!(line.chars().count() <= 100, "{subcommand}: {line}");
        }
    }
}

#[test]
fn completions_know_the_subcommands_and_are_in_order_for_bash() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = dlock(&["completions", shell]);
        assert_eq!(script.status.code(), Some(0));
        for word in SUBCOMMANDS.into_iter().chain(["no-wait", "kill-after"]) {
            assert!(stdout(&script).contains(word), "{shell} does not complete {word}");
        }
        assert!(!stdout(&script).contains("dlock-starting"));
    }
    let script = stdout(&dlock(&["completions", "bash"]));
    let asked = "COMP_WORDS=(dlock run --no) COMP_CWORD=2; _dlock dlock --no run; echo \"${COMPREPLY[*]}\"";
    let mut bash = Command::new("bash").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("bash");
    let input = format!("{script}\n{asked}\n");
    bash.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("bash reads");
    let output = bash.wait_with_output().expect("bash ends");
    assert_eq!(stdout(&output), "--no-wait --node-timeout\n");
}

/// man(1) is not on every machine that builds this; what it needs is.
#[test]
fn the_manual_has_a_page_for_everything() {
    let main = stdout(&dlock(&["man"]));
    for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "SUBCOMMANDS", "EXIT STATUS", "ENVIRONMENT"] {
        let quoted = format!(".SH \"{section}\"");
        assert!(main.contains(&format!(".SH {section}\n")) || main.contains(&quoted), "{section}");
    }
    for code in ["64", "69", "71", "75", "79", "126, 127", "128 + n"] {
        assert!(main.contains(&format!("\\fB{code}\\fR")), "{code}");
    }
    for subcommand in SUBCOMMANDS {
        let page = stdout(&dlock(&["man", subcommand]));
        assert!(page.contains(&format!(".TH dlock-{subcommand} 1")), "{subcommand}: {page}");
    }
}
