use super::*;

const WAITER: WaiterId = WaiterId(3);
const FENCE: u64 = 7;

fn fence() -> Fence {
    Fence::from_outside(FENCE).unwrap()
}

fn delivery(client: u64) -> Delivery {
    let name = Name::new(0, b"k").to_owned();
    Delivery { name, token: Token::new(b"t").unwrap(), client: ClientId(client) }
}

fn sent(to: &[(WaiterId, u64, Granted)]) -> Deliveries {
    let mut deliveries = Deliveries::default();
    for (waiter, client, granted) in to {
        let Delivery { name, token, .. } = delivery(*client);
        deliveries.granted(&name, &token, fence(), *granted, *waiter, None);
        deliveries.sent(*waiter, delivery(*client));
    }
    deliveries
}

fn lost(deliveries: &mut Deliveries, waiter: WaiterId) -> Option<Granted> {
    match deliveries.lost(&Name::new(0, b"k"), b"t", fence(), waiter, Delay::NONE)? {
        Lost::Grant(granted) => Some(granted),
        Lost::Unclaimed(_) => panic!("nothing was queued"),
    }
}

#[test]
fn a_reply_without_a_connection_is_reclaimed_once() {
    let mut deliveries = sent(&[(WAITER, 1, Granted::New)]);
    assert!(!deliveries.is_empty());
    assert_eq!(deliveries.gone(ClientId(1)), None, "no connection has it yet");
    assert_eq!(deliveries.reply_reclaimed(WAITER), Some(delivery(1)));
    assert_eq!(deliveries.reply_reclaimed(WAITER), None);
    assert!(deliveries.is_empty());
    assert_eq!((lost(&mut deliveries, WAITER), lost(&mut deliveries, WAITER)), (Some(Granted::New), None));
    assert!(deliveries.unconfirmed.is_empty());
}

#[test]
fn a_connection_that_closes_within_the_turn_has_received_no_reply() {
    let mut deliveries = sent(&[(WAITER, 1, Granted::New)]);
    deliveries.handed_over(WAITER);
    assert_eq!(deliveries.reply_reclaimed(WAITER), None, "it is the connection's");
    assert_eq!(deliveries.gone(ClientId(2)), None);
    assert_eq!(deliveries.gone(ClientId(1)), Some((WAITER, delivery(1))));
    assert_eq!(deliveries.gone(ClientId(1)), None);
    deliveries.next_turn();
    assert_eq!(lost(&mut deliveries, WAITER), Some(Granted::New));
}

#[test]
fn a_reply_is_sent_when_the_next_turn_begins() {
    let mut deliveries = sent(&[(WAITER, 1, Granted::New), (WaiterId(4), 2, Granted::Renewal)]);
    deliveries.handed_over(WAITER);
    deliveries.next_turn();
    assert_eq!(deliveries.gone(ClientId(1)), None);
    assert!(!deliveries.is_empty(), "the other is still on its way");
    assert_eq!(deliveries.reply_reclaimed(WaiterId(4)), Some(delivery(2)));
    assert_eq!(lost(&mut deliveries, WaiterId(4)), None, "the first has been told");
}

#[test]
fn a_grant_is_lost_with_its_last_reply() {
    let mut deliveries = sent(&[(WAITER, 1, Granted::Upgrade), (WaiterId(4), 2, Granted::Renewal)]);
    assert_eq!(lost(&mut deliveries, WAITER), None);
    assert_eq!(lost(&mut deliveries, WaiterId(4)), Some(Granted::Upgrade));
}

#[test]
fn a_command_of_the_token_confirms_its_grant() {
    let mut deliveries = sent(&[(WAITER, 1, Granted::New)]);
    let later = Fence::from_outside(FENCE + 1).unwrap();
    assert_eq!(deliveries.lost(&Name::new(0, b"k"), b"t", later, WAITER, Delay::NONE), None);
    deliveries.claim_grant(&Name::new(0, b"k"), b"t");
    assert_eq!(lost(&mut deliveries, WAITER), None);
}

#[test]
fn every_name_is_found_wherever_its_grant_is() {
    let mut deliveries = sent(&[(WAITER, 1, Granted::New), (WaiterId(4), 2, Granted::Renewal)]);
    deliveries.handed_over(WAITER);
    deliveries.swapped(0, 7);
    assert_eq!(deliveries.reply_reclaimed(WaiterId(4)).unwrap().name.db, 7);
    assert_eq!(deliveries.gone(ClientId(1)).unwrap().1.name.db, 7);
    assert!(deliveries.of(&Name::new(7, b"k")).is_some() && deliveries.of(&Name::new(0, b"k")).is_none());
    drop(deliveries.flushed(Some(7)));
    assert!(deliveries.unconfirmed.is_empty());
}
