//! Parties that hold and wait with several tokens.

use dlock_core::{Mode, Token};

use super::{World, tokens};

impl World {
    /// Each of these, an owner, a key and a token, may wait; the last one does not.
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
fn two_tokens_of_an_owner_are_one_party() {
    let wants = [("o", "x", "1"), ("p", "y", "2"), ("o", "y", "3"), ("p", "x", "4")];
    assert_eq!(World::default().closes(&wants), tokens("p o p"));
    let mut world = World::default();
    for (_, key, token) in &wants {
        assert_eq!(world.want(key, token, Mode::Exclusive), None, "without owners nothing tells");
    }
}

#[test]
fn an_owner_that_waits_for_what_it_holds_waits_for_ever() {
    assert_eq!(World::default().closes(&[("o", "x", "1"), ("o", "x", "2")]), tokens("o o"));
    assert_eq!(World::default().closes(&[("o", "x", "1"), ("o/p", "x", "2")]), tokens("o/p o/p"));
    assert_eq!(World::default().closes(&[("o", "x", "1"), ("o", "x", "1")]), None, "the same token has it");
    let mut world = World::default();
    let want = |world: &mut World, token| world.want_for(Some("o"), "x", token, Mode::Shared);
    assert_eq!((want(&mut world, "1"), want(&mut world, "2")), (None, None), "they share");
    assert_eq!(world.want("x", "writer", Mode::Exclusive), None);
    assert_eq!(want(&mut world, "3"), tokens("o writer o"), "the writer waits for the first two");
}

/// A job runs its steps side by side. The first version took all that it had started for one owner.
#[test]
fn steps_of_a_job_do_not_wait_for_each_other() {
    let mut world = World::default();
    let wants = [("job", "j", "1"), ("job/a", "x", "2"), ("job/b", "x", "3")];
    assert_eq!(world.closes(&wants), None, "a leaves x whatever becomes of b");
    let wants = [("other", "o", "4"), ("other/b", "y", "5"), ("other/a", "x", "6"), ("job/c", "y", "7")];
    assert_eq!(world.closes(&wants), None, "so does the one that has y");
    assert_eq!(world.closes(&[("job/d", "o", "8"), ("other/c", "j", "9")]), tokens("other/c job other/c"));
}

#[test]
fn what_waits_within_an_owner_keeps_all_around_it_waiting() {
    let wants = [("a", "x", "1"), ("a/b", "y", "2"), ("p", "z", "3"), ("a/b/c", "z", "4"), ("p/q", "x", "5")];
    assert_eq!(World::default().closes(&wants), tokens("p/q a p/q"));
    let outside = [("a", "x", "1"), ("p", "z", "3"), ("ab", "z", "4"), ("p/q", "x", "5")];
    assert_eq!(World::default().closes(&outside), None, "ab is not within a");
}

/// As its owner does after a restart, which knows of no owners.
#[test]
fn whoever_acquires_again_may_say_whose_the_token_is() {
    let mut world = World::default();
    let mut want = |owner, token| world.want_for(owner, "x", token, Mode::Exclusive);
    assert_eq!(want(None, "1"), None);
    assert_eq!(want(Some("o"), "1"), None, "it holds it already");
    assert_eq!(want(None, "1"), None, "who says nothing changes nothing");
    assert_eq!(want(Some("o"), "2"), tokens("o o"));
    assert_eq!(want(Some("p"), "1"), None);
    assert_eq!(want(Some("p"), "3"), tokens("p p"));
    assert_eq!(want(Some("o"), "4"), None, "it is another's by now");
}
