//! Small files in the server's folder: read whole, replaced whole, and never through a symbolic link, which
//! another user of the machine could have planted.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::libc::{ELOOP, O_NOFOLLOW, O_NONBLOCK};
use rand::TryRng;

use crate::ffi::Ctx;

/// Returns the path of a file of this server: in its folder, named after its port, because servers may share
/// a folder. The port comes from INFO, which works where CONFIG is renamed.
pub fn path_of_this_server(ctx: Ctx<'_>, ending: &str) -> PathBuf {
    let port = ctx.info_number("server", "tcp_port").unwrap_or(0);
    // Absolute, for threads: CONFIG SET dir changes the working folder.
    std::env::current_dir().unwrap_or_default().join(format!("dlock-{port}.{ending}"))
}

/// Returns the first `most` + 1 bytes of a file. `None` means that there is no file.
pub fn read(path: &Path, most: usize) -> Result<Option<Vec<u8>>, String> {
    // O_NONBLOCK: opening a pipe would wait for its writer.
    let opened = OpenOptions::new().read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path);
    let file = match opened {
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(None),
        Err(why) if why.raw_os_error() == Some(ELOOP) => return Err("it is a link, not a file".into()),
        Err(why) => return Err(why.to_string()),
        Ok(file) => file,
    };
    if !file.metadata().map_err(|why| why.to_string())?.is_file() {
        return Err("it is no file".into());
    }
    let mut bytes = Vec::new();
    file.take(most as u64 + 1).read_to_end(&mut bytes).map_err(|why| why.to_string())?;
    Ok(Some(bytes))
}

/// The new content of a file, in a temporary file beside it. Removed on drop, unless it has replaced the
/// file.
pub struct TemporaryFile {
    path: PathBuf,
    file: File,
}

impl TemporaryFile {
    /// Creates a temporary file that only this user can read. Never writes to a file or link that exists.
    pub fn create_beside(file: &Path) -> io::Result<TemporaryFile> {
        let path = with_ending(file, ".tmp");
        match TemporaryFile::create(path.clone()) {
            Err(why) if why.kind() == ErrorKind::AlreadyExists => {}
            done => return done,
        }
        // Most likely left by a crash.
        let _ = fs::remove_file(&path);
        match TemporaryFile::create(path) {
            Err(why) if why.kind() == ErrorKind::AlreadyExists => {}
            done => return done,
        }
        let random = rand::rngs::SysRng.try_next_u64().map_err(io::Error::other)?;
        TemporaryFile::create(with_ending(file, &format!(".{random:016x}.tmp")))
    }

    fn create(path: PathBuf) -> io::Result<TemporaryFile> {
        // O_EXCL: fails if a file or a link exists under this name.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(TemporaryFile { path, file })
    }

    /// Writes the text, and waits until it is on the disk.
    pub fn write(&mut self, text: &str) -> io::Result<()> {
        self.file.write_all(text.as_bytes())?;
        self.file.sync_data()
    }

    /// Replaces `file`. The change is on the disk after [`sync_folder`].
    pub fn replace(mut self, file: &Path) -> io::Result<()> {
        fs::rename(&self.path, file)?;
        // Another file may have this name by now: nothing to remove on drop.
        self.path.clear();
        Ok(())
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn with_ending(file: &Path, ending: &str) -> PathBuf {
    let mut path = file.as_os_str().to_owned();
    path.push(ending);
    path.into()
}

/// Waits until the folder of this file is on the disk, with the names in it.
pub fn sync_folder(file: &Path) -> io::Result<()> {
    File::open(file.parent().unwrap_or(Path::new(".")))?.sync_all()
}
