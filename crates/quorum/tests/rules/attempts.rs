//! Whole attempts: what follows a failed round, and when an attempt ends.

use super::helpers::*;
use dlock_quorum::*;
use proptest::prelude::*;
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(100);

fn options(deadline: Deadline) -> AttemptOptions {
    AttemptOptions { plan: plan(3, false), first_pause: PAUSE, deadline, one_round: false, adopts: false }
}

/// The queue order that follows the members' indices.
fn order(members: u8) -> QueueOrder {
    QueueOrder::new((0..members).map(|member| Place {
        member: Member(member),
        is_missing: false,
        run_id: Some(member.to_string().into()),
        address: "redis://any".into(),
    }))
}

/// An attempt, and the client's record of the contention.
struct Client {
    attempt: Attempt,
    contention: Contention,
    order: QueueOrder,
}

impl Client {
    fn new(options: AttemptOptions, contention: Contention) -> Client {
        let order = order(3);
        let attempt = Attempt::new(options, 7, &contention, &order, at(0));
        Client { attempt, contention, order }
    }

    /// Runs a round in which members 0, 1, .. answer ACQUIRE with `votes`. Returns the next step.
    fn round(&mut self, now: u64, votes: &[Vote]) -> Next {
        let begun = self.attempt.begin_round(at(now));
        assert_eq!(sent(&begun.sends, Request::Acquire).len(), 3);
        let mut next = begun.next;
        for (member, vote) in (0..).zip(votes) {
            next = self.attempt.answered(Member(member), Request::Acquire, vote.clone(), at(now + 10)).next;
        }
        next
    }

    /// Runs a round that waits in the queue of one member until the wait ends with `ended`.
    fn queued_round(&mut self, now: u64, ended: Vote<()>) -> Next {
        let begun = self.attempt.begin_round(at(now));
        assert_eq!(sent(&begun.sends, Request::Wait).len(), 1, "{begun:?}");
        self.attempt.waited(begun.sends[0].to, ended, at(now + 10)).next
    }

    fn review(&mut self, holders: Option<&Holders>, now: u64) -> Step {
        self.attempt.review(&mut self.contention, &self.order, holders, at(now))
    }
}

const REVIEW: Next = Next::Review { needs_holders: false };

fn free() -> Holders {
    holders(3, &[])
}

fn held() -> Holders {
    holders(3, &[Holder { token: "other".into(), age: Duration::ZERO }])
}

/// The same holders at each member.
fn holders(members: usize, holders: &[Holder]) -> Holders {
    Holders { by_member: vec![Some(holders.to_vec()); members], closed: 0 }
}

#[test]
fn an_attempt_without_a_wait_fails_if_another_client_holds_the_lock() {
    let mut client = Client::new(options(Deadline::NoWait), Contention::default());
    assert_eq!(client.round(0, &[taken(), taken()]), Next::Review { needs_holders: true });
    assert_eq!(client.review(Some(&held()), 20).next, Next::Failed(FailureReason::Taken));
}

/// The first member has granted, and its release is under way.
#[test]
fn an_attempt_without_a_wait_fails_at_once_if_a_delay_keeps_a_majority_closed() {
    let mut client = Client::new(options(Deadline::NoWait), Contention::default());
    assert_eq!(client.round(0, &[granted(1), taken(), taken()]), Next::Review { needs_holders: true });
    let closed = Holders { closed: 2, ..free() };
    assert_eq!(client.review(Some(&closed), 20).next, Next::Failed(FailureReason::Taken));
}

#[test]
fn a_split_vote_is_repeated_in_queue_order_up_to_twenty_times() {
    let mut client = Client::new(options(Deadline::NoWait), Contention::default());
    client.round(0, &[taken(), taken()]);
    let mut now = 10;
    for _ in 0..20 {
        let split = client.review(Some(&free()), now);
        if split.next == Next::Wait {
            let end = client.attempt.timeout().expect("the attempt pauses");
            assert!(end <= at(now + 10), "the pause is at most as long as the round");
            assert_eq!(client.attempt.timed_out(end).next, Next::BeginRound);
        }
        let begun = client.attempt.begin_round(at(now));
        // In queue order, the other members are asked only after the first one's grant.
        assert_eq!(sent(&begun.sends, Request::Acquire), [0], "the first member is asked alone");
        let ended = client.attempt.answered(Member(0), Request::Acquire, taken(), at(now + 10));
        now += 10;
        assert!(matches!(ended.next, Next::Review { .. }));
    }
    assert_eq!(client.review(Some(&free()), now).next, Next::Failed(FailureReason::Taken));
}

#[test]
fn a_refused_attempt_joins_the_queue_and_the_next_attempt_begins_there() {
    let mut client = Client::new(options(Deadline::Never), Contention::default());
    assert_eq!(client.round(0, &[taken(), taken()]), REVIEW);
    assert_eq!(client.review(None, 20).next, Next::BeginRound);
    // The lock counts as contended for 1 s after the review at 20.
    assert!(client.contention.is_contended(at(1_019)) && !client.contention.is_contended(at(1_020)));
    assert_eq!(client.queued_round(20, Vote::Refused(Refusal::Taken)), REVIEW);

    let mut second = Client::new(options(Deadline::Never), client.contention);
    assert_eq!(second.queued_round(30, Vote::Refused(Refusal::Taken)), REVIEW);
}

#[test]
fn an_attempt_queues_at_the_first_member_that_answered() {
    let mut client = Client::new(options(Deadline::Never), Contention::default());
    assert_eq!(client.round(0, &[down(), taken(), taken()]), REVIEW);
    client.review(None, 20);
    assert_eq!(sent(&client.attempt.begin_round(at(20)).sends, Request::Wait), [1]);
}

/// A queue is stuck if no holder at its member can have a majority. A client that leaves a stuck queue tells
/// the attempt that the wait has ended with `Refusal::Taken`.
#[test]
fn an_attempt_moves_all_waits_of_its_client_from_a_stuck_queue_to_the_next() {
    let mut client = Client::new(options(Deadline::Never), Contention::default());
    client.round(0, &[taken(), taken()]);
    client.review(None, 20);
    client.queued_round(20, Vote::Refused(Refusal::Taken));
    let moved = client.review(None, 40);
    assert_eq!((moved.moves_to, moved.next), (Some(Member(1)), Next::BeginRound));
    assert_eq!(sent(&client.attempt.begin_round(at(40)).sends, Request::Wait), [1]);
}

#[test]
fn an_attempt_follows_other_attempts_of_its_client_to_their_queue() {
    let mut client = Client::new(options(Deadline::Never), Contention::default());
    client.round(0, &[taken(), taken()]);
    client.review(None, 20);
    let begun = client.attempt.begin_round(at(20));
    client.contention.move_to(Member(2), &client.order, at(25));
    client.attempt.waited(begun.sends[0].to, Vote::Refused(Refusal::Taken), at(30));
    assert_eq!(client.review(None, 30).next, Next::BeginRound);
    assert_eq!(sent(&client.attempt.begin_round(at(30)).sends, Request::Wait), [2]);
}

#[test]
fn an_attempt_returns_to_the_first_queue_when_the_last_is_stuck_too() {
    // The first attempt finds the lock taken, so the second one joins a queue at once. `move_to` makes the
    // queue of member 2 the start queue, in which the client's waits begin.
    let mut client = Client::new(options(Deadline::Never), Contention::default());
    client.round(0, &[taken(), taken()]);
    client.review(None, 20);
    let mut contention = client.contention;
    contention.move_to(Member(2), &client.order, at(1_000));
    let mut client = Client::new(options(Deadline::Never), contention);
    let begun = client.attempt.begin_round(at(1_000));
    assert_eq!(sent(&begun.sends, Request::Wait), [2]);
    assert_eq!(client.attempt.stay(), Stay::UntilHoldersAreStale);
    // The client leaves the last queue: the queue is stuck, and all holds at its member are older than 2 s.
    // The next wait begins in the first queue.
    client.attempt.waited(Member(2), Vote::Refused(Refusal::Taken), at(2_500));
    assert_eq!(client.review(None, 2_500).next, Next::BeginRound);
    assert_eq!(sent(&client.attempt.begin_round(at(2_500)).sends, Request::Wait), [0]);
}

#[test]
fn a_wait_without_a_timeout_fails_if_no_majority_ever_answered() {
    let mut client = Client::new(options(Deadline::Never), Contention::default());
    client.round(0, &[down(), down()]);
    let failed = client.review(None, 20);
    assert_eq!((failed.next, failed.reports_outage), (Next::Failed(FailureReason::Impossible), false));
}

/// The servers load their data, or run a script. The addresses are right, so the wait goes on.
#[test]
fn a_wait_without_a_timeout_outlasts_errors_that_pass() {
    let not_now = || Vote::Failed(Failure::NotNow("LOADING".into()));
    let mut client = Client::new(options(Deadline::Never), Contention::default());
    for now in [0, 10_000, 20_000] {
        assert_eq!(client.round(now, &[not_now(), not_now()]), REVIEW);
        assert_eq!(client.review(None, now + 20).next, Next::Wait);
        let end = client.attempt.timeout().expect("the attempt pauses");
        assert_eq!(client.attempt.timed_out(end).next, Next::BeginRound);
    }
}

#[test]
fn an_attempt_reports_an_outage_once_and_retries() {
    for deadline in [Deadline::At(at(2_030)), Deadline::Never] {
        let mut client = Client::new(options(deadline), Contention::default());
        if deadline == Deadline::Never {
            // Without a timeout, the attempt waits for the end of an outage only if a majority could vote in
            // an earlier round.
            client.round(0, &[taken(), taken()]);
            client.review(None, 20);
            client.queued_round(20, Vote::Refused(Refusal::Grace(TTL)));
            for member in 1..3 {
                client.attempt.waited(Member(member), Vote::Refused(Refusal::Grace(TTL)), at(30));
            }
            assert!(!client.review(None, 30).reports_outage, "a grace period is no outage");
            let end = client.attempt.timeout().expect("the attempt pauses");
            assert_eq!(client.attempt.timed_out(end).next, Next::BeginRound);
        }
        for (now, reports) in [(1_000, true), (2_000, false)] {
            assert_eq!(client.round(now, &[down(), down()]), REVIEW);
            let step = client.review(None, now + 20);
            assert_eq!((step.next, step.reports_outage), (Next::Wait, reports));
            let end = client.attempt.timeout().expect("the attempt pauses");
            assert!(deadline.instant().is_none_or(|wait| end <= wait), "the pause ends by the deadline");
            assert_eq!(client.attempt.timed_out(end).next, Next::BeginRound);
        }
    }
}

#[test]
fn an_attempt_ends_at_its_deadline() {
    let mut client = Client::new(options(Deadline::At(at(1_000))), Contention::default());
    client.round(0, &[taken(), taken()]);
    client.review(None, 20);
    assert_eq!(client.queued_round(20, Vote::Refused(Refusal::Taken)), REVIEW);
    assert_eq!(client.review(None, 1_000).next, Next::BeginRound);
    assert_eq!(client.round(1_000, &[taken(), taken()]), REVIEW);
    assert_eq!(client.review(None, 1_010).next, Next::Failed(FailureReason::Taken));
}

/// A refusal by the member of the queue does not show that the lock is taken: the other members may be down.
#[test]
fn a_wait_that_ends_in_a_queue_asks_all_members_before_the_lock_counts_as_taken() {
    for (votes, reason) in [
        ([taken(), taken(), taken()], FailureReason::Taken),
        ([taken(), down(), down()], FailureReason::Impossible),
        ([taken(), Vote::Unknown, Vote::Refused(Refusal::Grace(TTL))], FailureReason::Impossible),
    ] {
        let mut client = Client::new(options(Deadline::At(at(1_000))), Contention::default());
        client.round(0, &[taken(), taken()]);
        client.review(None, 20);
        client.queued_round(20, Vote::Refused(Refusal::Taken));
        assert_eq!(client.review(None, 1_000).next, Next::BeginRound);
        let begun = client.attempt.begin_round(at(1_000));
        assert_eq!(sent(&begun.sends, Request::Acquire), [0, 1, 2]);
        let mut next = begun.next;
        for (member, vote) in (0..).zip(votes) {
            if next == Next::Wait {
                next = client.attempt.answered(Member(member), Request::Acquire, vote, at(1_010)).next;
            }
        }
        assert_eq!(next, REVIEW);
        assert_eq!(client.review(None, 1_010).next, Next::Failed(reason));
    }
}

#[test]
fn a_wait_that_ends_in_a_queue_asks_all_members_if_the_members_of_earlier_queues_did_not_answer() {
    let mut client = Client::new(options(Deadline::At(at(1_000))), Contention::default());
    client.round(0, &[taken(), taken()]);
    client.review(None, 20);
    // Member 0 does not answer, so the client waits at member 1.
    assert_eq!(client.queued_round(20, Vote::Unknown), Next::Wait);
    let refused = client.attempt.waited(Member(1), Vote::Refused(Refusal::Taken), at(40));
    assert_eq!(refused.next, REVIEW);
    assert_eq!(client.review(None, 1_000).next, Next::BeginRound, "one vote is no majority of three");
}

/// With `one_round`, only the first round has the token of the caller. Here the first round waits in a queue.
/// Then a last round with another token asks all members whether they can vote. It must not acquire the lock.
#[test]
fn an_attempt_with_the_token_of_the_caller_does_not_acquire_in_its_last_round() {
    let options = AttemptOptions { one_round: true, ..options(Deadline::Never) };
    let mut client = Client::new(options, Contention::default());
    assert_eq!(client.queued_round(0, Vote::Refused(Refusal::Taken)), REVIEW);
    assert_eq!(client.attempt.stay(), Stay::Always);
    assert_eq!(client.review(None, 20).next, Next::BeginRound, "a last round asks all members");
    let last = client.round(20, &[granted(1), granted(1)]);
    assert_eq!(last, Next::Failed(FailureReason::Taken), "the token of the last round is not the caller's");
}

#[test]
fn a_full_queue_or_a_deadlock_or_an_invalid_request_ends_an_attempt() {
    let invalid = Failure::Misuse("ttl".into());
    for (ended, reason) in [
        (Vote::Refused(Refusal::QueueFull), FailureReason::Taken),
        (Vote::Refused(Refusal::Deadlock("a".into())), FailureReason::Deadlock),
    ] {
        let mut client = Client::new(options(Deadline::Never), Contention::default());
        client.round(0, &[taken(), taken()]);
        client.review(None, 20);
        assert_eq!(client.queued_round(20, ended), REVIEW);
        assert_eq!(client.review(None, 30).next, Next::Failed(reason));
    }
    let mut client = Client::new(options(Deadline::Never), Contention::default());
    client.round(0, &[Vote::Failed(invalid.clone()), Vote::Failed(invalid)]);
    assert_eq!(client.review(None, 30).next, Next::Failed(FailureReason::Misuse));
}

#[test]
fn a_retry_is_sent_at_the_end_of_the_pause() {
    // The pause begins at 10, lasts PAUSE / 2 to PAUSE, and ends at the deadline at the latest.
    for (deadline, first, last) in [(Deadline::NoWait, 60, 110), (Deadline::At(at(30)), 30, 30)] {
        let retried = AttemptOptions { plan: Plan { retries: 1, ..plan(3, false) }, ..options(deadline) };
        let mut client = Client::new(retried, Contention::default());
        assert_eq!(client.round(0, &[granted(1), down(), down()]), Next::Wait);
        let end = client.attempt.timeout().expect("the attempt pauses");
        assert!((at(first)..=at(last)).contains(&end), "{end:?}");
        assert!(client.attempt.timed_out(at(11)).sends.is_empty(), "the pause has not ended");
        assert_eq!(sent(&client.attempt.timed_out(end).sends, Request::Acquire), [1, 2]);
        let step = client.attempt.answered(Member(1), Request::Acquire, granted(1), at(200));
        let Next::Acquired(acquired) = step.next else { panic!("{step:?}") };
        assert_eq!(acquired.valid_until, at(VALIDITY), "validity counts from the first send");
    }
}

/// A client that has acquired the lock chooses the queue for its next waits. If the member of a later queue
/// refused this client, other clients may have moved to that queue.
#[test]
fn a_refusal_by_the_member_of_a_later_queue_makes_the_holder_look_for_other_clients_there() {
    let mut client = Client::new(options(Deadline::Never), Contention::default());
    let next = client.round(0, &[granted(1), granted(1)]);
    assert!(matches!(next, Next::Acquired(_)));
    assert_eq!(client.attempt.next_queue(), NextQueue::First);
    assert!(client.attempt.must_look_for_others(Member(2), &taken()));
    assert!(!client.attempt.must_look_for_others(Member(2), &granted(1)));
    assert!(!client.attempt.must_look_for_others(Member(0), &taken()), "queue 0 is not a later queue");

    let mut client = Client::new(options(Deadline::Never), Contention::default());
    client.attempt.begin_round(at(0));
    for (member, vote) in [(2, taken()), (1, granted(1)), (0, granted(1))] {
        client.attempt.answered(Member(member), Request::Acquire, vote, at(5));
    }
    assert_eq!(client.attempt.next_queue(), NextQueue::LookForOthersAt(Member(2)));
}

/// The client's next waits begin in the second queue, in which it acquired the lock. The other clients of
/// that queue may have moved to the third, so the client looks for them there.
#[test]
fn a_client_that_acquired_the_lock_in_a_later_queue_looks_for_others_at_a_still_later_one() {
    let mut client = Client::new(options(Deadline::Never), Contention::default());
    client.contention.move_to(Member(1), &client.order, at(0));
    let options = AttemptOptions { one_round: true, ..options(Deadline::Never) };
    client.attempt = Attempt::new(options, 7, &client.contention, &client.order, at(0));
    client.attempt.begin_round(at(0));
    client.attempt.waited(Member(1), Vote::Granted(()), at(1));
    for member in [0, 1] {
        client.attempt.answered(Member(member), Request::Acquire, granted(1), at(2));
    }
    assert_eq!(client.attempt.next_queue(), NextQueue::MoveTo(Member(1)));
    assert!(client.attempt.must_look_for_others(Member(2), &taken()));
}

/// An event of a random run.
#[derive(Debug, Clone)]
struct Event {
    /// Selects the request that is answered.
    request: prop::sample::Index,
    vote: Vote,
    /// Time since the previous event, in ms.
    elapsed: u64,
    /// Whether a review finds no holder.
    is_free: bool,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let vote = prop_oneof![
        6 => (1..6_u64).prop_map(granted),
        6 => Just(taken()),
        1 => Just(down()),
        1 => Just(Vote::Unknown),
        1 => Just(Vote::Refused(Refusal::NotHeld)),
        1 => Just(Vote::Refused(Refusal::FenceAhead)),
        1 => Just(Vote::Refused(Refusal::Grace(Duration::from_millis(50)))),
        1 => Just(Vote::Refused(Refusal::QueueFull)),
    ];
    let event = (any::<prop::sample::Index>(), vote, 0..500_u64, any::<bool>());
    let event = event.prop_map(|(request, vote, elapsed, is_free)| Event { request, vote, elapsed, is_free });
    prop::collection::vec(event, 0..200)
}

fn deadlines() -> impl Strategy<Value = Deadline> {
    prop_oneof![
        Just(Deadline::NoWait),
        (0..20_000_u64).prop_map(|ms| Deadline::At(at(ms))),
        Just(Deadline::Never)
    ]
}

proptest! {
    #![proptest_config(config(2_000))]

    /// An open attempt always waits for an answer or for the end of a pause. An attempt acquires only with
    /// grants of one round, and validity counts from a send of that round.
    #[test]
    fn an_attempt_never_hangs_and_acquires_only_by_a_majority_of_one_round(
        members in 1..6_u8, fenced: bool, retries in 0..3_u8, deadline in deadlines(), one_round: bool,
        contended: bool, seed: u64, events in events(),
    ) {
        let plan = Plan { retries, ..plan(members, fenced) };
        let options = AttemptOptions { plan, first_pause: PAUSE, deadline, one_round, adopts: false };
        let (order, mut contention, mut now) = (order(members), Contention::default(), 0);
        if contended {
            contention.move_to(Member(members - 1), &order, at(0));
        }
        let mut attempt = Attempt::new(options, seed, &contention, &order, at(0));
        let (mut step, mut begun) = (attempt.begin_round(at(0)), 0);
        let mut open: Vec<Outgoing> = Vec::new();
        let mut grants: Vec<Member> = Vec::new();
        let mut sends: Vec<u64> = Vec::new();
        let (mut rounds, mut events) = (1, events.into_iter());
        loop {
            let gets_an_answer = |send: &&Outgoing| !matches!(send.what, Request::Release | Request::Leave);
            sends.extend(step.sends.iter().filter(gets_an_answer).map(|_| now));
            open.extend(step.sends.iter().filter(gets_an_answer));
            step = match step.next {
                Next::Wait => {
                    let Some(event) = events.next() else { break };
                    let timeout = attempt.timeout();
                    prop_assert!(!open.is_empty() || timeout.is_some(), "the attempt waits for nothing");
                    now += event.elapsed;
                    if let Some(end) = timeout.filter(|end| open.is_empty() || *end <= at(now)) {
                        while at(now) < end {
                            now += 1;
                        }
                        attempt.timed_out(at(now))
                    } else {
                        let send = open.swap_remove(event.request.index(open.len()));
                        if send.what == Request::Wait {
                            attempt.waited(send.to, event.vote.map(|_| ()), at(now))
                        } else {
                            if send.what == Request::Acquire && matches!(event.vote, Vote::Granted(_)) {
                                grants.push(send.to);
                            }
                            attempt.answered(send.to, send.what, event.vote, at(now))
                        }
                    }
                }
                Next::BeginRound => {
                    open.clear();
                    grants.clear();
                    sends.clear();
                    (begun, rounds) = (now, rounds + 1);
                    attempt.begin_round(at(now))
                }
                Next::Review { needs_holders } => {
                    open.clear();
                    let free = events.next().is_none_or(|event| event.is_free);
                    let holders = if free { holders(members.into(), &[]) } else { held() };
                    attempt.review(&mut contention, &order, needs_holders.then_some(&holders), at(now))
                }
                Next::Acquired(acquired) => {
                    prop_assert!(!one_round || rounds == 1, "only the first round has the caller's token");
                    grants.sort();
                    grants.dedup();
                    prop_assert!(grants.len() >= plan.quorum.majority());
                    prop_assert!(at(now) < acquired.valid_until);
                    prop_assert!(sends.iter().any(|sent| plan.lease.valid_until(at(*sent)) == acquired.valid_until));
                    prop_assert!(acquired.valid_until >= plan.lease.valid_until(at(begun)));
                    break;
                }
                Next::Failed(_) => break,
            };
        }
        if deadline == Deadline::NoWait {
            // The first round, and 20 more after split votes.
            prop_assert!(rounds <= 21, "{rounds} rounds");
        }
    }
}
