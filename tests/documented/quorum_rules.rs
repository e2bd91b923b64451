//! The tables of the quorum's rules name a test of each client for each rule.

use dlock_testkit::{documents, project};

const TABLE: &str = "docs/internals/quorum-rules.md";

/// The columns with tests: the client, and the folder to which the paths in its column are relative.
const CLIENTS: [(&str, &str); 4] = [
    ("Rust", "crates"),
    ("Python", "clients/python/tests"),
    ("Node", "clients/node/tests"),
    ("Go", "clients/go"),
];

/// Returns true if the source of a client's test file has a test of this name that `make test` runs.
fn has_test(client: &str, source: &str, name: &str) -> bool {
    let lines: Vec<&str> =
        source.lines().map(|line| line.trim_start().trim_start_matches("async ")).collect();
    let begins_test = |line: &&str| match client {
        "Rust" => line.starts_with(&format!("fn {name}(")),
        "Python" => line.starts_with(&format!("def {name}(")),
        "Go" => line.starts_with(&format!("func {name}(")),
        // Some names stand in an array of the cases of one test.
        _ => ['"', '`'].iter().any(|quote| {
            let line = line.trim_start_matches("test(").trim_start_matches('[');
            line.starts_with(&format!("{quote}{name}{quote},"))
        }),
    };
    let Some(at) = lines.iter().position(begins_test) else { return false };
    let mut attributes = lines[..at].iter().rev().take_while(|line| line.starts_with(['#', '@']));
    !attributes.any(|line| line.contains("ignore") || line.contains("mark.skip"))
}

/// Returns the texts between backticks.
fn code(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn every_rule_of_a_quorum_has_a_test_in_each_client() {
    let text = documents::read(TABLE);
    let rows: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| line.starts_with("| "))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    let mut columns = 0;
    assert!(rows.len() > 15, "{TABLE}: {} rows", rows.len());
    for row in &rows {
        let rule = row[0];
        if rule == "rule" {
            columns = row.len();
            assert!(columns >= 4, "{TABLE}: the head of the table {row:?}");
            assert!(row[1..].iter().zip(CLIENTS).all(|(head, (client, _))| *head == client), "{row:?}");
            continue;
        }
        assert_eq!(row.len(), columns, "{TABLE}: {rule}");
        for ((client, folder), cell) in CLIENTS.into_iter().zip(&row[1..]) {
            let named = code(cell);
            if client == "Go" && *cell == "none" {
                continue;
            }
            assert!(!named.is_empty(), "{TABLE}: {client} has no test for: {rule}");
            for test in named {
                let (file, name) =
                    test.split_once(": ").unwrap_or_else(|| panic!("{TABLE}: `{test}` is not `FILE: TEST`"));
                let path = project().join(folder).join(file);
                let source =
                    std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{TABLE}: {file}: {why}"));
                assert!(has_test(client, &source, name), "{TABLE}: {client} does not run a test `{test}`");
            }
        }
    }
}
