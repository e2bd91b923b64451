//! Elections: campaigns, terms, and observers.

use super::*;
use dlock_client::Leader;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn candidate(client: &Client, label: &str) -> Leader {
    Leader::new(client, "r").options(|lock| lock.ttl(LONG).label(label))
}

#[each_server]
async fn the_candidates_lead_one_after_the_other_and_are_observed(kind: &ServerKind) {
    for count in [1, 3] {
        let (servers, ann, bob) = two_clients(kind, count).await;
        let (first, second) = (candidate(&ann, "ann"), candidate(&bob, "bob"));
        let mut leaders = second.observe();
        assert_eq!(leaders.next().await.expect("an answer"), None);
        let term = first.campaign().await.expect("nobody leads");
        let seen = leaders.next().await.expect("an answer").expect("a leader");
        assert_eq!(seen.label, "ann");

        let campaign = tokio::spawn(async move { second.campaign().await });
        until_waiting(&servers, 1);
        term.release().await.expect("the leader resigns");
        let term = campaign.await.expect("no panic").expect("nobody leads");
        let seen = first.observe().next().await.expect("an answer").expect("a leader");
        assert_eq!(seen.label, "bob");
        term.release().await.expect("the leader resigns");
        until_nothing_is_left(&servers, "r");
        assert_eq!(first.current().await.expect("an answer"), None);
    }
}

#[each_server]
async fn a_lost_term_ends_the_work_and_another_campaign_begins(kind: &ServerKind) {
    for count in [1, 3] {
        let (servers, client) = quorum(kind, count).await;
        let terms = Arc::<AtomicUsize>::default();
        let (leader, counted) = (candidate(&client, "ann"), terms.clone());
        let leads = tokio::spawn(async move {
            let work = |term: Guard| {
                let number = counted.fetch_add(1, Ordering::Relaxed);
                async move {
                    assert!(term.fence().is_some() || count > 1);
                    match number {
                        0 => std::future::pending().await,
                        later => later,
                    }
                }
            };
            leader.lead(work).await
        });
        until("the work of the first term runs", || terms.load(Ordering::Relaxed) == 1);
        client.break_holds("r").await;
        assert_eq!(leads.await.expect("no panic").expect("nobody else leads"), 1);
        until_nothing_is_left(&servers, "r");
    }
}

/// The client makes no retries, so each attempt of the campaign fails at once while the server is down.
#[each_server]
async fn a_campaign_outlasts_an_outage(kind: &ServerKind) {
    let mut servers = masters(kind, 1);
    let no_retry = Retry::new(0, Duration::ZERO);
    let client = builder(&servers).retry(no_retry).build().await.expect("a client");
    servers[0].kill9();
    assert!(client.lock("r").acquire().await.is_err());
    let leader = candidate(&client, "ann");
    assert!(leader.current().await.is_err());
    let campaign = tokio::spawn(async move { leader.campaign().await });
    // The campaign is polled, and does not end.
    tokio::task::yield_now().await;
    assert!(client.lock("r").acquire().await.is_err());
    assert!(!campaign.is_finished());
    servers[0].restart();
    let term = campaign.await.expect("no panic").expect("the server is back");
    term.release().await.expect("the leader resigns");
}

#[each_server]
async fn a_campaign_ends_with_its_wait_and_is_for_one_leader(kind: &ServerKind) {
    let (servers, client) = quorum(kind, 1).await;
    hold_as("other", &servers);
    for wait in [Wait::No, Wait::For(Duration::from_millis(100))] {
        let leader = candidate(&client, "ann").options(|lock| lock.wait(wait));
        let why = leader.campaign().await.expect_err("another process leads");
        assert!(matches!(why, AcquireError::Taken { holder: Some(_), .. }), "{why}");
    }
    for shared in [Acquire::shared as fn(Acquire) -> Acquire, |lock| lock.permits(2)] {
        let why = candidate(&client, "ann").options(shared).campaign().await.expect_err("several could lead");
        assert!(matches!(why, AcquireError::Option(_)), "{why}");
    }
}
