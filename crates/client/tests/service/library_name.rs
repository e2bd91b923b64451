//! The name under which CLIENT LIST shows the connections of a client.

use super::*;
use sha1_smol::Sha1;

/// Returns the library name of each connection of clients to the server. Empty if the server does not support
/// CLIENT SETINFO.
fn names(server: &Server) -> Vec<String> {
    let list = server.connect().ok("CLIENT LIST").text();
    let field = |line: &str| Some(line.split_once(" lib-name=")?.1.split(' ').next()?.to_owned());
    // The test's own connection has no library name.
    list.lines().filter_map(field).filter(|name| !name.is_empty()).collect()
}

fn supports_setinfo(server: &Server) -> bool {
    !matches!(server.connect().say("CLIENT SETINFO LIB-NAME test"), Value::Error(_))
}

/// Returns the library name of a client of `servers`, as the documentation of `library_name` defines it.
fn expected_name(servers: &[Server]) -> String {
    let mut run_ids: Vec<String> = servers.iter().map(|server| server.info("run_id")).collect();
    run_ids.sort();
    let digest = Sha1::from(run_ids.join(",")).digest().to_string();
    format!("dlock-client(q{}-{})", servers.len(), &digest[..8])
}

async fn lock_and_release(client: &Client) {
    let guard = client.lock("r").ttl(LONG).await.expect("the lock is free");
    guard.release().await.expect("the lock is held");
}

#[each_server]
async fn a_client_of_one_server_is_named_after_the_library(kind: &ServerKind) {
    let (servers, client) = quorum(kind, 1).await;
    lock_and_release(&client).await;
    assert_eq!(client.library_name(), "dlock-client");
    if supports_setinfo(&servers[0]) {
        assert_eq!(names(&servers[0]), ["dlock-client"]);
    }
}

#[each_server]
async fn clients_of_different_quorums_have_different_library_names(kind: &ServerKind) {
    let servers = masters(kind, 4);
    let (name, first) = (expected_name(&servers[..3]), client(&servers[..3]).await);
    // The order and the spelling of the addresses do not matter.
    let urls = servers[..3].iter().rev().map(|server| format!("redis://localhost:{}", server.port()));
    let second = builder(&[]).servers(urls).build().await.expect("a client");
    for client in [&first, &second] {
        lock_and_release(client).await;
        until("the client knows all run ids", || client.library_name() == name);
    }
    let other = client(&servers[1..]).await;
    until("the client knows all run ids", || other.library_name() == expected_name(&servers[1..]));
    assert_ne!(name, other.library_name());
    if supports_setinfo(&servers[0]) {
        until("both clients show the name", || names(&servers[0]) == [name.clone(), name.clone()]);
        until("three clients show their names", || {
            let mut names = names(&servers[1]);
            names.sort();
            let mut expected = [name.clone(), name.clone(), other.library_name()];
            expected.sort();
            names == expected
        });
    }
}

/// The digest is that of the members' run ids. A restarted member has a new run id, so the digest changes.
#[each_server]
async fn the_name_of_a_quorum_has_a_digest_once_all_members_were_reached_and_follows_a_restart(
    kind: &ServerKind,
) {
    let mut servers = masters(kind, 3);
    servers[2].kill9();
    let client = builder(&servers).node_timeout(Duration::from_secs(1)).build().await.expect("a client");
    lock_and_release(&client).await;
    assert_eq!(client.library_name(), "dlock-client(q3)");
    let supports_setinfo = supports_setinfo(&servers[0]);
    if supports_setinfo {
        assert_eq!(names(&servers[0]), ["dlock-client(q3)"]);
    }
    let mut last_name = client.library_name();
    // The first round starts the member that was down, and the second one restarts it.
    for _ in 0..2 {
        servers[2].restart();
        // The request goes to all members, so the client reconnects to the restarted one.
        while client.library_name() == last_name {
            client.inspect("r").await;
        }
        last_name = client.library_name();
        assert_eq!(last_name, expected_name(&servers));
        if supports_setinfo {
            until("every connection has sent the name", || {
                servers.iter().all(|server| names(server) == [last_name.clone()])
            });
        }
    }
}
