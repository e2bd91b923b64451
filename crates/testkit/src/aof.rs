//! Reads the commands in a server's append only file.

use std::fs;
use std::path::{Path, PathBuf};

use crate::value::Value;
use crate::wire::{parse, parse_line};

/// Returns all commands of the append only file in `dir`, including SELECT, in the order in which a server
/// replays them. Leaves out a base file in RDB format, and a last command that a kill has cut off.
pub fn commands(dir: &Path) -> Vec<Vec<Vec<u8>>> {
    let folder = dir.join("appendonlydir");
    let manifest = folder.join("appendonly.aof.manifest");
    let manifest =
        fs::read_to_string(&manifest).unwrap_or_else(|error| panic!("{}: {error}", manifest.display()));
    let mut found = Vec::new();
    for line in manifest.lines() {
        // For example `file appendonly.aof.1.incr.aof seq 1 type i`.
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, file, _, _, _, kind, ..] = words[..] else { panic!("not a line of a manifest: {line:?}") };
        // h means history: a newer base replaces the file, and the server deletes it later.
        if kind != "h" {
            let path = folder.join(file);
            let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            found.extend(parse_commands(&bytes));
        }
    }
    found
}

/// Returns the path of the newest incremental file in `dir`, to which the server appends.
pub fn incremental(dir: &Path) -> PathBuf {
    let files = fs::read_dir(dir.join("appendonlydir")).expect("the folder can be read");
    let files = files.map(|file| file.expect("the folder can be read").path());
    let last = files.filter(|path| path.to_string_lossy().ends_with(".incr.aof")).max();
    last.expect("an incremental file")
}

fn parse_commands(bytes: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    let mut rest = bytes;
    if rest.starts_with(b"REDIS") || rest.starts_with(b"VALKEY") {
        return found;
    }
    while !rest.is_empty() {
        if rest.starts_with(b"#") {
            // An annotation, like #TS:1700000000.
            let Some((_, length)) = parse_line(rest) else { break };
            rest = &rest[length..];
            continue;
        }
        let Some((command, length)) = parse(rest) else { break };
        found.push(arguments(&command));
        rest = &rest[length..];
    }
    found
}

/// Returns a command's arguments as bytes.
pub(crate) fn arguments(command: &Value) -> Vec<Vec<u8>> {
    command.items().iter().map(|argument| argument.bytes().to_vec()).collect()
}
