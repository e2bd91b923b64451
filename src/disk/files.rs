//! Small files in the server's folder: read whole, written whole, and never through a link that somebody
//! planted there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::libc::{ELOOP, O_NOFOLLOW, O_NONBLOCK};
use rand::TryRng;

use crate::ffi::Ctx;

/// Where a file of this server is: in its folder, by its port, for several may share a folder. INFO has the
/// port, or else that for TLS, also where CONFIG is renamed.
pub fn of_this_server(ctx: Ctx<'_>, ending: &str) -> PathBuf {
    let port = ctx.info_number("server", "tcp_port").unwrap_or(0);
    // By its whole path, for threads: the server changes its working folder when it is told another one.
    std::env::current_dir().unwrap_or_default().join(format!("dlock-{port}.{ending}"))
}

/// The first bytes of a file, no more than one beyond `most`; None where there is none.
pub fn read(path: &Path, most: usize) -> Result<Option<Vec<u8>>, String> {
    // To open a pipe is to wait for who writes it, but for this flag.
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

/// A file that is being written beside the one it will be, and goes when it is dropped before.
pub struct Unfinished {
    path: PathBuf,
    file: File,
}

impl Unfinished {
    /// For the server alone, and new: whatever has its name, a planted link above all, is not written to.
    pub fn beside(file: &Path) -> io::Result<Unfinished> {
        let path = with_ending(file, ".tmp");
        match Unfinished::create(path.clone()) {
            Err(why) if why.kind() == ErrorKind::AlreadyExists => {}
            done => return done,
        }
        // Most likely what a crash has left.
        let _ = fs::remove_file(&path);
        match Unfinished::create(path) {
            Err(why) if why.kind() == ErrorKind::AlreadyExists => {}
            done => return done,
        }
        let random = rand::rngs::SysRng.try_next_u64().map_err(io::Error::other)?;
        Unfinished::create(with_ending(file, &format!(".{random:016x}.tmp")))
    }

    fn create(path: PathBuf) -> io::Result<Unfinished> {
        // O_EXCL: neither a file that is there nor a link is opened.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Unfinished { path, file })
    }

    /// The text, on the disk.
    pub fn write(&mut self, text: &str) -> io::Result<()> {
        self.file.write_all(text.as_bytes())?;
        self.file.sync_data()
    }

    /// Takes the place of that file. On the disk when its folder is.
    pub fn becomes(mut self, file: &Path) -> io::Result<()> {
        fs::rename(&self.path, file)?;
        // Its name may be somebody else's by now.
        self.path.clear();
        Ok(())
    }
}

impl Drop for Unfinished {
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

/// What is done to the names in the folder of this file is on the disk afterwards.
pub fn sync_folder(file: &Path) -> io::Result<()> {
    File::open(file.parent().unwrap_or(Path::new(".")))?.sync_all()
}
