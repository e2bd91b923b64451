//! Replays the corpus of the fuzz targets. `make fuzz` continues from it.

#[path = "../../../fuzz/src/lib.rs"]
mod bodies;

use std::path::PathBuf;

/// Replays the files of one target in the order of their names. Fails unless `body` accepts at least five of
/// them, and refuses at least one.
fn replay(target: &str, body: impl Fn(&[u8]) -> bool) {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../fuzz/corpus", target].iter().collect();
    let entries = std::fs::read_dir(&folder).expect("the corpus exists");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    let step = if cfg!(miri) { 10 } else { 1 };
    let accepted = files.iter().step_by(step).filter(|file| {
        // If `body` panics, this is the last file that the test prints.
        println!("{}", file.display());
        body(&std::fs::read(file).expect("a file"))
    });
    let accepted = accepted.count();
    println!("{target}: {} files, {accepted} accepted", files.len());
    assert!(cfg!(miri) || (accepted >= 5 && accepted < files.len()));
}

#[test]
fn arguments_of_the_corpus_cause_no_panic() {
    replay("arguments", bodies::arguments);
}

#[test]
fn stored_bytes_of_the_corpus_cause_no_panic() {
    replay("stored", bodies::stored);
}

/// An effect is a change of a lock, as the server logs it to its append only file and
/// sends it to replicas.
#[test]
fn effects_of_the_corpus_cause_no_panic() {
    replay("effects", bodies::effects);
}

#[test]
fn messages_of_the_corpus_cause_no_panic() {
    replay("messages", bodies::messages);
}
