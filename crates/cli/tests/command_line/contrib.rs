//! The files of contrib/ that name metrics. `make test-contrib` tests that each alert fires.

use dlock_testkit::{ServerKind, each_server};
use std::collections::BTreeSet;

use super::*;

const RULES: &str = include_str!("../../../../contrib/prometheus/dlock.rules.yml");
const DASHBOARD: &str = include_str!("../../../../contrib/grafana/dlock.json");

/// The words of a text that are names of metrics.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|char: char| !(char.is_ascii_alphanumeric() || char == '_'));
    words.filter(|word| word.starts_with("dlock_")).collect()
}

#[each_server]
fn alert_rules_and_dashboard_name_only_exported_metrics(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let mut conn = stage.connect();
    conn.ok("DLOCK.ACQUIRE r t 600000");
    let _waiter = queue::waiter(&stage.servers[0], "DLOCK.ACQUIRE r u 600000 BLOCK 0");
    let exported = stage.end(stage.dlock("metrics --node-timeout 5s")).stdout;
    let exported: BTreeSet<&str> = exported
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split(['{', ' ']).next().expect("a name"))
        .collect();
    for (file, text, least) in [("rules", RULES, 9), ("dashboard", DASHBOARD, 25)] {
        let named = metrics_in(text);
        assert!(named.len() >= least, "{file}: {named:?}");
        let missing: Vec<_> = named.difference(&exported).collect();
        assert!(missing.is_empty(), "{file}: {missing:?} of {exported:?}");
    }
}
