//! Finds every process that the program of a run has started, in any process group or session.
//!
//! dlock does not start the program in a new process group, although one signal would reach the whole group.
//! Ctrl-C and Ctrl-Z reach only the foreground group, which is that of the pipeline (`dlock run r -- a | b`).
//! And processes that a script starts with `timeout` or `setsid` would leave the new group. So the program
//! stays in dlock's group, and dlock is the subreaper of its descendants (`PR_SET_CHILD_SUBREAPER`): orphans
//! become children of dlock, so that dlock finds all of them.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;

use nix::sys::prctl;
use nix::unistd::Pid;

/// The descendants of this process, without the inherited children and their descendants.
pub struct Descendants {
    /// The children that this process had before it started the program. A shell that becomes dlock by `exec`
    /// may have some.
    inherited: HashSet<Pid>,
}

impl Descendants {
    /// Makes this process the subreaper of its descendants. Call it before the program is started.
    pub fn track() -> io::Result<Descendants> {
        prctl::set_child_subreaper(true)?;
        let all = Descendants { inherited: HashSet::new() };
        Ok(Descendants { inherited: all.alive()?.into_iter().collect() })
    }

    /// Returns the live descendants. One that is started during the call may be missing.
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

    /// Returns the children that have ended and are not reaped yet.
    pub fn dead_children(&self) -> io::Result<Vec<Pid>> {
        let dead = processes()?.filter(|process| process.parent == Pid::this() && !process.alive);
        Ok(dead.map(|process| process.pid).collect())
    }
}

/// Returns all processes of the machine.
fn processes() -> io::Result<impl Iterator<Item = Process>> {
    let entries = fs::read_dir("/proc")?.flatten();
    Ok(entries.filter_map(|entry| Process::read(entry.file_name().to_str()?)))
}

struct Process {
    pid: Pid,
    parent: Pid,
    alive: bool,
}

impl Process {
    /// Reads `/proc/NAME/stat`. `None` if `name` is not the id of a process.
    fn read(name: &str) -> Option<Process> {
        let pid = Pid::from_raw(name.parse().ok()?);
        let stat = fs::read(format!("/proc/{name}/stat")).ok()?;
        let Stat { parent, alive, .. } = Stat::parse(&stat)?;
        Some(Process { pid, parent, alive })
    }
}

/// The fields of `/proc/PID/stat` that are used here.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    parent: Pid,
    /// False for a zombie. A process is in state Z, but alive, if its first thread has ended before the
    /// others.
    alive: bool,
    /// In clock ticks since the machine started.
    started: u64,
}

impl Stat {
    /// Parses `pid (name) state ppid …`. The name ends at the last parenthesis, because a name may contain
    /// any character.
    fn parse(stat: &[u8]) -> Option<Stat> {
        let end = stat.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(&stat[end + 1..]).ok()?;
        let words: Vec<&str> = rest.split_ascii_whitespace().collect();
        // Counted from the state, which is field 3 in proc(5): 1 is ppid, 17 num_threads, 19 starttime.
        let number = |at: usize| words.get(at)?.parse::<u64>().ok();
        let (state, threads) = (*words.first()?, number(17)?);
        let parent = Pid::from_raw(number(1)?.try_into().ok()?);
        Some(Stat { parent, alive: !matches!(state, "Z" | "X") || threads > 1, started: number(19)? })
    }
}

/// The start time of a process in clock ticks, which tells it from a later process with the same pid. `None`
/// if it has ended.
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
    fn stat_is_parsed_when_the_name_contains_parentheses_or_invalid_utf8() {
        assert_eq!(parse(b"7 (sleep) S", 1), Some((5, true, 917)));
        assert_eq!(parse(b"7 (a) Z 9 (b) S", 1), Some((5, true, 917)));
        assert_eq!(parse(b"7 (\xff\n) Z", 1), Some((5, false, 917)));
        assert_eq!(parse(b"7 (sleep", 1), None);
        assert_eq!(Stat::parse(b"7 (sleep) S"), None);
    }

    #[test]
    fn process_is_alive_when_only_its_first_thread_has_ended() {
        assert_eq!(parse(b"7 (sleep) Z", 2), Some((5, true, 917)));
    }
}
