//! Guards in a cluster: every key is a key of the command.

use super::nodes::{EVENLY, cluster};
use dlock_testkit::{Conn, ServerKind, each_server};

#[each_server]
fn a_guard_is_redirected_to_the_node_of_its_keys(kind: &ServerKind) {
    let nodes = cluster(kind, EVENLY);
    let mut conns: Vec<Conn> = nodes.iter().map(|node| node.connect()).collect();
    let word = |conn: &mut Conn, command: &str| match conn.say(command) {
        dlock_testkit::Value::Error(text) => text.split(' ').next().unwrap_or_default().to_owned(),
        answer => format!("{answer:?}"),
    };
    let mut at_home = 0;
    for conn in &mut conns {
        if word(conn, "DLOCK.ACQUIRE {a}k t MAX") == "MOVED" {
            for command in ["DLOCK.GUARD {a}k t GET {a}x", "DLOCK.FENCED {a}g 5 GET {a}x"] {
                assert_eq!(word(conn, command), "MOVED", "{command}");
            }
            continue;
        }
        at_home += 1;
        conn.ok("DLOCK.GUARD {a}k t SET {a}x 1");
        conn.ok("DLOCK.FENCED {a}g 5 MSET {a}x 1 {a}y 2");
        for command in ["DLOCK.GUARD {a}k t GET {b}x", "DLOCK.FENCED {a}g 6 SET {b}x 1"] {
            assert_eq!(word(conn, command), "CROSSSLOT", "{command}");
        }
        assert_eq!(conn.ok("GET {a}g"), "5");
    }
    assert_eq!(at_home, 1);
}
