//! The command over a master that it finds by sentinels.

use super::operators::{dlock, json};
use super::*;
use dlock_testkit::sentinels::{SENTINEL_TIMEOUT, sentinels};
use dlock_testkit::{Server, ServerKind, each_server, until_within};

#[each_server]
fn runs_waits_and_releases_follow_a_failover(kind: &ServerKind) {
    let (master, replica) = Server::with_replica(kind);
    let sentinels = sentinels(kind, &master, 500);
    let address = format!(
        "redis-sentinel://127.0.0.1:{}?sentinelServiceName=locks&node=127.0.0.1:{}",
        sentinels[0].port(),
        sentinels[1].port()
    );
    let stage = Stage::at(vec![master, replica], address);
    let url = |at: usize| format!("redis://127.0.0.1:{}", stage.servers[at].port());
    assert_eq!(json(&stage, "status", 0)["servers"][0]["server"], url(0).as_str());
    let status = json(&stage, "status", 0);
    assert_eq!(status["replicas"][0]["server"], url(1).as_str(), "{status}");
    let known = status["sentinels"].as_array().expect("rows");
    assert_eq!(known.len(), 3, "the third is known by the others: {status}");
    for sentinel in known {
        let says = &sentinel["found"];
        assert_eq!(says["master"], format!("127.0.0.1:{}", stage.servers[0].port()), "{status}");
        assert_eq!((&says["quorum"], &says["sentinels"]), (&2.into(), &3.into()), "{status}");
    }
    let found = json(&stage, "doctor", 1)["findings"].to_string();
    assert!(!found.contains("sentinel"), "{found}");
    doctor_checks_a_failover(&stage);
    let run =
        stage.start(stage.run("--ttl 20s", "echo runs > running; until test -e end; do sleep 0.05; done"));
    stage.until_written("running");
    let waits = stage.start(stage.run("--ttl 20s", "true"));
    let leader = stage.start(stage.dlock("elect --ttl 20s job -- sh -c exit"));
    until("the run waits", || queue::tokens(&mut stage.connect(), "r").len() == 1);
    assert_eq!(leader.wait().code, Some(0));
    stage.servers[1].wait_in_sync(&stage.servers[0]);
    stage.servers[0].kill9();
    until_within(SENTINEL_TIMEOUT, "a sentinel names the new master", || {
        let named = sentinels[0].connect().ok("SENTINEL GET-MASTER-ADDR-BY-NAME locks");
        named.items()[1].text() == stage.servers[1].port().to_string()
    });
    let mut conn = stage.servers[1].connect();
    until("the run waits at the new master", || queue::tokens(&mut conn, "r").len() == 1);
    assert_eq!(json(&stage, "status", 0)["servers"][0]["server"], url(1).as_str());
    assert_eq!(json(&stage, "inspect r", 0)["state"], "held");
    stage.write("end", "");
    assert_eq!(run.wait().code, Some(0));
    assert_eq!(waits.wait().code, Some(0));
    let token = dlock(&stage, "acquire r", 0).stdout;
    dlock(&stage, &format!("release r {}", token.split_whitespace().next().expect("a token")), 0);
    sentinels[1].kill9();
    sentinels[2].kill9();
    let status = json(&stage, "status", 0);
    let down =
        status["sentinels"].as_array().expect("rows").iter().filter(|row| row["unanswered"].is_object());
    assert_eq!(down.count(), 2, "{status}");
    let found = json(&stage, "doctor", 1)["findings"].to_string();
    assert!(found.contains("a failover needs 2 sentinels, and 1 of 3 answer"), "{found}");
    let mut wrong = stage.dlock("run r -- true");
    wrong.env("DLOCK_SERVERS", stage.urls().replace("locks", "other"));
    let done = stage.execute(wrong);
    assert_eq!(done.code, Some(69), "{}", done.stderr);
    assert!(done.stderr.contains("knows no master other: write the name"), "{}", done.stderr);
}

/// The options on which it depends whether a replica takes over, and whether that is safe.
fn doctor_checks_a_failover(stage: &Stage) {
    let (mut master, mut replica) = (stage.connect(), stage.servers[1].connect());
    let found = || json(stage, "doctor", 1)["findings"].to_string();
    assert!(found().contains("it has replicas, and no grace period"), "{}", found());
    let split = "dlock.max-ttl is less than 8000 ms below dlock.restart-grace";
    let set =
        "CONFIG SET min-replicas-to-write 1 min-replicas-max-lag 3 dlock.max-ttl 60000 dlock.restart-grace";
    for grace in [67_999, 68_000] {
        master.ok(&format!("{set} {grace}"));
        assert_eq!(found().contains(split), grace < 68_000, "{}", found());
        assert!(!found().contains("no grace period"), "{}", found());
    }
    master.ok("CONFIG SET min-replicas-to-write 0 dlock.max-ttl 86400000 dlock.restart-grace 0");
    let never = "its replicas have replica-priority 0: if it dies, none takes over";
    assert!(!found().contains(never), "{}", found());
    replica.ok("CONFIG SET replica-priority 0");
    assert!(found().contains(never), "{}", found());
    replica.ok("CONFIG SET replica-priority 100");
    let late = json(stage, "doctor --ttl 400ms", 1)["findings"].to_string();
    assert!(late.contains("a failover begins after 500 ms (down-after-milliseconds)"), "{late}");
}

/// The old master refuses to become a replica, so only the sentinels say that it has a successor. The other
/// candidate asks the new master.
#[each_server]
fn a_leader_leaves_an_old_master_that_goes_on(kind: &ServerKind) {
    let refuses = ["rename-command SLAVEOF \"\"", "rename-command REPLICAOF \"\""];
    let (master, replica) = (Server::options(kind).confs(&refuses).start(), Server::start(kind));
    replica.replicate(&master);
    let sentinels = sentinels(kind, &master, 30_000);
    let address = format!("redis-sentinel://127.0.0.1:{}?sentinelServiceName=locks", sentinels[0].port());
    let stage = Stage::at(vec![master, replica], address);
    let candidate = |name: &str| {
        let mut elect = stage.dlock("elect --ttl 8s job -- sh -c");
        elect.arg(format!("echo leads > {name}; exec sleep 600"));
        stage.start(elect)
    };
    let first = candidate("first");
    stage.until_written("first");
    stage.servers[1].wait_in_sync(&stage.servers[0]);
    until_within(SENTINEL_TIMEOUT, "a sentinel begins the failover", || {
        sentinels[1].connect().say("SENTINEL FAILOVER locks") == "OK"
    });
    until_within(SENTINEL_TIMEOUT, "the sentinel of the address names the new master", || {
        let named = sentinels[0].connect().ok("SENTINEL GET-MASTER-ADDR-BY-NAME locks");
        named.items()[1].text() == stage.servers[1].port().to_string()
    });
    let second = candidate("second");
    until_within(SENTINEL_TIMEOUT, "the first leads at the new master", || {
        assert_eq!(stage.file("second"), "", "two leaders");
        let stats = stage.servers[1].connect().ok("INFO commandstats").text().to_lowercase();
        stats.contains("cmdstat_dlock.extend:")
    });
    first.signal("TERM");
    stage.until_written("second");
    second.signal("TERM");
    first.wait();
    second.wait();
}

/// Each is one sentence, and a list or a missing name is a usage error.
#[each_server]
fn a_wrong_address_says_what_to_write(kind: &ServerKind) {
    let (master, replica) = Server::with_replica(kind);
    let monitor = format!("sentinel monitor locks 127.0.0.1 {} 1", master.port());
    let sentinel = Server::options(kind).sentinel().conf(&monitor).start();
    sentinel.connect().ok("ACL SETUSER default resetpass >secret");
    let place = |server: &Server| format!("127.0.0.1:{}", server.port());
    let right =
        format!("redis-sentinel://{}?sentinelServiceName=locks&sentinelPassword=secret", place(&sentinel));
    let (at_master, replica) = (place(&master), place(&replica));
    let stage = Stage::at(vec![master], right.clone());
    dlock(&stage, "run r -- true", 0);
    for (servers, code, part) in [
        (format!("redis://:secret@{}", place(&sentinel)), 69, "write redis-sentinel://".to_owned()),
        (right.replace("locks", "other"), 69, "knows no master other: write the name in".to_owned()),
        (right.replace("&sentinelPassword=secret", ""), 69, "as sentinelUsername=.. and".to_owned()),
        (right.replace("=secret", "=wrong"), 69, "as sentinelUsername=.. and".to_owned()),
        (right.replace("sentinelServiceName=locks&", ""), 64, "write ?sentinelServiceName=NAME".to_owned()),
        (
            format!("redis-sentinel://{at_master}?sentinelServiceName=locks"),
            69,
            format!("is no sentinel: write redis://{at_master}"),
        ),
        (format!("redis-sentinel://{}/locks", place(&sentinel)), 64, "?sentinelServiceName=NAME".to_owned()),
        (format!("{right}&sentinelServiceName=locks"), 64, "sentinelServiceName is given twice".to_owned()),
        (format!("{right}&master_name=other"), 64, "sentinelServiceName is given twice".to_owned()),
        (format!("{right}&sentinelPassword=secret"), 64, "sentinelPassword is given twice".to_owned()),
        (format!("{right},{right}"), 64, "write only this address".to_owned()),
        (format!("redis://{replica}"), 69, format!("is a replica: write redis://{at_master}")),
    ] {
        let mut run = stage.dlock("run --no-wait r -- true");
        run.env("DLOCK_SERVERS", &servers);
        let done = stage.execute(run);
        assert_eq!(done.code, Some(code), "{servers}: {}", done.stderr);
        assert!(done.stderr.contains(&part), "{servers}: {}", done.stderr);
        assert_eq!(done.stderr.lines().count(), 1, "{servers}: {}", done.stderr);
        assert!(!done.stderr.contains("secret"), "{}", done.stderr);
    }
}

/// The sentinel answers, so none of the remedies is to start it.
#[each_server]
fn doctor_has_a_remedy_for_each_fault_of_an_address_of_sentinels(kind: &ServerKind) {
    let master = Server::start(kind);
    let monitor = format!("sentinel monitor locks 127.0.0.1 {} 1", master.port());
    let sentinel = Server::options(kind).sentinel().conf(&monitor).start();
    sentinel.connect().ok("ACL SETUSER default resetpass >secret");
    let place = |server: &Server| format!("127.0.0.1:{}", server.port());
    let right =
        format!("redis-sentinel://{}?sentinelServiceName=locks&sentinelPassword=secret", place(&sentinel));
    let no_sentinel = format!("redis-sentinel://{}?sentinelServiceName=locks", place(&master));
    let at_sentinel = format!("redis://{}", place(&sentinel));
    let stage = Stage::at(vec![master], right.clone());
    for (servers, code, what, fix) in [
        (right.clone(), 1, "no replica is connected to it", "REPLICAOF"),
        (right.replace("locks", "other"), 69, "knows no master other", "correct sentinelServiceName"),
        (right.replace("=secret", "=wrong"), 69, "refuses the login", "correct sentinelUsername and"),
        (
            right.replace("&sentinelPassword=secret", ""),
            69,
            "refuses the login",
            "correct sentinelUsername and",
        ),
        (no_sentinel, 69, "is no sentinel: write redis://", "correct its host and port"),
    ] {
        let mut doctor = stage.dlock("doctor --json");
        doctor.env("DLOCK_SERVERS", &servers);
        let done = stage.execute(doctor);
        assert_eq!(done.code, Some(code), "{servers}: {}{}", done.stdout, done.stderr);
        let found: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
        let fits = |finding: &serde_json::Value| {
            finding["what"].as_str().is_some_and(|text| text.contains(what))
                && finding["fix"].as_str().is_some_and(|text| text.contains(fix))
        };
        assert!(found["findings"].as_array().expect("rows").iter().any(fits), "{servers}: {found}");
        assert!(!found.to_string().contains("start it"), "{servers}: {found}");
    }
    sentinel.kill9();
    let found = json(&stage, "doctor", 69)["findings"].to_string();
    assert!(found.contains(&at_sentinel) && found.contains("start it; if it is gone for ever"), "{found}");
}

/// The login is good, and one right is missing. With all of them, everything works.
#[each_server]
fn a_missing_right_at_the_sentinels_is_named(kind: &ServerKind) {
    let master = Server::start(kind);
    let monitor = format!("sentinel monitor locks 127.0.0.1 {} 1", master.port());
    let sentinel = Server::options(kind).sentinel().conf(&monitor).start();
    let address = format!(
        "redis-sentinel://127.0.0.1:{}?sentinelServiceName=locks&sentinelUsername=ann&sentinelPassword=secret",
        sentinel.port()
    );
    let stage = Stage::at(vec![master], address);
    let rights =
        "ACL SETUSER ann on >secret +sentinel|myid +sentinel|master +sentinel|sentinels +sentinel|replicas";
    assert_eq!(sentinel.connect().ok(rights), "OK");
    for words in ["run --no-wait r -- true", "status"] {
        let done = dlock(&stage, words, 69);
        let shown = done.stdout + &done.stderr;
        assert!(shown.contains("NOPERM") && shown.contains("sentinel|get-master-addr-by-name"), "{shown}");
        assert!(!shown.contains("refuses the login"), "{shown}");
    }
    let found = json(&stage, "doctor", 69)["findings"].to_string();
    assert!(found.contains("the rights +sentinel|get-master-addr-by-name"), "{found}");
    assert!(!found.contains("+info") && !found.contains("user and the password"), "{found}");
    sentinel.connect().ok("ACL SETUSER ann +sentinel|get-master-addr-by-name");
    dlock(&stage, "run --no-wait r -- true", 0);
    let metrics = dlock(&stage, "metrics", 0).stdout;
    let master = format!("master=\"127.0.0.1:{}\"", stage.servers[0].port());
    assert!(metrics.contains("\ndlock_sentinel_up{") && metrics.contains(&master), "{metrics}");
}
