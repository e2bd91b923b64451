//! Members of a quorum: their identity, addresses and errors.

use super::proxies::listen;
use super::*;
use dlock_client::{BuildError, FaultKind};
use std::io::{Read, Write};
use std::os::unix::fs::symlink;

#[each_server]
async fn two_addresses_of_one_server_are_refused(kind: &ServerKind) {
    let servers = masters(kind, 2);
    let alias = format!("redis://localhost:{}/0", servers[0].port());
    let why = builder(&servers).server(alias).build().await.expect_err("one server would vote twice");
    let BuildError::SameServer(one, other) = &why else { panic!("{why:?}") };
    let mut named = [&**one, &**other];
    named.sort();
    assert_eq!(named, [url(&servers[0]), format!("redis://localhost:{}", servers[0].port())], "{why}");
}

#[each_server]
async fn an_address_that_later_leads_to_another_member_does_not_vote(kind: &ServerKind) {
    let first = Server::options(kind).conf("unixsocket socket").start();
    let second = Server::start(kind);
    let link = first.dir().join("link");
    let servers = [url(&first), url(&second), format!("unix://{}", link.display())];
    let builder = Client::builder().servers(servers).node_timeout(Duration::from_secs(5));
    let client = builder.build().await.expect("a member that is down is no error");
    // From now on, the third address leads to the first server.
    symlink(first.dir().join("socket"), link).expect("a link");
    let inspected = || async {
        let seen = client.inspect("r").await.remove(2).answer;
        seen.found().is_none().then_some(seen)
    };
    // The client failed to connect before the link existed, and pauses before it tries again. Until then, it
    // reports the member as Down.
    loop {
        match inspected().await.expect("the member never votes") {
            Answer::Unanswered(NodeState::Failed(why)) => {
                assert_eq!(why.kind, FaultKind::SameServer);
                assert!(why.text.contains(&format!("the same server as {}", url(&first))), "{why:?}");
                break;
            }
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
    let guard = client.lock("r").ttl(LONG).acquire().await.expect("two of three are a majority");
    guard.release().await.expect("the lock is held");
    second.kill9();
    client.lock("r").wait(Wait::No).acquire().await.expect_err("one server is no majority of three");
}

#[each_server]
async fn an_unusable_server_is_reported_at_once(kind: &ServerKind) {
    let bare = Server::options(kind).without_module().start();
    let secret = Server::options(kind).conf("requirepass secret").start();
    let without_info = Server::start(kind);
    assert_eq!(without_info.connect().ok("ACL SETUSER worker on >pass ~* +@all -info"), "OK");
    let worker = format!("redis://worker:pass@127.0.0.1:{}", without_info.port());
    let unusable = async |servers: &[String]| {
        let built = Client::builder().servers(servers).build().await;
        let why = built.expect_err("an unusable server");
        assert!(matches!(why, BuildError::Unusable { .. }), "{why:?}");
        why.to_string()
    };
    let why = unusable(&[url(&bare)]).await;
    assert!(why.contains("load the module"), "{why}");
    let why = unusable(&[url(&secret)]).await;
    assert!(why.contains("requires a password") && why.contains("redis://:password@host"), "{why}");
    // The server's own text is about HELLO, which the application did not send.
    assert!(!why.contains("HELLO"), "{why}");
    let why = unusable(&[format!("redis://:wrong@127.0.0.1:{}", secret.port())]).await;
    assert!(why.contains("WRONGPASS") && why.contains("check them in the address"), "{why}");
    assert!(!why.contains("wrong@"), "{why}");
    let node = Server::options(kind).conf("cluster-enabled yes").start();
    let why = unusable(&[url(&node)]).await;
    assert!(why.contains("is a node of a cluster: write redis-cluster://127.0.0.1:"), "{why}");
    // A single server needs no run id. A member of a quorum needs one, which INFO shows.
    Client::builder().server(worker.as_str()).build().await.expect("a usable server");
    let why = unusable(&[worker, url(&Server::start(kind))]).await;
    assert!(why.contains("let its user run INFO") && !why.contains("pass@"), "{why}");

    let build = async |servers: &[&str]| Client::builder().servers(servers.iter().copied()).build().await;
    assert!(matches!(build(&[]).await, Err(BuildError::NoServers)));
    assert!(matches!(build(&["redis://a"; 256]).await, Err(BuildError::TooManyServers)));
    assert!(matches!(build(&["http://a"]).await, Err(BuildError::Address { .. })));
    let refused = Client::builder().server(url(&without_info)).node_timeout(Duration::ZERO).build().await;
    assert!(matches!(refused, Err(BuildError::Option(_))));
}

/// The server's error for an unknown command repeats the arguments. Those of HELLO contain the password.
#[each_server]
async fn errors_and_debug_texts_show_no_password(kind: &ServerKind) {
    let without_hello = Server::options(kind).conf("rename-command HELLO \"\"").start();
    let address = format!("redis://worker:s3cret@127.0.0.1:{}", without_hello.port());
    let builder = Client::builder().server(&address);
    let shown = format!("{builder:?}");
    let why = builder.build().await.expect_err("an unusable server");
    for text in [why.to_string(), format!("{why:?}"), shown] {
        assert!(!text.contains("s3cret") && !text.contains("worker"), "{text}");
    }
    assert!(why.to_string().contains("HELLO"), "{why}");

    let strict = Server::options(kind).conf("requirepass other").start();
    let address = format!("redis://:s3cret@127.0.0.1:{}", strict.port());
    // Both connections to `strict` fail, so the client does not notice that they lead to one server.
    let builder = Client::builder().server(&address).server(url(&Server::start(kind))).server(&address);
    let why = builder.build().await.expect_err("two of three cannot take part");
    assert!(why.to_string().contains("WRONGPASS") && !format!("{why} {why:?}").contains("s3cret"), "{why:?}");
}

/// The server in this test answers as an HTTP server does.
#[tokio::test]
async fn a_server_of_another_protocol_is_reported_as_such() {
    let port = listen(|mut connection| {
        let _ = connection.read(&mut [0; 1024]);
        let _ = connection.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    let address = format!("redis://127.0.0.1:{port}");
    let why = Client::builder().server(address).build().await.expect_err("an unusable server").to_string();
    assert!(why.contains("does not speak the protocol of Redis"), "{why}");
    assert!(!why.contains('\n') && !why.contains("\\n"), "{why}");
}

#[each_server]
async fn a_unix_socket_a_database_and_a_restricted_user_work(kind: &ServerKind) {
    let server = Server::options(kind).conf("unixsocket socket").start();
    let rights = "+dlock.acquire +dlock.release +dlock.extend +dlock.confirm +select +info";
    let user = format!("ACL SETUSER ann on >s3cret ~lock:* {rights}");
    assert_eq!(server.connect().ok(&user), "OK");
    let socket = server.dir().join("socket");
    let addresses = [
        format!("unix://{}?db=3&user=ann&pass=s3cret", socket.display()),
        format!("redis://ann:s3cret@127.0.0.1:{}/3", server.port()),
    ];
    for address in addresses {
        let builder = Client::builder().server(address).node_timeout(Duration::from_secs(5));
        let client = builder.build().await.expect("a usable server");
        let guard = client.lock("lock:r").ttl(LONG).acquire().await.expect("the lock is free");
        let mut conn = server.connect();
        conn.ok("SELECT 3");
        assert!(!conn.ok("DLOCK.INSPECT lock:r").is_nil());
        let next = tokio::spawn(client.lock("lock:r").acquire());
        until("the next client waits", || !queue::clients(&mut conn, "lock:r").is_empty());
        guard.extend(LONG).await.expect("the lock is held");
        guard.release().await.expect("the lock is held");
        next.await.expect("no panic").expect("the lock is free").release().await.expect("the lock is held");
        assert!(conn.ok("DLOCK.INSPECT lock:r").is_nil());
        let why = client.lock("other").wait(Wait::No).acquire().await.expect_err("the user has no right");
        assert!(why.to_string().contains("NOPERM") && !why.to_string().contains("s3cret"), "{why}");
    }
}

#[each_server]
async fn a_majority_works_without_an_unusable_member(kind: &ServerKind) {
    let mut servers = masters(kind, 2);
    servers.push(Server::options(kind).without_module().start());
    let client = client(&servers).await;
    let unusable = client.unusable();
    let [member] = unusable.0.as_slice() else { panic!("{unusable}") };
    assert_eq!(*member.server, url(&servers[2]));
    let guard = client.lock("r").fenced().acquire().await.expect("two of three are a majority");
    let report = &client.inspect("r").await[2].answer;
    let Answer::Unanswered(NodeState::Failed(why)) = report else { panic!("{report:?}") };
    assert_eq!(why.kind, FaultKind::NoModule);
    assert!(why.text.contains("load the module"), "{why:?}");
    guard.release().await.expect("the lock is held");
    assert!(client.wait_until_free("r", Wait::No).await.expect("two members answer"));
    servers[1].kill9();
    let why = client.lock("r").wait(Wait::No).acquire().await.expect_err("one of three is no majority");
    assert!(why.to_string().contains("load the module"), "{why}");
}

#[each_server]
async fn a_key_that_holds_data_is_an_error_that_names_its_type(kind: &ServerKind) {
    for count in [1, 3] {
        let (servers, client) = quorum(kind, count).await;
        let on_all = |command: &str| servers.iter().for_each(|server| drop(server.connect().ok(command)));
        for (command, a_type) in [("RPUSH r 1", "a list"), ("SET r 1", "a string"), ("ZADD r 1 a", "a zset")]
        {
            // A client that has just found the lock taken begins its next acquisition in the queue. It must
            // report the type of the key there, too.
            on_all("DLOCK.ACQUIRE r other 600000");
            let taken = client.lock("r").wait(Wait::For(Duration::from_millis(1))).await;
            assert!(matches!(taken, Err(AcquireError::Taken { .. })), "{taken:?}");
            on_all("DEL r");
            on_all(command);
            for wait in [Wait::No, Wait::Forever] {
                let why = client.lock("r").ttl(LONG).wait(wait).await.expect_err("the key holds data");
                assert!(matches!(why, AcquireError::Misuse { .. }), "{why:?}");
                assert!(why.to_string().contains(&format!("WRONGTYPE: the key holds {a_type}")), "{why}");
            }
            on_all("DEL r");
        }
    }
}
