//! The proof on the disk: looked for at the start, made by a thread, taken back at once.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use dlock_core::proof::{self, FileId, Proof};

use super::aof::Aof;
use super::files::{self, Unfinished};

/// Whether the file proves that all was kept in this append only file, or why not. `mark` is the fence mark
/// as the run before has left it.
pub fn look(file: &Path, aof: &Aof, mark: &Path) -> Result<(), String> {
    let text = |why: io::Error| why.to_string();
    let bytes = files::read(file, proof::MAX_LEN)?.ok_or("there is none")?;
    let found = fs::metadata(file).map_err(text)?;
    let proof = proof(files::id(&found).map_err(text)?, aof).map_err(text)?;
    proof.is_in(&bytes)?;
    if !is_fresh(&found) {
        return Err("it is a copy, or was changed".into());
    }
    let alive = files::changed(&fs::metadata(mark).map_err(|why| format!("{}: {why}", mark.display()))?);
    if !proof::is_of_that_life(aof.changed().map_err(text)?, alive) {
        return Err("the append only file was changed after the server ended".into());
    }
    Ok(())
}

fn is_fresh(found: &fs::Metadata) -> bool {
    files::id(found).is_ok_and(|id| id.is_untouched(files::changed(found)))
}

fn proof(own: FileId, aof: &Aof) -> io::Result<Proof> {
    Ok(Proof { own, folder: aof.id()?, name: aof.name.clone() })
}

/// Whether there is anything that the next start could take for a proof.
pub fn may_be_there(file: &Path) -> bool {
    fs::symlink_metadata(file).map_or_else(|why| why.kind() != ErrorKind::NotFound, |found| found.is_file())
}

/// A proof to be, with all that it speaks of on the disk. It counts from when it has its name.
pub fn make(file: &Path, aof: &Aof) -> io::Result<Unfinished> {
    aof.sync()?;
    let mut unfinished = Unfinished::beside(file)?;
    let proof = proof(unfinished.id()?, aof)?;
    unfinished.write(&proof.write())?;
    Ok(unfinished)
}

/// Gives it its name. Not waited for: whether a proof is there after a power cut is all the same.
pub fn establish(unfinished: Unfinished, file: &Path) -> io::Result<()> {
    unfinished.becomes(file)?;
    let found = fs::metadata(file)?;
    if is_fresh(&found) { Ok(()) } else { Err(io::Error::other("the disk was too slow")) }
}

/// There is none any more, whatever happens next.
pub fn withdraw(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        // As it was left by the try before, maybe.
        Err(why) if why.kind() == ErrorKind::NotFound => {}
        removed => removed?,
    }
    files::sync_folder(file)
}
