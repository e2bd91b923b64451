//! The tables of the documents match a running server.

use std::collections::BTreeSet;

use dlock_testkit::{Server, ServerKind, Value, documents, each_server};

const EXAMPLE: &str = include_str!("../../redis.conf.example");

#[each_server]
fn the_command_table_lists_every_command_with_its_syntax(kind: &ServerKind) {
    let help = Server::start(kind).connect().ok("DLOCK.HELP");
    let table = documents::read("docs/commands.md").replace("\\|", "|");
    // The first line is a heading, and the indented lines are summaries.
    let lines = help.items()[1..].iter().map(Value::text);
    let forms: Vec<String> = lines.filter(|line| line.starts_with("DLOCK.")).collect();
    // The loop would prove nothing if HELP listed nothing.
    assert!(forms.len() >= 12);
    for form in forms {
        // The table has `key token | key CLIENT id` as two forms.
        let name = form.split(' ').next().expect("a name");
        for alternative in form.replace(" | key ", &format!("\n{name} key ")).lines() {
            assert!(table.contains(&format!("`{alternative}`")), "docs/commands.md lacks {alternative}");
        }
    }
}

#[each_server]
fn the_option_table_and_the_example_list_every_option_with_its_default(kind: &ServerKind) {
    let options = Server::start(kind).connect().ok("CONFIG GET dlock.*");
    let options: Vec<String> = options.items().iter().map(Value::text).collect();
    let table = documents::read("docs/options.md");
    let rows: BTreeSet<&str> = table.lines().filter(|line| line.starts_with("| `dlock.")).collect();
    assert_eq!(rows.len(), options.len() / 2);
    for pair in options.chunks(2) {
        let [name, default] = pair else { panic!("{options:?}") };
        let row = format!("| `{name}` | {default} |");
        assert!(rows.iter().any(|line| line.starts_with(&row)), "docs/options.md lacks {row}");
        assert!(EXAMPLE.contains(&format!("\n{name} ")), "the example lacks {name}");
        let default = format!("default {default}");
        assert!(EXAMPLE.contains(&default), "the example does not state the {default} of {name}");
    }
}

#[each_server]
fn the_documented_acl_line_grants_the_named_rights_only(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    let shown = documents::blocks("docs/security.md", "text");
    let line = shown.iter().find(|line| line.starts_with("ACL SETUSER")).expect("an ACL line");
    assert_eq!(conn.ok(line), "OK");
    conn.ok("AUTH worker secret");
    assert!(conn.ok("DLOCK.ACQUIRE lock:a t 30000").int() > 0);
    assert_eq!(conn.say("DLOCK.RELEASE lock:a t"), 1);
    for refused in ["DLOCK.ACQUIRE other t 30000", "DLOCK.BREAK lock:a", "SET lock:a x", "KEYS *"] {
        assert!(conn.say(refused).error().starts_with("NOPERM"), "{refused}");
    }
}

/// The row also advises to set `dlock.honour-strings` and wait. `conformance/honour-strings.json` tests that.
#[test]
fn the_wrongtype_row_advises_a_retry_with_the_same_key() {
    let table = documents::read("docs/commands.md");
    let row = table.lines().find(|line| line.starts_with("| `WRONGTYPE` |")).expect("a row");
    assert!(row.contains("`SET NX PX`: retry with the same key"), "{row}");
}

#[test]
fn the_documented_python_redlock_is_the_tested_one() {
    let shown = documents::blocks("docs/clients.md", "python");
    assert!(!shown.is_empty());
    assert!(
        include_str!("../redlock.py").contains(&shown.join("\n")),
        "docs/clients.md and tests/redlock.py differ"
    );
}
