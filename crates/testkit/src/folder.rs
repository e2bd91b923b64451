//! Temporary folders.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process, thread};

/// A new folder. A drop removes the folder, or leaves it for inspection if the test fails.
pub struct Folder(PathBuf);

impl Folder {
    pub fn fresh() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("dlock-test-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = env::temp_dir().join(name);
        // An earlier process may have had this id and left its folder after a failure.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !thread::panicking() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}
