//! Which processors the bench and its servers run on.

use std::io::Result;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Where this thread runs, and what it starts from now on.
#[derive(Clone, Copy)]
pub enum Side {
    First,
    Others,
}

/// The processors this thread may use.
pub struct Processors(Vec<usize>);

impl Processors {
    pub fn mine() -> Result<Processors> {
        let set = sched_getaffinity(Pid::from_raw(0))?;
        Ok(Processors((0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect()))
    }

    /// Moves this thread. Where there is only one processor, nothing moves.
    pub fn go(&self, side: Side) -> Result<()> {
        match (side, self.0.as_slice()) {
            (Side::First, [first, _, ..]) => set(&[*first]),
            (Side::Others, [_, others @ ..]) if !others.is_empty() => set(others),
            _ => Ok(()),
        }
    }

    /// Back to all of them.
    pub fn leave(&self) -> Result<()> {
        set(&self.0)
    }
}

fn set(cpus: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(*cpu)?;
    }
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}
