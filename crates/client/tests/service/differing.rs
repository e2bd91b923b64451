//! Clients that name other members than others do.

use dlock_client::{Client, ClientBuilder, OtherMembers};
use std::sync::{Arc, Mutex};

use super::{LONG, builder, each_kind, masters, url};
use dlock_testkit::{Conn, Server, Value, until};

/// A client, and what it was told of others.
struct Told {
    client: Client,
    others: Arc<Mutex<Vec<OtherMembers>>>,
}

impl Told {
    async fn by(builder: ClientBuilder) -> Told {
        let others = Arc::<Mutex<Vec<OtherMembers>>>::default();
        let told = others.clone();
        let hook = move |other: &OtherMembers| told.lock().expect("no panic").push(other.clone());
        Told { client: builder.on_other_members(hook).build().await.expect("a client"), others }
    }

    async fn of(servers: &[&Server]) -> Told {
        let builder = builder(&[]).servers(servers.iter().map(|server| url(server)));
        Told::by(builder).await
    }

    /// The sizes of its own list and of the other, once for each time that it was told.
    fn sizes(&self) -> Vec<(usize, usize)> {
        self.others.lock().expect("no panic").iter().map(|other| (other.here, other.there)).collect()
    }

    async fn locks(&self, resource: &str) {
        let guard = self.client.lock(resource).ttl(LONG).await.expect("it is free");
        guard.release().await.expect("it is held");
    }
}

/// The lists that are told to a member: how many servers of each are known, and how many clients name it.
fn named(server: &Server) -> Vec<(usize, i64)> {
    let mut conn = server.connect();
    let clients = |conn: &mut Conn, name: &str| conn.ok(&format!("PUBSUB NUMSUB {name}")).items()[1].int();
    let names = conn.ok("PUBSUB CHANNELS dlock:members:*");
    let names: Vec<String> = names.items().iter().map(Value::text).collect();
    let mut named: Vec<_> =
        names.iter().map(|name| (name.matches(',').count() + 1, clients(&mut conn, name))).collect();
    named.sort();
    named
}

#[test]
fn clients_with_a_server_in_common_learn_that_their_lists_differ() {
    each_kind(async |kind| {
        let servers = masters(kind, 5);
        let of = |which: &[usize]| which.iter().map(|at| &servers[*at]).collect::<Vec<_>>();
        let first = Told::of(&of(&[0, 1, 2])).await;
        first.locks("a").await;
        until("it has told them", || servers[..3].iter().all(|server| named(server) == [(3, 1)]));

        let others = Told::of(&of(&[2, 3, 4])).await;
        // One that locks nothing may look at any server.
        let seen = others.client.other_members().await;
        let [OtherMembers { here: 3, there: 3, server, .. }] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!(**server, url(&servers[2]));
        assert_eq!((first.sizes(), others.sizes()), (vec![], vec![]));
        others.locks("b").await;
        until("both learn of it", || first.sizes() == [(3, 3)] && others.sizes() == [(3, 3)]);

        let single = Told::of(&of(&[0])).await;
        single.locks("c").await;
        until("both learn of it", || first.sizes() == [(3, 3), (3, 1)] && single.sizes() == [(1, 3)]);
        let said = single.others.lock().expect("no panic")[0].to_string();
        let expected = format!(
            "another client of {} names 3 servers, this one 1: two clients could hold the same lock at the \
             same time; give all clients the same server list",
            url(&servers[0])
        );
        assert_eq!(said, expected);
        assert!(
            first.others.lock().expect("no panic")[0].to_string().contains("3 servers, as this one does")
        );

        // Locks in another database have nothing to do with these.
        let elsewhere = Told::by(builder(&[]).server(format!("{}/1", url(&servers[0])))).await;
        elsewhere.locks("c").await;
        until("it has told them", || named(&servers[0]).len() == 3);
        assert_eq!((elsewhere.client.other_members().await, elsewhere.sizes()), (vec![], vec![]));

        // Each once.
        let again = Told::of(&of(&[0])).await;
        again.locks("d").await;
        until("it learns of it", || again.sizes() == [(1, 3)]);
        assert_eq!(first.sizes().len(), 2);
    });
}

#[test]
fn one_list_in_other_words_with_members_that_are_down_or_new_is_the_same() {
    each_kind(async |kind| {
        let mut servers = masters(kind, 3);
        let all = async |servers: &[Server]| Told::of(&servers.iter().collect::<Vec<_>>()).await;
        let first = all(&servers).await;
        first.locks("a").await;
        let hosts = servers.iter().rev().map(|server| format!("redis://localhost:{}", server.port()));
        let second = Told::by(builder(&[]).servers(hosts)).await;
        second.locks("a").await;
        until("both know all three", || named(&servers[0]) == [(3, 2)]);
        // It comes back as another server, to one client earlier than to the other.
        servers[2].restart();
        until("both know that it is gone", || named(&servers[0]) == [(2, 2)]);
        let third = all(&servers).await;
        third.locks("b").await;
        until("the third knows it, and not the others", || named(&servers[0]) == [(2, 2), (3, 1)]);
        first.locks("b").await;
        second.locks("b").await;
        until("all know it", || named(&servers[2]) == [(3, 3)]);
        servers[2].kill9();
        until("all know that it is gone", || named(&servers[0]) == [(2, 3)]);
        for client in [first, second, third] {
            assert_eq!(client.sizes(), []);
        }
    });
}

#[test]
fn whoever_subscribes_to_more_than_can_be_read_keeps_nobody_from_a_lock() {
    each_kind(async |kind| {
        let servers = masters(kind, 1);
        let mut subscriber = servers[0].connect();
        subscriber.send(&["SUBSCRIBE", &format!("dlock:members:0:{}", "x".repeat(9 << 20))]);
        subscriber.read();
        let client = Told::of(&[&servers[0]]).await;
        client.locks("a").await;
        assert_eq!(client.client.other_members().await, []);
        client.locks("a").await;
        until("it has told which it names", || {
            !servers[0].connect().ok("PUBSUB CHANNELS dlock:members:0:1:*").items().is_empty()
        });
        client.locks("a").await;
    });
}

/// Neither the connection nor whoever tells the members may end with it.
#[test]
fn a_callback_that_panics_keeps_nobody_from_being_told() {
    each_kind(async |kind| {
        let servers = masters(kind, 2);
        let first = Told::of(&[&servers[0]]).await;
        first.locks("a").await;
        until("it has told which it names", || named(&servers[0]) == [(1, 1)]);
        let panics = builder(&servers).on_other_members(|other| panic!("{other}")).build().await;
        let panics = panics.expect("a client");
        panics.lock("b").await.expect("it is free").release().await.expect("it is held");
        until("the first learns of it", || first.sizes() == [(1, 2)]);
    });
}

/// Its channel would go on to name the members of then.
#[test]
fn a_connection_that_was_replaced_is_closed() {
    each_kind(async |kind| {
        let servers = masters(kind, 1);
        let told = Told::by(Client::builder().server(url(&servers[0]))).await;
        told.locks("a").await;
        until("it has told which it names", || named(&servers[0]) == [(1, 1)]);
        let subscribed = || {
            let clients = servers[0].connect().ok("CLIENT LIST").text();
            clients.lines().filter(|line| !line.contains(" sub=0 ")).count()
        };
        let answers = async || told.client.inspect("a").await[0].answer.found().is_some();
        for _ in 0..3 {
            servers[0].pause();
            // What was silent more than once is replaced.
            for _ in 0..3 {
                assert!(!answers().await);
            }
            servers[0].resume();
            while !answers().await {}
        }
        until("the others are closed", || subscribed() == 1);
        until("it tells it over the new one", || named(&servers[0]) == [(1, 1)]);
    });
}
