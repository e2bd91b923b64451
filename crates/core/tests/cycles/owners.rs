//! Owners that hold and wait with several tokens.

use dlock_core::{Mode, Token};

use super::{World, tokens};

impl World {
    /// Makes each request (owner, key, token). All but the last may wait; returns the cycle that the last one
    /// closes.
    fn closes(&mut self, wants: &[(&str, &str, &str)]) -> Option<Vec<Token>> {
        let (last, first) = wants.split_last().unwrap();
        for (owner, key, token) in first {
            assert_eq!(
                self.want_for(Some(owner), key, token, Mode::Exclusive),
                None,
                "{owner} {key} {token}"
            );
        }
        self.want_for(Some(last.0), last.1, last.2, Mode::Exclusive)
    }
}

#[test]
fn the_tokens_of_an_owner_are_one_party() {
    let wants = [("o", "x", "1"), ("p", "y", "2"), ("o", "y", "3"), ("p", "x", "4")];
    assert_eq!(World::default().closes(&wants), tokens("p o p"));
    let mut world = World::default();
    for (_, key, token) in &wants {
        assert_eq!(world.want(key, token, Mode::Exclusive), None, "without owners there is no cycle");
    }
}

#[test]
fn an_owner_that_waits_for_its_own_hold_is_a_deadlock() {
    assert_eq!(World::default().closes(&[("o", "x", "1"), ("o", "x", "2")]), tokens("o o"));
    assert_eq!(World::default().closes(&[("o", "x", "1"), ("o", "x", "1")]), None, "the same token has it");
    let mut world = World::default();
    let want = |world: &mut World, token| world.want_for(Some("o"), "x", token, Mode::Shared);
    assert_eq!((want(&mut world, "1"), want(&mut world, "2")), (None, None), "they share");
    assert_eq!(world.want("x", "writer", Mode::Exclusive), None);
    assert_eq!(want(&mut world, "3"), tokens("o writer o"), "the writer waits for the first two");
}

#[test]
fn owners_are_compared_whole() {
    let wants = [("o", "x", "1"), ("o/p", "x", "2")];
    assert_eq!(World::default().closes(&wants), None, "a slash means nothing");
    let wants = [("o", "x", "1"), ("p", "y", "2"), ("o/1", "y", "3"), ("p", "x", "4")];
    assert_eq!(World::default().closes(&wants), None);
}

/// After a restart, holds have no owner.
#[test]
fn an_acquire_by_the_holder_sets_its_owner() {
    let mut world = World::default();
    let mut want = |owner, token| world.want_for(owner, "x", token, Mode::Exclusive);
    assert_eq!(want(None, "1"), None);
    assert_eq!(want(Some("o"), "1"), None, "it holds it already");
    assert_eq!(want(None, "1"), None, "no owner changes nothing");
    assert_eq!(want(Some("o"), "2"), tokens("o o"));
    assert_eq!(want(Some("p"), "1"), None);
    assert_eq!(want(Some("p"), "3"), tokens("p p"));
    assert_eq!(want(Some("o"), "4"), None, "the hold has another owner by now");
}
