//! Options from redis.conf, from module arguments and from CONFIG.

use std::fs;

use dlock_testkit::{Server, ServerKind, each_server, module_path};

/// Numeric options with their default, least and greatest value.
const OPTIONS: [(&str, i64, i64, i64); 8] = [
    ("dlock.max-ttl", 86_400_000, 1, 4_294_967_295),
    ("dlock.restart-grace", 0, 0, 4_294_967_295),
    ("dlock.max-waiters", 10_000, 0, 1_000_000),
    ("dlock.max-waiters-per-key", 1_000, 0, 1_000_000),
    ("dlock.max-holders-per-key", 100_000, 1, 1_000_000),
    ("dlock.log-max-len", 128, 0, 10_000),
    ("dlock.log-slower-than", 10_000, -1, 4_294_967_295),
    ("dlock.max-queued", 100_000, 0, 1_000_000),
];

#[each_server]
fn config_get_and_set_cover_every_numeric_option_and_its_bounds(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    for (name, default, least, greatest) in OPTIONS {
        assert_eq!(conn.ok(&format!("CONFIG GET {name}")), [name, &default.to_string()]);
        for value in [greatest, least] {
            assert_eq!(conn.ok(&format!("CONFIG SET {name} {value}")), "OK");
            assert_eq!(conn.ok(&format!("CONFIG GET {name}")), [name, &value.to_string()]);
        }
        for value in [(least - 1).to_string(), (greatest + 1).to_string(), "x".into(), "1.5".into()] {
            let refused = conn.say(&format!("CONFIG SET {name} {value}"));
            assert!(refused.error().starts_with("ERR CONFIG SET failed"), "{name} {value}: {refused:?}");
            assert_eq!(conn.ok(&format!("CONFIG GET {name}")), [name, &least.to_string()]);
        }
    }
    // The loop has left each option at its least value: 1 for dlock.max-ttl, and 0 for dlock.restart-grace,
    // which is then off and limits no ttl.
    assert_eq!(
        conn.say("DLOCK.ACQUIRE k t 2").error().split(" from ").nth(1),
        Some("1 to 1 (dlock.max-ttl, or a shorter dlock.restart-grace)")
    );
}

/// The fence mark is a number on the disk. After a restart, fences continue above this number.
#[each_server]
fn the_fence_mark_can_be_switched_off_and_on(kind: &ServerKind) {
    let value = |server: &Server| server.connect().ok("CONFIG GET dlock.fence-mark").items()[1].text();
    let server = Server::start(kind);
    assert_eq!(value(&server), "yes");
    let mut conn = server.connect();
    assert_eq!(conn.ok("CONFIG SET dlock.fence-mark no"), "OK");
    assert_eq!(value(&server), "no");
    assert!(conn.say("CONFIG SET dlock.fence-mark 0").error().starts_with("ERR CONFIG SET failed"));
    assert_eq!(value(&Server::options(kind).conf("dlock.fence-mark no").start()), "no");
    assert_eq!(value(&Server::options(kind).module_args("fence-mark NO").start()), "no");
    let server = Server::options(kind).module_args("fence-mark no").conf("dlock.fence-mark yes").start();
    assert_eq!(value(&server), "yes");
}

#[each_server]
fn config_rewrite_keeps_options_over_a_restart(kind: &ServerKind) {
    let mut server = Server::start(kind);
    let mut conn = server.connect();
    conn.ok("CONFIG SET dlock.max-ttl 7000");
    assert_eq!(conn.ok("CONFIG REWRITE"), "OK");
    let conf = fs::read_to_string(server.dir().join("server.conf")).expect("server.conf can be read");
    assert!(conf.lines().any(|line| line == "dlock.max-ttl 7000"), "{conf}");
    // CONFIG REWRITE leaves out options with their default value.
    assert!(!conf.contains("dlock.max-waiters"), "{conf}");
    server.restart();
    assert_eq!(server.connect().ok("CONFIG GET dlock.max-ttl"), ["dlock.max-ttl", "7000"]);
}

#[each_server]
fn redis_conf_sets_options_and_overrides_the_arguments_of_loadmodule(kind: &ServerKind) {
    let arguments = "max-ttl 7000 DLOCK.MAX-WAITERS 5 dlock.max-waiters-per-key 6";
    let conf = ["dlock.max-waiters 8", "DLOCK.LOG-MAX-LEN 9"];
    let server = Server::options(kind).module_args(arguments).confs(&conf).start();
    let mut conn = server.connect();
    let options = conn.ok("CONFIG GET dlock.*");
    let names = ["max-ttl", "max-waiters", "max-waiters-per-key", "log-max-len"];
    let values = names.map(|name| options.field(&format!("dlock.{name}")).text());
    assert_eq!(values, ["7000", "8", "6", "9"]);
    assert!(conn.say("DLOCK.ACQUIRE k t 7001").error().contains("from 1 to 7000"));
    assert!(conn.ok("DLOCK.ACQUIRE k t 7000").int() > 0);
}

#[each_server]
fn a_server_with_a_wrong_option_names_it_and_does_not_start(kind: &ServerKind) {
    for (arguments, why) in [
        (
            "max-tll 5",
            "unknown module argument 'max-tll'; options are max-ttl, restart-grace, fence-mark, max-waiters, \
             max-waiters-per-key",
        ),
        ("max-ttl", "module argument 'max-ttl' requires a number from 1 to 4294967295"),
        ("max-ttl 0", "module argument 'max-ttl' requires a number from 1 to 4294967295"),
        ("max-ttl 1s", "module argument 'max-ttl' requires a number from 1 to 4294967295"),
        ("fence-mark", "module argument 'fence-mark' requires yes or no"),
        ("fence-mark 1", "module argument 'fence-mark' requires yes or no"),
        ("max-ttl 5 max-waiters -1", "module argument 'max-waiters' requires a number from 0 to 1000000"),
    ] {
        let log = Server::options(kind).module_args(arguments).try_start().err().expect("the start fails");
        let line = log.lines().find(|line| line.contains("<dlock> module load failed: "));
        assert!(line.is_some_and(|line| line.contains(why)), "{arguments}: {line:?}");
        assert!(log.contains("Can't load module"), "{log}");
    }
    for conf in ["dlock.max-ttl 0", "dlock.max-ttl x", "dlock.max-tll 5"] {
        let log = Server::options(kind).conf(conf).try_start().err().expect("the start fails");
        // Redis 7.0 does not name the unknown option.
        let causes = [conf.split(' ').next().unwrap_or_default(), "Module Configuration"];
        assert!(causes.iter().any(|words| log.contains(words)), "{conf}: {log}");
    }
}

#[each_server]
fn the_module_loads_into_a_running_server_and_cannot_be_unloaded(kind: &ServerKind) {
    let server = Server::options(kind).without_module().start();
    let mut conn = server.connect();
    let path = module_path().to_str().expect("the path is UTF-8");
    let refused = conn.call(&["MODULE", "LOAD", path, "max-tll", "5"]);
    assert!(refused.error().contains("Error loading the extension"), "{refused:?}");
    assert!(server.log().contains("unknown module argument 'max-tll'"));

    assert_eq!(
        conn.call(&["MODULE", "LOADEX", path, "CONFIG", "dlock.max-ttl", "7000", "ARGS", "max-waiters", "5"]),
        "OK"
    );
    assert_eq!(conn.ok("CONFIG GET dlock.max-ttl"), ["dlock.max-ttl", "7000"]);
    assert_eq!(conn.ok("CONFIG GET dlock.max-waiters"), ["dlock.max-waiters", "5"]);
    assert!(conn.ok("DLOCK.ACQUIRE k t 7000").int() > 0);
    assert!(conn.say("MODULE UNLOAD dlock").error().starts_with("ERR Error unloading module"));
    assert_eq!(conn.ok("DLOCK.HOLDS k t"), 1);
}
