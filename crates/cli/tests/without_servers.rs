//! Messages and exit codes of calls that reach no server. tests/command_line has the tests with servers.

use std::io::Write;
use std::process::{Command, Output, Stdio};

const SUBCOMMANDS: &str = "run acquire hold elect release extend inspect list log status doctor metrics exporter \
    top wait break completions man";

fn subcommands() -> impl Iterator<Item = &'static str> {
    SUBCOMMANDS.split_whitespace()
}

fn dlock_with(words: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut dlock = Command::new(env!("CARGO_BIN_EXE_dlock"));
    for name in ["DLOCK_SERVERS", "DLOCK_SERVERS_FILE", "DLOCK_TOKEN"] {
        dlock.env_remove(name);
    }
    dlock.args(words).envs(environment.iter().copied()).stdin(Stdio::null()).output().expect("dlock runs")
}

fn dlock(words: &[&str]) -> Output {
    dlock_with(words, &[])
}

/// Returns the text of both output streams, and the exit code.
fn text_and_code(words: &[&str], environment: &[(&str, &str)]) -> (String, Option<i32>) {
    let done = dlock_with(words, environment);
    let text = [done.stdout, done.stderr].map(|bytes| String::from_utf8(bytes).expect("text")).concat();
    (text, done.status.code())
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// Checks the exit code, that standard error contains `message`, and that standard output is empty.
#[track_caller]
fn assert_fails(words: &[&str], code: i32, message: &str) {
    let output = dlock(words);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{words:?}: {stderr}");
    assert!(stderr.contains(message), "{words:?}: {stderr}");
    assert_eq!(stdout(&output), "");
}

#[test]
fn a_wrong_call_exits_with_64_and_names_the_remedy() {
    assert_fails(&[], 64, "Usage: dlock <COMMAND>");
    assert_fails(&["rum"], 64, "similar subcommand exists: 'run'");
    assert_fails(&["run", "r", "ls"], 64, "<RESOURCE>... -- <COMMAND>...");
    assert_fails(&["run", "r", "ls"], 64, "tip: the command comes after --");
    assert_fails(&["run", "r", "ls", "-l"], 64, "tip: the command comes after --");
    assert_fails(&["elect", "r", "ls"], 64, "tip: the command comes after --");
    for words in [&["run", "", "--", "ls"][..], &["acquire", ""], &["release", "", "t"], &["inspect", ""]] {
        assert_fails(words, 64, "must not be empty");
    }
    assert_fails(&["run", "r", "--ttl", "30", "--", "ls"], 64, "times are written 30s, 500ms, 2m");
    assert_fails(&["run", "r", "--", "ls"], 64, "DLOCK_SERVERS");
    // 4 s for -k and 1 s in reserve must fit into half of the ttl.
    assert_fails(&["run", "r", "--ttl", "6s", "-k", "4s", "--", "ls"], 64, "a --ttl of 10s or more");
    assert_fails(
        &["run", "r", "--servers-file", "/does/not/exist", "--", "ls"],
        64,
        "/does/not/exist: No such file",
    );
    assert_fails(&["release", "r"], 64, "<TOKEN>");
    assert_fails(&["hold", "r", "--pid", "1"], 64, "process 1 ends only with the machine");
    assert_fails(&["run", "a", "b\nc", "--", "ls"], 64, "a resource with a line break must be the only one");
    for url in ["redis://alice@127.0.0.1:1", "unix:///run/a.sock?user=alice"] {
        assert_fails(&["status", "-s", url], 64, "a user name without a password");
    }
    assert_fails(&["man", "rum"], 64, "no subcommand rum");
}

#[test]
fn help_and_version_exit_with_0() {
    let version = dlock(&["--version"]);
    assert_eq!(
        (version.status.code(), stdout(&version)),
        (Some(0), concat!("dlock ", env!("CARGO_PKG_VERSION"), "\n").to_string())
    );
    let help = dlock(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    for subcommand in subcommands() {
        assert!(stdout(&help).contains(&format!("\n  {subcommand} ")), "{subcommand}");
        let help = dlock(&[subcommand, "--help"]);
        assert_eq!(help.status.code(), Some(0));
        let usage = format!("Usage: dlock {subcommand} ");
        assert!(stdout(&help).contains(&usage), "{subcommand}");
    }
}

#[test]
fn help_and_version_exit_with_71_when_stdout_is_full() {
    for word in ["--help", "--version"] {
        let full = std::fs::File::create("/dev/full").expect("/dev/full");
        let mut dlock = Command::new(env!("CARGO_BIN_EXE_dlock"));
        let output = dlock.arg(word).stdout(full).output().expect("dlock runs");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(71), "{word}: {stderr}");
        assert!(stderr.starts_with("dlock: standard output: "), "{word}: {stderr}");
    }
}

#[test]
fn help_lines_fit_a_terminal() {
    for subcommand in subcommands() {
        for line in stdout(&dlock(&[subcommand, "--help"])).lines() {
            assert!(line.chars().count() <= 100, "{subcommand}: {line}");
        }
    }
}

#[test]
fn completions_list_the_subcommands_and_pass_bash() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = dlock(&["completions", shell]);
        assert_eq!(script.status.code(), Some(0));
        for word in subcommands().chain(["no-wait", "kill-after"]) {
            assert!(stdout(&script).contains(word), "{shell} does not complete {word}");
        }
        // The name under which dlock executes itself before it becomes the command of `run`. It is internal.
        assert!(!stdout(&script).contains("dlock-starting"));
    }
    // Bash completes the word `--no` of `dlock run --no`.
    let script = stdout(&dlock(&["completions", "bash"]));
    let query = "COMP_WORDS=(dlock run --no) COMP_CWORD=2; _dlock dlock --no run; echo \"${COMPREPLY[*]}\"";
    let mut bash = Command::new("bash").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("bash");
    let input = format!("{script}\n{query}\n");
    bash.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("bash reads");
    let output = bash.wait_with_output().expect("bash ends");
    assert_eq!(stdout(&output), "--no-wait --node-timeout\n");
}

/// Checks the roff source, because man(1) is not on every machine.
#[test]
fn the_manual_has_a_page_for_each_subcommand() {
    let main = stdout(&dlock(&["man"]));
    for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "SUBCOMMANDS", "EXIT STATUS", "ENVIRONMENT"] {
        let quoted = format!(".SH \"{section}\"");
        assert!(main.contains(&format!(".SH {section}\n")) || main.contains(&quoted), "{section}");
    }
    for code in ["64", "69", "71", "75", "79", "126, 127", "128 + n"] {
        assert!(main.contains(&format!("\\fB{code}\\fR")), "{code}");
    }
    for subcommand in subcommands() {
        let page = stdout(&dlock(&["man", subcommand]));
        assert!(page.contains(&format!(".TH dlock-{subcommand} 1")), "{subcommand}: {page}");
    }
}

const SECRET: &str = "s3cret-0123456789abcdef";

/// Creates a file with this text. Returns its path.
fn file(name: &str, text: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).expect("a file");
    path.display().to_string()
}

#[test]
fn an_error_names_the_place_of_a_wrong_address_and_does_not_repeat_it() {
    // The last is a line of /etc/shadow. The tests of the client's address parser have many more forms.
    let forms = ["u:SECRET@h:6379", "redis://u:12/SECRET@h", "root:SECRET:19000:0:99999:7:::"];
    for (at, address) in forms.map(|form| form.replace("SECRET", SECRET)).into_iter().enumerate() {
        let list = format!("# ours\nredis://127.0.0.1:1\n\n{address}\n");
        let (list, servers) = (file(&format!("list-{at}"), &list), format!("redis://127.0.0.1:1,{address}"));
        let line = format!("line 4 of {list}: ");
        for call in
            [&["inspect", "r"][..], &["inspect", "r", "--json"], &["acquire", "r"], &["break", "r", "-y"]]
        {
            let by_option = [call, &["-s", "redis://127.0.0.1:1", "-s", &address]].concat();
            let by_file = [call, &["--servers-file", &list]].concat();
            for (words, environment, place) in [
                (&by_option[..], None, "--server number 2: "),
                (&by_file, None, &line),
                (call, Some(("DLOCK_SERVERS", servers.as_str())), "address 2 in DLOCK_SERVERS: "),
                (call, Some(("DLOCK_SERVERS_FILE", &list)), &line),
            ] {
                let (text, code) = text_and_code(words, environment.as_slice());
                assert_eq!(code, Some(64), "{address}: {text}");
                assert!(text.contains(place) && !text.contains(SECRET), "{address}: {text}");
            }
        }
    }
}

/// An address or a token in the place of another argument is a secret, too.
#[test]
fn an_error_does_not_repeat_a_word_that_may_be_a_secret() {
    let address = format!("redis://u:{SECRET}@h");
    let (option, time, value) =
        (format!("--{address}"), format!("5{address}"), format!("--no-wait={address}"));
    for words in [
        &[address.as_str()][..],
        &["inspect", "r", &address],
        &["inspect", "r", &option],
        &["inspect", "r", "\x1b]0;title\x07\x1b[2J\u{9b}2J"],
        &["release", "r", "t", SECRET],
        &["acquire", "r", "--ttl", &address],
        &["acquire", "r", "--ttl", &time],
        &["acquire", "r", &value],
        &["run", "r", "-E", &address, "--", "ls"],
        &["completions", &address],
        &["man", &address],
    ] {
        let (text, code) = text_and_code(words, &[]);
        assert_eq!(code, Some(64), "{words:?}: {text}");
        assert!(!text.contains(SECRET), "{words:?}: {text}");
        // `--ttl 5redis://..` has an unknown unit.
        assert!(text.contains("(not shown)") || text.contains("unknown time unit"), "{words:?}: {text}");
        assert_eq!(text.find(|char: char| char.is_control() && char != '\n'), None, "{words:?}: {text:?}");
    }
}

#[test]
fn help_and_manual_show_no_environment_values() {
    let names = "SERVERS SERVERS_FILE TOKEN CACERT CERT KEY TTL LABEL NODE_TIMEOUT";
    let names: Vec<String> = names.split(' ').map(|name| format!("DLOCK_{name}")).collect();
    let environment: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), SECRET)).collect();
    for subcommand in subcommands() {
        for words in [[subcommand, "--help"], ["man", subcommand], ["completions", "bash"]] {
            let (text, code) = text_and_code(&words, &environment);
            assert_eq!(code, Some(0), "{words:?}");
            assert!(!text.contains(SECRET), "{words:?}: {text}");
        }
    }
}

/// A message about a member that is down contains its address, without the password.
#[test]
fn errors_show_a_server_by_host_and_port_without_its_password() {
    let addresses = [
        format!("redis://u:{SECRET}@127.0.0.1:1"),
        format!("redis://:{SECRET}@127.0.0.1:1"),
        "unix:///none?pass=s3cret-0123456789abcdef".to_string(),
        // `pass` with one percent-encoded letter.
        "unix:///none?p%61ss=s3cret-0123456789abcdef&user=s3cret-0123456789abcdef".to_string(),
    ];
    for address in addresses {
        for words in [
            &["inspect", "r"][..],
            &["inspect", "r", "--json"],
            &["acquire", "r", "--no-wait"],
            &["release", "r", "t"],
            &["wait", "r"],
            &["break", "r", "--yes"],
        ] {
            let (text, code) = text_and_code(words, &[("DLOCK_SERVERS", &address)]);
            assert_eq!(code, Some(69), "{text}");
            assert!(text.contains("//127.0.0.1:1") || text.contains("unix:///none"), "{text}");
            assert!(!text.contains(SECRET), "{text}");
        }
    }
}

/// The memory limit (ulimit) makes the test fail if dlock reads the whole file.
#[test]
fn endless_files_are_refused() {
    for (option, limit) in [("--servers-file", "65536"), ("--cacert", "1048576")] {
        let call = format!("ulimit -v 1000000; exec \"$0\" inspect r {option} /dev/zero");
        let mut shell = Command::new("sh");
        shell.args(["-c", &call, env!("CARGO_BIN_EXE_dlock")]).env_remove("DLOCK_SERVERS_FILE");
        let done = shell.env("DLOCK_SERVERS", "rediss://127.0.0.1:1").output().expect("sh runs");
        let text = String::from_utf8(done.stderr).expect("text");
        assert_eq!(done.status.code(), Some(64), "{text}");
        assert!(text.contains(&format!("/dev/zero: has more than {limit} bytes")), "{text}");
    }
}

#[test]
fn file_names_are_escaped_for_the_terminal() {
    assert_fails(
        &["inspect", "r", "--servers-file", "no\x1b[2J\u{9b}such\n"],
        64,
        "no\\u{1b}[2J\\u{9b}such\\n: No such file",
    );
}
