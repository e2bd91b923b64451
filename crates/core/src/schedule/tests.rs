use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
enum Op {
    /// Due so long after the time that has passed.
    Insert(u64),
    Remove(usize),
    Move(usize, u64),
    PopFirst,
    Pass(u64),
    BeginBulk,
    EndBulk,
}

/// As leases are: of a few lengths; and of any.
fn length() -> impl Strategy<Value = u64> {
    prop_oneof![3 => prop::sample::select(vec![10u64, 30, 300]), 1 => 1..500u64]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => length().prop_map(Op::Insert),
        2 => any::<usize>().prop_map(Op::Remove),
        2 => (any::<usize>(), length()).prop_map(|(i, length)| Op::Move(i, length)),
        2 => Just(Op::PopFirst),
        2 => (1..5u64).prop_map(Op::Pass),
        1 => prop_oneof![Just(Op::BeginBulk), Just(Op::EndBulk)],
    ]
}

impl<T> Schedule<T> {
    /// How many stand in rows, which are in order and linked to and fro.
    fn in_rows(&self) -> usize {
        let mut count = 0;
        for row in self.rows.iter().flatten() {
            let (mut before, mut at, mut due) = (END, row.first.slot, row.first.due);
            while let Some(used) = self.entries.get(at) {
                assert!(used.due >= due, "a row is out of order");
                assert_eq!(used.place.before, before, "a row is not linked back");
                (before, at, due) = (at, used.place.after, used.due);
                count += 1;
            }
            assert_eq!((at, before, due), (END, row.last.slot, row.last.due), "a row has no end");
        }
        count
    }
}

/// Enough for several chunks; Miri, a hundred times slower, sees a part of one.
const MOST: usize = if cfg!(miri) { 100 } else { 3000 };

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 5 } else { 256 }, ..ProptestConfig::default() })]
    #[test]
    fn it_is_a_sorted_map(ops in prop::collection::vec(op(), 1..MOST)) {
        let mut schedule = Schedule::default();
        let mut model: BTreeMap<Slot, (u64, usize)> = BTreeMap::new();
        let nth = |model: &BTreeMap<Slot, (u64, usize)>, i: usize| {
            model.keys().nth(i % model.len().max(1)).copied()
        };
        let mut now = 1;
        for (item, op) in ops.into_iter().enumerate() {
            match op {
                Op::Insert(length) => {
                    let due = now + length;
                    let slot = schedule.insert(Deadline::at_millis(due), item).unwrap();
                    prop_assert!(model.insert(slot, (due, item)).is_none(), "slot given twice");
                }
                Op::Remove(i) => if let Some(slot) = nth(&model, i) {
                    prop_assert_eq!(schedule.remove(slot), model.remove(&slot).map(|(_, item)| item));
                    prop_assert_eq!(schedule.remove(slot), None);
                },
                Op::Move(i, length) => if let Some(slot) = nth(&model, i) {
                    schedule.reschedule(slot, Deadline::at_millis(now + length));
                    model.get_mut(&slot).unwrap().0 = now + length;
                },
                Op::BeginBulk => schedule.begin_bulk(),
                Op::EndBulk => schedule.end_bulk(),
                Op::PopFirst => if let Some((_, slot)) = schedule.first() {
                    schedule.remove(slot);
                    model.remove(&slot);
                },
                Op::Pass(time) => now += time,
            }
            prop_assert_eq!(schedule.len(), model.len());
            prop_assert!(schedule.in_rows() <= model.len());
            if schedule.is_bulk {
                continue;
            }
            let least = model.values().map(|(due, _)| *due).min();
            prop_assert_eq!(schedule.first().map(|(due, _)| due.millis()), least);
            if let Some((due, slot)) = schedule.first() {
                prop_assert_eq!(model[&slot].0, due.millis());
                prop_assert_eq!(schedule.get(slot), Some(&model[&slot].1));
            }
        }
        schedule.end_bulk();
        let used = schedule.slots(0).filter_map(|(slot, item)| Some((Slot::at(slot)?, *item?)));
        prop_assert!(used.eq(model.iter().map(|(slot, (_, item))| (*slot, *item))), "slots are missing");
        while let Some((_, slot)) = schedule.first() {
            prop_assert!(schedule.remove(slot).is_some_and(|item| Some(item) == model.remove(&slot).map(|(_, item)| item)));
        }
        prop_assert!(model.is_empty(), "not all come out");
    }
}

#[test]
fn leases_of_a_few_lengths_stand_in_rows_and_what_fits_into_none_in_the_heap() {
    let mut schedule = Schedule::default();
    for now in 0..1000 {
        for length in [30_000, 10_000, 300_000] {
            schedule.insert(Deadline::at_millis(now + length), ()).unwrap();
        }
    }
    assert_eq!(schedule.in_rows(), 3000);
    // Each longer than the next one: each closes a row, until it has to leave it for the next.
    for length in (0..1000).rev() {
        schedule.insert(Deadline::at_millis(400_000 + length), ()).unwrap();
    }
    assert_eq!(schedule.len() - schedule.in_rows(), 1000 - ROWS);
    for now in 1000..2000 {
        for length in [30_000, 10_000] {
            schedule.insert(Deadline::at_millis(now + length), ()).unwrap();
        }
    }
    assert!(schedule.len() - schedule.in_rows() <= 1000, "leases of one length are in the heap");
    let mut last = Deadline::at_millis(0);
    while let Some((due, slot)) = schedule.first() {
        assert!(due >= last);
        last = due;
        assert!(schedule.remove(slot).is_some(), "the first is not in use");
    }
}

#[test]
fn the_entries_of_a_load_are_in_one_row() {
    let mut schedule = Schedule::default();
    schedule.begin_bulk();
    let slots: Vec<Slot> =
        (0..3000).map(|n| schedule.insert(Deadline::at_millis(1 + n * 7919 % 3001), n).unwrap()).collect();
    assert_eq!(schedule.in_rows(), 0);
    slots.iter().step_by(3).for_each(|slot| assert!(schedule.remove(*slot).is_some()));
    schedule.end_bulk();
    assert_eq!((schedule.len(), schedule.in_rows()), (2000, 2000));
    assert_eq!(schedule.rows.iter().flatten().count(), 1);
}

#[test]
fn memory_comes_back_with_what_is_taken_out_whatever_stays() {
    let mut schedule = Schedule::default();
    let fill = |schedule: &mut Schedule<u64>, many: u64| -> BTreeSet<Slot> {
        (0..many).map(|at| schedule.insert(Deadline::at_millis(1 + at), at).unwrap()).collect()
    };
    let mut slots = fill(&mut schedule, 50_000);
    let stays = *slots.iter().nth(20_000).unwrap();
    for round in 0..3 {
        for slot in slots.iter().rev().filter(|slot| **slot != stays) {
            assert!(schedule.remove(*slot).is_some());
        }
        assert_eq!((schedule.len(), schedule.get(stays)), (1, Some(&20_000)), "{round}");
        assert!(schedule.entries.allocated() <= 2 * chunks::CHUNK, "{}", schedule.entries.allocated());
        slots = fill(&mut schedule, 5_000);
        assert_eq!((slots.len(), slots.contains(&stays)), (5_000, false), "a slot is given twice");
        assert!(schedule.entries.allocated() <= 7 * chunks::CHUNK, "{}", schedule.entries.allocated());
    }
    // Gaps are filled before more is allocated.
    let before = schedule.entries.allocated();
    slots.iter().step_by(2).for_each(|slot| assert!(schedule.remove(*slot).is_some()));
    fill(&mut schedule, 2_500);
    assert_eq!(schedule.entries.allocated(), before);
}
