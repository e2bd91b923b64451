//! What the README shows is what happens.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use dlock_testkit::readme::{README, blocks};
use dlock_testkit::{
    Conn, Folder, Port, Server, ServerKind, Value, each_server, environment, module_path, until, until_some,
};

const EXAMPLE: &str = include_str!("../../redis.conf.example");

/// A reply as redis-cli prints it. Fences differ each time: greater than 10^15 each reads as "a fence".
fn printed(reply: &Value) -> String {
    match reply {
        Value::Nil => "(nil)".into(),
        Value::Int(n) if *n > 1_000_000_000_000_000 => "(integer) a fence".into(),
        Value::Int(n) => format!("(integer) {n}"),
        other => format!("{other:?}"),
    }
}

/// The words of a command line, quoted ones whole.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (at, part) in line.split('"').enumerate() {
        if at % 2 == 1 {
            words.push(part.to_string());
        } else {
            words.extend(part.split_whitespace().map(str::to_string));
        }
    }
    words
}

/// What is typed into redis-cli, on a server as `make run` starts it.
fn try_the_sessions(conn: &mut Conn) {
    let lines: Vec<&str> = blocks("text").collect();
    let mut shown = 0;
    for pair in lines.windows(2) {
        if let Some(command) = pair[0].strip_prefix("> ") {
            let reply = printed(&conn.call(&words(command)));
            let expected = match pair[1].strip_prefix("(integer) ").map(str::parse::<i64>) {
                Some(Ok(n)) => printed(&Value::Int(n)),
                _ => pair[1].to_string(),
            };
            assert_eq!(reply, expected, "{command}");
            shown += 1;
        }
    }
    assert!(shown >= 12, "{shown} commands were tried");
}

/// What `make run` starts after `make setup`, in a folder that looks like the project after a build.
struct MakeRun {
    server: Child,
    folder: Folder,
    port: Port,
}

impl MakeRun {
    fn start(kind: &ServerKind, variables: &[(&str, &str)]) -> MakeRun {
        let (folder, port) = (Folder::fresh(), Port::claim());
        let (bin, scripts) = (folder.path().join("bin"), folder.path().join("scripts"));
        for folder in [&bin, &scripts, &folder.path().join("target/release")] {
            fs::create_dir_all(folder).expect("a folder");
        }
        symlink(module_path(), folder.path().join("target/release/libdlock.so"))
            .expect("a link to the module");
        symlink("/bin/true", bin.join("cargo")).expect("what builds nothing, for all is built");
        let server = format!("#!/bin/sh\nexec {} \"$@\"\n", kind.command.join(" "));
        fs::write(bin.join("server"), server).expect("a server");
        fs::set_permissions(bin.join("server"), Permissions::from_mode(0o755)).expect("it is ours");
        fs::write(folder.path().join("redis.conf.example"), EXAMPLE).expect("a copy");
        for (name, text) in [("run.sh", include_str!("../../scripts/run.sh")), ("common.sh", COMMON)] {
            fs::write(scripts.join(name), text).expect("a script");
        }
        let log = File::create(folder.path().join("log")).expect("a log");
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("a PATH"));
        let server = Command::new("bash")
            .arg(scripts.join("run.sh"))
            .envs(environment(folder.path()))
            .env("PATH", path)
            .env("REDIS_SERVER", bin.join("server"))
            .env("PORT", port.number().to_string())
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("a log"))
            .stdout(log)
            .spawn();
        let mut run = MakeRun { server: server.expect("it starts"), folder, port };
        until("it tells what to do", || {
            assert!(run.server.try_wait().expect("its state").is_none(), "it ended: {}", run.said());
            run.said().contains("Ctrl-C ends it.")
        });
        run
    }

    fn said(&self) -> String {
        logged(&self.folder)
    }

    /// What the command that it tells to try prints.
    #[track_caller]
    fn try_what_it_says(&self, about: &str) -> String {
        let said = self.said();
        let mut lines = said.lines().filter(|line| line.starts_with("  redis-cli"));
        let line = lines.find(|line| line.contains(about)).unwrap_or_else(|| panic!("nothing: {said}"));
        let done = Command::new("sh").args(["-c", line]).output().expect("sh runs");
        String::from_utf8(done.stdout).expect("text").trim().to_string()
    }
}

impl Drop for MakeRun {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

const COMMON: &str = include_str!("../../scripts/common.sh");

/// In the order in which the README's reader comes to it.
#[test]
fn what_make_run_says_and_the_sessions_go_as_shown() {
    each_server(|kind| {
        let run = MakeRun::start(kind, &[]);
        let fence = run.try_what_it_says("DLOCK.ACQUIRE");
        assert!(fence.parse::<u64>().is_ok_and(|fence| fence > 1_000_000_000_000_000), "{fence}");
        try_the_sessions(&mut Conn::open(run.port.number()));
    });
}

/// On a machine on which no server is installed where a shell would look for it.
#[test]
fn make_run_starts_the_example_too_and_says_what_ends_its_grace() {
    each_server(|kind| {
        assert!(README.contains("\nmake run CONF=redis.conf.example "));
        let run = MakeRun::start(kind, &[("CONF", "redis.conf.example")]);
        let refused = run.try_what_it_says("DLOCK.ACQUIRE");
        assert!(refused.starts_with("GRACE ") && refused.contains("dlock.restart-grace 0"), "{refused}");
        assert_eq!(run.try_what_it_says("dlock.restart-grace 0"), "OK");
        assert!(run.try_what_it_says("DLOCK.ACQUIRE").parse::<u64>().is_ok());
        let mut conn = Conn::open(run.port.number());
        assert_eq!(conn.ok("CONFIG GET appendfsync").items()[1], "always");
        try_the_sessions(&mut conn);
    });
}

#[test]
fn links_and_pictures_of_the_documents_lead_to_files() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut followed = 0;
    for document in [
        "README.md",
        "ARCHITECTURE.md",
        "docs/choosing.md",
        "docs/info.md",
        "docs/moving.md",
        "docs/speed.md",
        "docs/with-your-client.md",
        "docs/writing-a-client.md",
    ] {
        let document = top.join(document);
        let text = fs::read_to_string(&document).expect("a document");
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        for target in targets.filter(|target| !target.is_empty() && !target.contains("://")) {
            assert!(document.with_file_name(target).exists(), "{} links to {target}", document.display());
            followed += 1;
        }
    }
    assert!(followed >= 10, "{followed} links were followed");
}

#[test]
fn every_command_stands_in_the_table_with_its_form() {
    each_server(|kind| {
        let help = Server::start(kind).connect().ok("DLOCK.HELP");
        let forms: Vec<String> =
            help.items().iter().map(Value::text).filter(|line| line.starts_with("DLOCK.")).collect();
        assert!(forms.len() >= 13);
        for form in &forms[1..] {
            let table = README.replace("\\|", "|");
            // `key token | key CLIENT id` is written as two forms there.
            let (name, rest) = form.split_once(' ').unwrap_or((form, ""));
            for alternative in rest.split(" | key ").enumerate().map(|(at, rest)| match at {
                0 => format!("`{name} {rest}").trim_end().to_string(),
                _ => format!("`{name} key {rest}"),
            }) {
                assert!(table.contains(&format!("{alternative}`")), "the README lacks {alternative}");
            }
        }
    });
}

#[test]
fn every_option_stands_in_the_table_and_in_the_example_with_its_default() {
    each_server(|kind| {
        let options = Server::start(kind).connect().ok("CONFIG GET dlock.*");
        let options: Vec<String> = options.items().iter().map(Value::text).collect();
        let documented: BTreeSet<&str> = README
            .lines()
            .filter(|line| line.starts_with("| `dlock.") && line.matches('|').count() == 5)
            .collect();
        assert_eq!(documented.len(), options.len() / 2);
        for pair in options.chunks(2) {
            let row = format!("| `{}` | {} |", pair[0], pair[1]);
            assert!(documented.iter().any(|line| line.starts_with(&row)), "the README lacks {row}");
            let (line, default) = (format!("\n{} ", pair[0]), format!("default {}", pair[1]));
            assert!(EXAMPLE.contains(&line), "the example lacks {line}");
            assert!(EXAMPLE.contains(&default), "the example does not tell the {default} of {}", pair[0]);
        }
    });
}

#[test]
fn the_acl_line_makes_a_user_who_can_do_that_and_no_more() {
    each_server(|kind| {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let line = blocks("text").find(|line| line.starts_with("ACL SETUSER")).expect("an ACL line");
        assert_eq!(conn.call(&words(line)), "OK");
        conn.ok("AUTH worker secret");
        assert!(conn.ok("DLOCK.ACQUIRE lock:a t 30000").int() > 0);
        assert_eq!(conn.say("DLOCK.RELEASE lock:a t"), 1);
        for refused in ["DLOCK.ACQUIRE other t 30000", "DLOCK.BREAK lock:a", "SET lock:a x", "KEYS *"] {
            assert!(conn.say(refused).error().starts_with("NOPERM"), "{refused}");
        }
    });
}

/// What the row of WRONGTYPE counts on.
#[test]
fn a_lock_of_set_nx_and_one_of_dlock_exclude_each_other_on_one_key() {
    let row = README.lines().find(|line| line.starts_with("| `WRONGTYPE` |")).expect("a row");
    assert!(row.contains("`SET NX PX`: retry with the same key"), "{row}");
    each_server(|kind| {
        let server = Server::start(kind);
        let mut conn = server.connect();
        assert_eq!(conn.ok("SET lock theirs NX PX 600000"), "OK");
        assert!(conn.say("DLOCK.ACQUIRE lock ours 30000").error().starts_with("WRONGTYPE "));
        assert_eq!(conn.ok("CONFIG SET dlock.honour-strings yes"), "OK");
        assert!(conn.ok("DLOCK.ACQUIRE lock ours 30000").is_nil());
        assert_eq!(conn.ok("DEL lock"), 1);
        assert!(conn.ok("DLOCK.ACQUIRE lock ours 30000").int() > 0);
        assert!(conn.ok("SET lock theirs NX PX 600000").is_nil());
        assert_eq!(conn.ok("DLOCK.PTTL lock ours").int().signum(), 1);
    });
}

#[test]
fn the_python_redlock_is_the_one_that_is_tested() {
    let shown: Vec<&str> = blocks("python").collect();
    assert!(!shown.is_empty());
    assert!(include_str!("../redlock.py").contains(&shown.join("\n")), "README and tests/redlock.py differ");
}

/// Started as the README says, from a folder that looks like the project after a build; only the port is
/// another.
#[test]
fn the_example_configuration_starts_a_server() {
    each_server(|kind| {
        let folder = Folder::fresh();
        let built = folder.path().join("target/release");
        fs::create_dir_all(&built).expect("a folder");
        symlink(module_path(), built.join("libdlock.so")).expect("a link to the module");
        fs::write(folder.path().join("redis.conf.example"), EXAMPLE).expect("a copy");
        let log = File::create(folder.path().join("log")).expect("a log");
        let port = Port::claim();
        let (program, arguments) = kind.command.split_first().expect("a program");
        let start = || {
            let mut server = Command::new(program)
                .args(arguments)
                .args(["redis.conf.example", "--port", &port.number().to_string()])
                .envs(environment(folder.path()))
                .current_dir(folder.path())
                .stdout(log.try_clone().expect("a log"))
                .spawn()
                .expect("it starts");
            until("it answers", || {
                assert!(server.try_wait().expect("its state").is_none(), "it ended: {}", logged(&folder));
                TcpStream::connect(("127.0.0.1", port.number())).is_ok()
            });
            server
        };
        let mut server = start();
        let mut conn = Conn::open(port.number());
        // A first start looks like one that has lost everything.
        let refused = conn.say("DLOCK.ACQUIRE k a 60000");
        assert!(
            refused.error().starts_with("GRACE ") && refused.error().contains("grants no new"),
            "{refused:?}"
        );
        assert_eq!(conn.ok("CONFIG SET dlock.restart-grace 0"), "OK");
        assert_eq!(conn.ok("CONFIG SET dlock.restart-grace 60000"), "OK");
        until("it is proven", || conn.ok("INFO dlock").text().contains("dlock_restart_proof:ok"));
        let fence = conn.ok("DLOCK.ACQUIRE k a 60000").int();
        assert!(!logged(&folder).contains("nobody will hear"), "{}", logged(&folder));
        server.kill().expect("killed");
        server.wait().expect("ended");
        let mut server = start();
        let mut conn = Conn::open(port.number());
        let shown = until_some("it has loaded", || match conn.say("DLOCK.INSPECT k") {
            Value::Error(_) => None,
            shown => Some(shown),
        });
        let after = conn.say("DLOCK.ACQUIRE other a 60000");
        server.kill().expect("killed");
        server.wait().expect("ended");
        assert_eq!(shown.field("fence"), &fence, "durable, as it promises");
        assert!(after.int() > fence, "nothing was forgotten, so there is no grace");
    });
}

fn logged(folder: &Folder) -> String {
    fs::read_to_string(folder.path().join("log")).unwrap_or_default()
}
