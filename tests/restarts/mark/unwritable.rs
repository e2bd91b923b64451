//! Real folders that cannot be written.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{number, status, stored, told, until_status};
use dlock_testkit::{Folder, Server, ServerKind, each_server};

/// A file system mounted on a folder; unmounted when dropped.
struct Mount(Folder);

impl Mount {
    /// `None` if this machine does not allow mounts.
    fn new(options: &str) -> Option<Mount> {
        let folder = Folder::fresh();
        let mounted = mount(&["-t", "tmpfs", "-o", options, "dlock"], folder.path());
        if !mounted {
            eprintln!("!! skipped: nothing can be mounted here (as root it can)");
        }
        mounted.then(|| Mount(folder))
    }

    fn again(&self, options: &str) {
        assert!(mount(&["-o", &format!("remount,{options}")], self.0.path()), "{options}");
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

fn mount(arguments: &[&str], on: &Path) -> bool {
    let output = Command::new("mount").args(arguments).arg(on).output();
    output.is_ok_and(|output| output.status.success())
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.path()).status();
    }
}

#[each_server]
fn the_mark_recovers_from_a_read_only_folder(kind: &ServerKind) {
    let Some(mount) = Mount::new("size=1m") else { return };
    mount.again("ro");
    let server = Server::options(kind).conf(&format!("dir {}", mount.path().display())).start();
    let file = mount.path().join(format!("dlock-{}.fence", server.port()));
    assert_eq!(status(&server), "failing");
    assert_eq!(told(&server, "cannot be written: Read-only file system"), 1);
    assert!(server.connect().ok("DLOCK.ACQUIRE k t 600000").int() > 0);
    mount.again("rw");
    until_status(&server, "ok");
    let fence = server.connect().ok("DLOCK.ACQUIRE other t 600000").int();
    assert!(stored(&file) > fence);
    mount.again("ro");
    until_status(&server, "failing");
    assert_eq!(told(&server, "cannot be written"), 2);
    assert_eq!(number(&server, "dlock_fences_beyond_mark"), 0);
}

#[each_server]
fn the_mark_recovers_from_a_full_disk(kind: &ServerKind) {
    let Some(mount) = Mount::new("size=64k") else { return };
    let filling = mount.path().join("filling");
    let fill = || fs::write(&filling, [0; 1 << 20]).expect_err("the disk is full");
    let server = Server::options(kind).conf(&format!("dir {}", mount.path().display())).start();
    let file = mount.path().join(format!("dlock-{}.fence", server.port()));
    let before = stored(&file);
    fill();
    until_status(&server, "failing");
    assert_eq!(told(&server, "cannot be written: No space left on device"), 1);
    assert_eq!(stored(&file), before, "the mark of before stays");
    let fence = server.connect().ok("DLOCK.ACQUIRE k t 600000").int();
    assert!(fence > 0);
    fs::remove_file(&filling).expect("it can be removed");
    until_status(&server, "ok");
    assert!(stored(&file) > fence);
}

#[each_server]
fn the_mark_recovers_from_a_removed_folder(kind: &ServerKind) {
    let folder = Folder::fresh();
    let dir = folder.path().join("below");
    fs::create_dir(&dir).expect("a folder");
    let server = Server::options(kind).conf(&format!("dir {}", dir.display())).start();
    fs::remove_dir_all(&dir).expect("it can be removed");
    until_status(&server, "failing");
    assert_eq!(told(&server, "cannot be written: No such file or directory"), 1);
    assert!(server.connect().ok("DLOCK.ACQUIRE k t 600000").int() > 0);
    fs::create_dir(&dir).expect("it comes again");
    until_status(&server, "ok");
}
