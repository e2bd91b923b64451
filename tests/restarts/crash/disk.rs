//! A server's disk: it can be full, and it can lose what was never synced.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use dlock_testkit::{Folder, ServerKind, preloaded};

pub struct Disk(Folder);

impl Disk {
    /// The same server on a disk with any amount of room.
    pub fn of(kind: &ServerKind) -> (ServerKind, Disk) {
        let disk = Disk(Folder::fresh());
        fs::write(disk.0.path().join("synced"), "").expect("a file");
        disk.leave_room_for(-1);
        (preloaded(kind, "tests/restarts/crash/disk.c", &[("DISK", disk.0.path())]), disk)
    }

    /// From now on so many bytes can be written; below zero, any number.
    pub fn leave_room_for(&self, bytes: i64) {
        // In place: the server has this file mapped.
        let path = self.0.path().join("room");
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        std::io::Write::write_all(&mut file.expect("a file"), &bytes.to_ne_bytes()).expect("8 bytes");
    }

    /// What a power cut does to the files in `dir` of a server that is dead: each keeps what was synced of
    /// it. Names survive. Answers how many bytes were lost.
    pub fn lose_power(&self, dir: &Path) -> u64 {
        let synced = fs::read_to_string(self.0.path().join("synced")).expect("the shim's log");
        // Of each file, by inode and birth, the last size.
        let mut sizes = HashMap::new();
        for line in synced.lines() {
            let (file, size) = line.rsplit_once(' ').expect("a file and its size");
            sizes.insert(file.to_string(), size.parse().expect("a number"));
        }
        cut(dir, &sizes)
    }
}

fn cut(dir: &Path, sizes: &HashMap<String, u64>) -> u64 {
    let entries =
        fs::read_dir(dir).expect("the server's folder").map(|entry| entry.expect("an entry").path());
    // Not the server's doing: its configuration, its output, what a sanitizer tells.
    let others = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name == "server.conf" || name == "log" || name.starts_with("sanitizer")
    };
    let mut lost = 0;
    for path in entries.filter(|path| !others(path)) {
        if path.is_dir() {
            lost += cut(&path, sizes);
            continue;
        }
        // A child of the server may still tidy up.
        let Ok(found) = path.metadata() else { continue };
        let birth = found.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        let file = format!("{} {}", found.ino(), birth.map_or(0, |birth| birth.as_nanos()));
        let kept = sizes.get(&file).copied().unwrap_or(0).min(found.len());
        lost += found.len() - kept;
        OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_len(kept))
            .expect("it can be cut");
    }
    lost
}
