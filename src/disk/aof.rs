//! The append only file as the file system shows it. What is in it only the server knows.

use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use dlock_core::proof::FileId;

use super::files;
use crate::ffi::Ctx;

/// Where it is.
#[derive(Clone, PartialEq, Eq)]
pub struct Aof {
    folder: PathBuf,
    /// Several servers may keep theirs in one folder.
    pub name: String,
}

impl Aof {
    /// By its whole path, for threads: the server changes its working folder when it is told another one.
    pub fn of(ctx: Ctx<'_>) -> Option<Aof> {
        let folder = std::env::current_dir().ok()?.join(ctx.option("appenddirname")?);
        Some(Aof { folder, name: ctx.option("appendfilename")? })
    }

    pub fn id(&self) -> io::Result<FileId> {
        files::id(&fs::metadata(&self.folder)?)
    }

    /// Bytes in all files of it together.
    pub fn size(&self) -> Option<u64> {
        // The list of the files may be written anew, and holds no data.
        let data = |path: &Path| path.extension().is_none_or(|ext| ext != "manifest");
        let files = self.files().ok()?;
        Some(files.iter().filter(|(path, _)| data(path)).map(|(_, file)| file.len()).sum())
    }

    /// When any of its files was changed last, ns since 1970.
    pub fn changed(&self) -> io::Result<u64> {
        Ok(self.files()?.iter().map(|(_, file)| files::changed(file)).max().unwrap_or(0))
    }

    /// All that was written to it is on the disk afterwards. It can take long.
    pub fn sync(&self) -> io::Result<()> {
        for (path, _) in self.files()? {
            match File::open(path) {
                // Replaced by a rewrite meanwhile.
                Err(why) if why.kind() == io::ErrorKind::NotFound => {}
                file => file?.sync_all()?,
            }
        }
        File::open(&self.folder)?.sync_all()
    }

    fn files(&self) -> io::Result<Vec<(PathBuf, Metadata)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            match entry.metadata() {
                Err(why) if why.kind() == io::ErrorKind::NotFound => {}
                found => files.push((entry.path(), found?)),
            }
        }
        Ok(files)
    }
}
