//! Holds whose runtime is blocked or gone: every answer about them looks at the clock.

use dlock_client::{Client, Guard, Lost, now};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

use super::{each_kind, masters, url};
use dlock_testkit::{Server, each_server, until};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

async fn client(servers: &[Server]) -> Client {
    Client::builder().servers(servers.iter().map(url)).build().await.expect("a client")
}

/// Blocks the runtime, and with it the renewal, past the lease.
fn block_past(guard: &Guard) {
    until("its validity has ended", || now() > guard.valid_until());
}

#[test]
fn a_hold_that_ended_under_a_blocked_runtime_is_lost_and_not_entered_again() {
    each_server(|kind| {
        for count in [1, 3] {
            let servers = masters(kind, count);
            runtime().block_on(async {
                let client = client(&servers).await;
                let lock = || client.lock("r").ttl(Duration::from_millis(500)).reentrant();
                let guard = lock().acquire().await.expect("it is free");
                let told = guard.cancellation();
                block_past(&guard);
                assert!(matches!(guard.loss(), Some(Lost::NotRenewed(_))), "{:?}", guard.loss());
                assert!(told.is_cancelled() && guard.cancellation().is_cancelled());
                assert_eq!(Some(guard.lost().await), guard.loss());
                let again = lock().acquire().await.expect("nobody has it");
                assert_ne!(again.token(), guard.token(), "a hold of its own");
                again.release().await.expect("it is held");
            });
        }
    });
}

#[test]
fn entering_again_looks_at_the_clock_even_if_nobody_asked() {
    each_server(|kind| {
        let servers = masters(kind, 1);
        runtime().block_on(async {
            let client = client(&servers).await;
            let lock = || client.lock("r").ttl(Duration::from_millis(500)).renew(false).reentrant();
            let guard = lock().acquire().await.expect("it is free");
            block_past(&guard);
            let again = lock().acquire().await.expect("nobody has it");
            assert_ne!(again.token(), guard.token());
            assert_eq!(guard.loss(), Some(Lost::Ended));
            again.release().await.expect("it is held");
        });
    });
}

#[test]
fn a_guard_outlives_its_runtime_without_a_panic() {
    each_kind(async |kind| {
        for count in [1, 3] {
            let servers = masters(kind, count);
            let acquire = || {
                let runtime = runtime();
                let lock = async {
                    client(&servers).await.lock("r").ttl(Duration::from_millis(500)).acquire().await
                };
                runtime.block_on(lock).expect("the one before has ended")
            };
            std::thread::scope(|scope| {
                let guard = scope.spawn(acquire).join().expect("no panic");
                scope.spawn(move || drop(guard)).join().expect("dropped without a panic");
            });
            let guard = std::thread::scope(|scope| scope.spawn(acquire).join().expect("no panic"));
            // Its renewal has ended with its runtime.
            assert!(matches!(guard.lost().await, Lost::NotRenewed(_)));
        }
    });
}
