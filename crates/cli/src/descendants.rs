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
    alive: bool,
}

impl Process {
    /// `None` if it is not a process, or no longer one.
    fn of(name: &str) -> Option<Process> {
        let pid = Pid::from_raw(name.parse().ok()?);
        let stat = fs::read(format!("/proc/{name}/stat")).ok()?;
        let Stat { parent, alive, .. } = Stat::parse(&stat)?;
        Some(Process { pid, parent, alive })
    }
}

/// What `/proc/PID/stat` says.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    parent: Pid,
    /// Not a zombie. A process whose first thread has ended before the others is shown as one.
    alive: bool,
    started: u64,
}

impl Stat {
    /// `pid (name) state ppid …`: the name may contain anything, the last parenthesis ends it.
    fn parse(stat: &[u8]) -> Option<Stat> {
        let end = stat.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(&stat[end + 1..]).ok()?;
        let words: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |at: usize| words.get(at)?.parse::<u64>().ok();
        let (state, threads) = (*words.first()?, number(17)?);
        let parent = Pid::from_raw(number(1)?.try_into().ok()?);
        Some(Stat { parent, alive: !matches!(state, "Z" | "X") || threads > 1, started: number(19)? })
    }
}

/// When this process was started, in ticks of the kernel: no other one with its number was started then.
/// `None` if it has ended.
pub fn start_of(pid: Pid) -> Option<u64> {
    let stat = Stat::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)?;
    stat.alive.then_some(stat.started)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &[u8], threads: u8) -> Option<(i32, bool, u64)> {
        let rest = format!(" 5 7 7 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 {threads} 0 917 0");
        let Stat { parent, alive, started } = Stat::parse(&[text, rest.as_bytes()].concat())?;
        Some((parent.as_raw(), alive, started))
    }

    #[test]
    fn a_name_may_contain_anything() {
        assert_eq!(parse(b"7 (sleep) S", 1), Some((5, true, 917)));
        assert_eq!(parse(b"7 (a) Z 9 (b) S", 1), Some((5, true, 917)));
        assert_eq!(parse(b"7 (\xff\n) Z", 1), Some((5, false, 917)));
        assert_eq!(parse(b"7 (sleep", 1), None);
        assert_eq!(Stat::parse(b"7 (sleep) S"), None);
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_is_alive() {
        assert_eq!(parse(b"7 (sleep) Z", 2), Some((5, true, 917)));
    }
}
