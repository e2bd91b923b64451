//! The file of the fence mark: one write, as the thread does it. Touches nothing but the file.

use std::path::Path;

use dlock_core::mark::{self, NoMark};
use dlock_core::marking::{Done, Found, Order};

use super::files::{self, Unfinished};

/// Whatever stands in the file may have been issued, by whomever: the new mark is above it.
pub fn carry_out(order: Order, file: &Path) -> Result<Done, String> {
    let found = match files::read(file, mark::MAX_LEN)? {
        None => Found::Nothing,
        Some(bytes) => match mark::read(&bytes) {
            Ok(there) => order.found(there),
            Err(NoMark::Damaged) => Found::Damaged,
            // Not to be replaced.
            Err(newer) => return Err(newer.to_string()),
        },
    };
    let done = order.done(found);
    write(file, done.mark).map_err(|why| why.to_string())?;
    Ok(done)
}

/// All of it or nothing, and on the disk when it is done, whatever happens meanwhile.
fn write(file: &Path, mark: u64) -> std::io::Result<()> {
    let mut unfinished = Unfinished::beside(file)?;
    unfinished.write(&mark::write(mark))?;
    unfinished.becomes(file)?;
    files::sync_folder(file)
}
