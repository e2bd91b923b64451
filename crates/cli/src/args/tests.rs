use super::*;
use clap::CommandFactory;

#[test]
fn the_definitions_are_consistent() {
    Dlock::command().debug_assert();
}

fn run(words: &[&str]) -> Result<Run, clap::Error> {
    let words = ["dlock", "run"].iter().chain(words);
    parse(words.map(OsString::from).collect()).map(|dlock| match dlock.command {
        Command::Run(run) => run,
        other => panic!("{other:?} is not run"),
    })
}

#[test]
fn a_command_keeps_its_own_options() {
    let parsed = run(&["r", "--ttl", "2m", "--", "ls", "--ttl", "x", "--", "-y"]).unwrap();
    assert_eq!(parsed.command, ["ls", "--ttl", "x", "--", "-y"]);
    assert_eq!((parsed.lock.ttl, parsed.lock.wait), (Duration::from_secs(120), None));
    assert!(run(&["r", "ls"]).is_err(), "the command follows --");
    assert_eq!(run(&["a", "b", "--", "ls"]).unwrap().resources, ["a", "b"]);
    assert!(run(&["a", "", "--", "ls"]).is_err(), "a variable that was not set");
    assert!(run(&["r", "--"]).is_err(), "there is no command");
}

#[test]
fn a_resource_may_begin_with_a_hyphen() {
    for words in [&["--", "-x", "ls", "-l"][..], &["--no-wait", "--", "-x", "ls", "-l"]] {
        let parsed = run(words).unwrap();
        assert_eq!((parsed.resources, parsed.command), (vec!["-x".into()], vec!["ls".into(), "-l".into()]));
    }
    assert!(run(&["--", "-x"]).is_err(), "there is no command");
    assert!(run(&["--", "ls", "-l"]).is_err(), "there is no resource");
    assert_eq!(run(&["r", "--", "-x"]).unwrap().command, ["-x"]);
}

#[test]
fn times_have_units() {
    for (text, ms) in [("500ms", 500), ("30s", 30_000), ("2m", 120_000), ("1h30m", 5_400_000), ("0", 0)] {
        assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
    }
    for text in ["", "30", "-1s", "1x", "s", "99999999999999999999s"] {
        assert!(duration(text).unwrap_err().contains("30s"), "{text}");
    }
}

#[test]
fn contradictions_are_rejected() {
    assert!(run(&["r", "--wait", "1s", "--no-wait", "--", "ls"]).is_err());
    assert!(run(&["r", "--server", "a", "--servers-file", "b", "--", "ls"]).is_err());
    assert!(run(&["r", "--cert", "a", "--", "ls"]).is_err());
}
