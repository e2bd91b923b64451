//! A 4-ary heap that reports the place of each node that it moves, so that nodes can be removed from any
//! place.

use dlock_protocol::Deadline;

use super::chunks::Chunks;

/// An entry of the schedule: its deadline and its slot.
#[derive(Clone, Copy)]
pub(super) struct Node {
    pub due: Deadline,
    pub slot: u32,
}

#[derive(Clone, Default)]
pub(super) struct Heap(Chunks<Node>);

const ARITY: usize = 4;

/// Functions that move nodes call `moved` with the slot and the new place of each.
impl Heap {
    pub fn first(&self) -> Option<Node> {
        self.0.checked(0).copied()
    }

    /// Appends a node without restoring the heap order.
    pub fn append(&mut self, node: Node, mut moved: impl FnMut(u32, u32)) {
        self.0.push(node);
        moved(node.slot, self.0.len() as u32 - 1);
    }

    pub fn into_nodes(self) -> Vec<Node> {
        self.0.into_vec()
    }

    pub fn push(&mut self, node: Node, mut moved: impl FnMut(u32, u32)) {
        self.append(node, &mut moved);
        self.sift_up(self.0.len() - 1, &mut moved);
    }

    /// Removes the node at this place. The last node takes its place and is sifted.
    pub fn remove(&mut self, place: u32, mut moved: impl FnMut(u32, u32)) {
        let place = place as usize;
        let last = *self.0.get(self.0.len() - 1);
        self.0.pop();
        if place < self.0.len() {
            self.put(place, last, &mut moved);
            self.sift_up(place, &mut moved);
            self.sift_down(place, &mut moved);
        }
    }

    fn sift_up(&mut self, start: usize, moved: &mut impl FnMut(u32, u32)) {
        let node = *self.0.get(start);
        let mut at = start;
        while at > 0 {
            let parent = (at - 1) / ARITY;
            let above = *self.0.get(parent);
            if above.due <= node.due {
                break;
            }
            self.put(at, above, moved);
            at = parent;
        }
        if at != start {
            self.put(at, node, moved);
        }
    }

    fn sift_down(&mut self, start: usize, moved: &mut impl FnMut(u32, u32)) {
        let node = *self.0.get(start);
        let mut at = start;
        loop {
            let children = at * ARITY + 1..(at * ARITY + 1 + ARITY).min(self.0.len());
            let Some(least) = children.min_by_key(|child| self.0.get(*child).due) else { break };
            let below = *self.0.get(least);
            if node.due <= below.due {
                break;
            }
            self.put(at, below, moved);
            at = least;
        }
        if at != start {
            self.put(at, node, moved);
        }
    }

    fn put(&mut self, place: usize, node: Node, moved: &mut impl FnMut(u32, u32)) {
        *self.0.get_mut(place) = node;
        moved(node.slot, place as u32);
    }
}
