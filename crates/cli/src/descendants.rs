//! Every process that the program has started, in whatever process group or session.
//!
//! A process group would be easier to signal, but does not cover everything and has a cost: processes that a
//! script starts with `timeout` or `setsid` leave the group, and a group of its own takes the program out of
//! its pipeline and off the keys of the terminal. So the program stays in our group, and dlock is the reaper
//! of everything below it (`PR_SET_CHILD_SUBREAPER`): orphans become its children, and nothing escapes.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;

use nix::sys::prctl;
use nix::unistd::Pid;

/// The descendants of this process.
pub struct Descendants {
    /// Those from before the program: a process that became dlock by `exec` may have had children.
    inherited: HashSet<Pid>,
}

impl Descendants {
    /// From now on no descendant can escape. Call it before the program is started.
    pub fn keep() -> io::Result<Descendants> {
        prctl::set_child_subreaper(true)?;
        let nobody = Descendants { inherited: HashSet::new() };
        Ok(Descendants { inherited: nobody.alive()?.into_iter().collect() })
    }

    /// The live ones. Those started meanwhile are seen the next time.
    pub fn alive(&self) -> io::Result<Vec<Pid>> {
        let mut children: HashMap<Pid, Vec<Process>> = HashMap::new();
        for process in processes()? {
            children.entry(process.parent).or_default().push(process);
        }
        let mut found = Vec::new();
        let mut parents = vec![Pid::this()];
        while let Some(parent) = parents.pop() {
            for child in children.remove(&parent).unwrap_or_default() {
                if self.inherited.contains(&child.pid) {
                    continue;
                }
                parents.push(child.pid);
                if child.alive {
                    found.push(child.pid);
                }
            }
        }
        Ok(found)
    }

    /// Our children that are dead and not yet reaped.
    pub fn dead_children(&self) -> io::Result<Vec<Pid>> {
        let dead = processes()?.filter(|process| process.parent == Pid::this() && !process.alive);
        Ok(dead.map(|process| process.pid).collect())
    }
}

/// All processes of the machine.
fn processes() -> io::Result<impl Iterator<Item = Process>> {
    let entries = fs::read_dir("/proc")?.flatten();
    Ok(entries.filter_map(|entry| Process::of(entry.file_name().to_str()?)))
}

struct Process {
    pid: Pid,
    parent: Pid,
    /// Not a zombie.
    alive: bool,
}

impl Process {
    /// `None` if it is not a process, or no longer one.
    fn of(name: &str) -> Option<Process> {
        let pid = Pid::from_raw(name.parse().ok()?);
        let stat = fs::read(format!("/proc/{name}/stat")).ok()?;
        let (parent, alive) = parse(&stat)?;
        Some(Process { pid, parent, alive })
    }
}

/// `pid (name) state ppid …`: the name may contain anything, the last parenthesis ends it.
fn parse(stat: &[u8]) -> Option<(Pid, bool)> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&stat[end + 1..]).ok()?;
    let mut words = rest.split_ascii_whitespace();
    let state = words.next()?;
    let parent = words.next()?.parse().ok()?;
    Some((Pid::from_raw(parent), !matches!(state, "Z" | "X")))
}

/// When this process was started, in ticks of the kernel: no other one with its number was started then.
/// `None` if it has ended.
pub fn start_of(pid: Pid) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let (_, alive) = parse(&stat)?;
    let rest = stat.rsplit(|byte| *byte == b')').next()?;
    let started = std::str::from_utf8(rest).ok()?.split_ascii_whitespace().nth(19)?.parse().ok()?;
    alive.then_some(started)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_contain_anything() {
        assert_eq!(parse(b"7 (sleep) S 5 7 7 0"), Some((Pid::from_raw(5), true)));
        assert_eq!(parse(b"7 (a) Z 9 (b) S 5 7 7 0"), Some((Pid::from_raw(5), true)));
        assert_eq!(parse(b"7 (\xff\n) Z 5 7 7 0"), Some((Pid::from_raw(5), false)));
        assert_eq!(parse(b"7 (sleep"), None);
        assert_eq!(parse(b"7 (sleep) S"), None);
    }
}
