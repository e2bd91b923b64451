//! The fence mark: a number in a file of its own. The server keeps the mark above its fences while it can
//! write the file. A server that starts without its other data issues fences above the mark.

mod file;
mod restarts;
mod steps;

use std::fs;
use std::path::PathBuf;

use dlock_testkit::{Server, until};

const DAY: i64 = 24 * dlock_testkit::wall_clock::HOUR;

/// Returns the path of the server's mark file.
fn mark_path(server: &Server) -> PathBuf {
    server.dir().join(format!("dlock-{}.fence", server.port()))
}

/// Returns the mark stored in the file.
#[track_caller]
fn stored_mark(path: &PathBuf) -> i64 {
    let text = fs::read_to_string(path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    let words: Vec<&str> = text.trim_end().split(' ').collect();
    let ["dlock-fence-mark", "1", mark, check] = words[..] else { panic!("{text:?}") };
    let [mark, check] = [mark, check].map(|number| number.parse::<i64>().expect("a number"));
    // The last number is a checksum.
    assert_eq!(mark + check, (1 << 53) - 1, "{text:?}");
    mark
}

fn status(server: &Server) -> String {
    server.info("dlock_fence_mark_status")
}

#[track_caller]
fn until_status(server: &Server, wanted: &str) {
    until(&format!("the status of the mark is {wanted}"), || status(server) == wanted);
}

/// Returns the number of log lines on the mark that contain these words.
fn logged(server: &Server, words: &str) -> usize {
    let log = server.log();
    log.lines().filter(|line| line.contains("dlock.fence-mark: ") && line.contains(words)).count()
}
