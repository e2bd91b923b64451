//! Finds the addresses of the servers and builds a client for them. No error repeats a part of an address or
//! of the file with the addresses, because both may contain passwords.

use std::env;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use dlock_client::{BuildError, Client, ClientBuilder};

use crate::args::Servers;
use crate::exit::Error;

/// The size limit of a file of addresses, in bytes. A quorum has at most 255 members, and addresses are
/// short.
const MAX_LIST: u64 = 64 << 10;

/// The size limit of a certificate file, in bytes: four times the size of all certificates that a system
/// trusts.
const MAX_PEM: u64 = 1 << 20;

/// An address, and the place where it was found, for error messages.
type Located = (String, String);

impl Servers {
    /// Builds a client that can lock. Call it in the tokio runtime that the client's background work uses.
    pub async fn client(&self) -> Result<Client, Error> {
        let (builder, origins) = self.builder().await?;
        builder.build().await.map_err(|why| error(why, &origins))
    }

    /// Builds a client that only reads, which also accepts servers that cannot grant locks.
    pub async fn observer(&self) -> Result<Client, Error> {
        let (builder, origins) = self.builder().await?;
        builder.observe().await.map_err(|why| error(why, &origins))
    }

    /// Returns a builder, and the place where each address was found.
    async fn builder(&self) -> Result<(ClientBuilder, Vec<String>), Error> {
        let (addresses, origins): (Vec<String>, Vec<String>) = self.addresses().await?.into_iter().unzip();
        let mut builder = Client::builder().servers(addresses).node_timeout(self.node_timeout);
        if let Some(file) = &self.cacert {
            builder = builder.root_certificate(read(file, MAX_PEM).await?);
        }
        if let (Some(certificate), Some(key)) = (&self.cert, &self.key) {
            let (certificate, key) = (read(certificate, MAX_PEM).await?, read(key, MAX_PEM).await?);
            builder = builder.client_certificate(certificate, key);
        }
        Ok((builder, origins))
    }

    /// Returns the addresses of the arguments, else of the environment.
    async fn addresses(&self) -> Result<Vec<Located>, Error> {
        let list = env::var_os("DLOCK_SERVERS").filter(|list| !list.to_string_lossy().trim().is_empty());
        let located: Vec<Located> = if !self.servers.is_empty() {
            let origin = |at| format!("the address of --server number {}", at + 1);
            self.servers.iter().enumerate().map(|(at, url)| (url.clone(), origin(at))).collect()
        } else if let Some(file) = &self.servers_file {
            read_list(file).await?
        } else if let Some(list) = list {
            let list = list.into_string().map_err(|_| Error::usage("DLOCK_SERVERS is not UTF-8"))?;
            let origin = |at| format!("address {} in DLOCK_SERVERS", at + 1);
            let urls = list.split(',').map(str::trim).filter(|url| !url.is_empty()).enumerate();
            urls.map(|(at, url)| (url.to_owned(), origin(at))).collect()
        } else if let Some(file) = env::var_os("DLOCK_SERVERS_FILE") {
            read_list(Path::new(&file)).await?
        } else {
            Vec::new()
        };
        if located.is_empty() {
            return Err(Error::usage(
                "no server is given: use --server redis://HOST:PORT, or list the servers in DLOCK_SERVERS",
            ));
        }
        Ok(located)
    }
}

fn error(why: BuildError, origins: &[String]) -> Error {
    match why {
        BuildError::Address { position, why } if position <= origins.len() => {
            Error::usage(format_args!("{}: {why}", origins[position - 1]))
        }
        why => why.into(),
    }
}

/// Reads a file with one address on each line.
async fn read_list(file: &Path) -> Result<Vec<Located>, Error> {
    let text = read(file, MAX_LIST).await?;
    let text =
        String::from_utf8(text).map_err(|why| Error::usage(format_args!("{}: {why}", redact_path(file))))?;
    // Some editors write a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let lines = text.lines().map(str::trim).zip(1..);
    let lines = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    let located = lines.map(|(line, at): (&str, usize)| {
        let origin = format!("line {at} of {}", redact_path(file));
        (line.to_owned(), origin)
    });
    let located: Vec<Located> = located.collect();
    if located.is_empty() {
        return Err(Error::usage(format_args!("{} names no server", redact_path(file))));
    }
    Ok(located)
}

/// Reads a file of at most `limit` bytes, in a thread of its own. If the file is a pipe to which nothing is
/// written, the read does not return, but signals must still end dlock.
async fn read(file: &Path, limit: u64) -> Result<Vec<u8>, Error> {
    let path: PathBuf = file.into();
    let work = tokio::task::spawn_blocking(move || read_bounded(&path, limit));
    let done = work.await.unwrap_or_else(|why| Err(io::Error::other(why)));
    done.map_err(|why| Error::usage(format_args!("{}: {why}", redact_path(file))))
}

/// The name of a file for messages, or a replacement if it looks like an address or a key, given by mistake.
fn redact_path(file: &Path) -> String {
    let name = file.to_string_lossy();
    let is_name = !name.contains(['@', '=']) && !name.contains("://") && !name.contains("-----");
    if is_name { name.into_owned() } else { "the named file (not shown)".to_string() }
}

fn read_bounded(file: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(file)?.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::other(format!("has more than {limit} bytes")));
    }
    Ok(bytes)
}
