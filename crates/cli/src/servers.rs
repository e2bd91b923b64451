//! Which servers, and a client for them.

use std::env;
use std::fs;
use std::path::Path;

use dlock_client::Client;

use crate::args::Servers;
use crate::exit::Error;

impl Servers {
    /// The client. Must be called in the runtime that its work goes on in.
    pub async fn client(&self) -> Result<Client, Error> {
        let mut builder = Client::builder().servers(self.urls()?).node_timeout(self.node_timeout);
        if let Some(file) = &self.cacert {
            builder = builder.root_certificate(read(file)?);
        }
        if let (Some(certificate), Some(key)) = (&self.cert, &self.key) {
            builder = builder.client_certificate(read(certificate)?, read(key)?);
        }
        Ok(builder.build().await?)
    }

    /// What the arguments name, else the environment.
    fn urls(&self) -> Result<Vec<String>, Error> {
        let urls = if !self.servers.is_empty() {
            self.servers.clone()
        } else if let Some(file) = &self.servers_file {
            listed(file)?
        } else if let Some(list) = env::var("DLOCK_SERVERS").ok().filter(|list| !list.trim().is_empty()) {
            list.split(',').map(str::trim).filter(|url| !url.is_empty()).map(str::to_owned).collect()
        } else if let Some(file) = env::var_os("DLOCK_SERVERS_FILE") {
            listed(Path::new(&file))?
        } else {
            Vec::new()
        };
        if urls.is_empty() {
            return Err(Error::usage(
                "no server is named; name it by --server redis://HOST:PORT, or all of them in DLOCK_SERVERS",
            ));
        }
        Ok(urls)
    }
}

fn listed(file: &Path) -> Result<Vec<String>, Error> {
    let text = read(file)?;
    let text =
        String::from_utf8(text).map_err(|why| Error::usage(format_args!("{}: {why}", file.display())))?;
    // Some editors begin a file with a mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let urls: Vec<String> = lines.map(str::to_owned).collect();
    if urls.is_empty() {
        return Err(Error::usage(format_args!("{} names no server", file.display())));
    }
    Ok(urls)
}

fn read(file: &Path) -> Result<Vec<u8>, Error> {
    fs::read(file).map_err(|why| Error::usage(format_args!("{}: {why}", file.display())))
}
