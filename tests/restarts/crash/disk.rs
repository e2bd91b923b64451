//! A simulated disk that can be full and can lose unsynced data.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use dlock_testkit::{Folder, ServerKind, preloaded};

pub struct Disk(Folder);

impl Disk {
    /// Returns the server with `disk.c` preloaded, and its disk, which has no limit yet.
    pub fn of(kind: &ServerKind) -> (ServerKind, Disk) {
        let disk = Disk(Folder::fresh());
        fs::write(disk.0.path().join("synced"), "").expect("the file `synced` can be created");
        disk.leave_room_for(-1);
        (preloaded(kind, "tests/restarts/crash/disk.c", &[("DISK", disk.0.path())]), disk)
    }

    /// Limits further writes to `bytes`; below zero there is no limit.
    pub fn leave_room_for(&self, bytes: i64) {
        // Written in place, because the server maps this file into memory.
        let path = self.0.path().join("room");
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let mut file = file.expect("the file `room` can be opened");
        std::io::Write::write_all(&mut file, &bytes.to_ne_bytes()).expect("the limit can be written");
    }

    /// Truncates each file of a dead server in `dir` to its last synced size. Deletes no file. Returns the
    /// number of lost bytes.
    pub fn lose_power(&self, dir: &Path) -> u64 {
        let synced = fs::read_to_string(self.0.path().join("synced")).expect("disk.c has logged the syncs");
        // Last synced size of each file, by inode and creation time.
        let mut sizes = HashMap::new();
        for line in synced.lines() {
            let (file, size) = line.rsplit_once(' ').expect("a file and its size");
            sizes.insert(file.to_string(), size.parse().expect("a number"));
        }
        truncate_to_synced(dir, &sizes)
    }
}

fn truncate_to_synced(dir: &Path, sizes: &HashMap<String, u64>) -> u64 {
    let entries =
        fs::read_dir(dir).expect("the server's folder").map(|entry| entry.expect("an entry").path());
    // These files are not on the simulated disk: the configuration, which the test wrote, the server's
    // output, and sanitizer reports.
    let is_excluded = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name == "server.conf" || name == "log" || name.starts_with("sanitizer")
    };
    let mut lost = 0;
    for path in entries.filter(|path| !is_excluded(path)) {
        if path.is_dir() {
            lost += truncate_to_synced(&path, sizes);
            continue;
        }
        // A child of the server may still remove its temporary file.
        let Ok(found) = path.metadata() else { continue };
        let birth = found.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        let file = format!("{} {}", found.ino(), birth.map_or(0, |birth| birth.as_nanos()));
        let kept = sizes.get(&file).copied().unwrap_or(0).min(found.len());
        lost += found.len() - kept;
        let file = OpenOptions::new().write(true).open(&path);
        file.and_then(|file| file.set_len(kept)).expect("the file can be truncated");
    }
    lost
}
