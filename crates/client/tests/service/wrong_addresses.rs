//! Addresses that name something else than they say: the error says what to write instead.

use super::*;
use dlock_client::BuildError;
use dlock_testkit::cluster::{EQUAL_SLOTS, cluster, join};
use dlock_testkit::sentinels::sentinels;

async fn error_of<const N: usize>(servers: [String; N]) -> BuildError {
    let builder = Client::builder().servers(servers).node_timeout(Duration::from_secs(5));
    builder.build().await.expect_err("the addresses are refused")
}

#[track_caller]
fn assert_unusable(why: &BuildError, part: &str) {
    assert!(matches!(why, BuildError::Unusable(_)) && why.to_string().contains(part), "{why}");
}

#[each_server]
async fn the_wrong_form_of_a_cluster_is_refused_with_the_right_one(kind: &ServerKind) {
    let nodes = cluster(kind, EQUAL_SLOTS);
    let as_cluster = |server: &Server| format!("redis-cluster://127.0.0.1:{}", server.port());
    assert_unusable(&error_of([url(&nodes[1])]).await, &format!("write {}", as_cluster(&nodes[1])));
    let one = Server::start(kind);
    assert_unusable(&error_of([as_cluster(&one)]).await, &format!("write {}", url(&one)));
    let mixed = error_of([url(&one), as_cluster(&nodes[0]), url(&nodes[1])]).await;
    let BuildError::Address { position: 2, why } = &mixed else { panic!("{mixed}") };
    assert!(why.contains("write only this address"), "{why}");
    let several = error_of([as_cluster(&nodes[0]), as_cluster(&nodes[1])]).await;
    assert!(matches!(several, BuildError::Address { position: 1, .. }), "{several}");
}

#[each_server]
async fn a_cluster_without_the_module_is_refused_with_the_address_of_a_node(kind: &ServerKind) {
    let start = || Server::options(kind).conf("cluster-enabled yes").without_module().start();
    let nodes = [(); 3].map(|()| start());
    join(&nodes, &EQUAL_SLOTS);
    let why = error_of([format!("redis-cluster://127.0.0.1:{}", nodes[0].port())]).await;
    assert_unusable(&why, &format!("{} does not have dlock", url(&nodes[0])));
}

#[each_server]
async fn the_wrong_form_of_sentinels_is_refused_with_the_right_one(kind: &ServerKind) {
    let (master, replica) = Server::with_replica(kind);
    let sentinels = sentinels(kind, &master, 30_000);
    assert_eq!(sentinels[0].connect().ok("ACL SETUSER default resetpass >secret"), "OK");
    let sentinel = format!("127.0.0.1:{}", sentinels[0].port());
    let login = "sentinelPassword=secret";
    let plain = error_of([format!("redis://:secret@{sentinel}")]).await;
    assert_unusable(&plain, &format!("write redis-sentinel://{sentinel}?sentinelServiceName=NAME"));
    let unknown = error_of([format!("redis-sentinel://{sentinel}?sentinelServiceName=other&{login}")]).await;
    assert_unusable(&unknown, "knows no master other: write the name in `sentinel monitor");
    let without = format!("redis-sentinel://{sentinel}?sentinelServiceName=locks");
    for wrong in [without.clone(), format!("{without}&sentinelPassword=wrong")] {
        assert_unusable(&error_of([wrong]).await, "sentinelPassword=");
    }
    let no_sentinel =
        error_of([format!("redis-sentinel://127.0.0.1:{}?sentinelServiceName=locks", master.port())]);
    assert_unusable(&no_sentinel.await, &format!("is no sentinel: write {}", url(&master)));
    let client = Client::builder().server(format!("{without}&{login}")).build().await.expect("a client");
    drop(client.lock("r").try_acquire().await.expect("an answer").expect("the lock is free"));

    // A replica is no error before a lock needs it, because the address may lead to the master soon.
    let client = Client::builder().server(url(&replica)).retry(Retry::new(0, Duration::ZERO));
    let client = client.node_timeout(Duration::from_secs(5)).build().await.expect("a client");
    let why = client.lock("r").try_acquire().await.expect_err("a replica grants nothing").to_string();
    assert!(why.contains(&format!("is a replica: write {}", url(&master))), "{why}");
}
