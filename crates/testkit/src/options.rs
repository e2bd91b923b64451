//! How a server is to be started.

use std::fs;
use std::path::Path;

use crate::folder::Folder;
use crate::kinds::ServerKind;
use crate::module::module_path;
use crate::port::Port;
use crate::process::Process;
use crate::server::Server;

/// A server to be: `Server::options(kind).conf("appendonly yes").module_args("...").start()`.
#[derive(Clone)]
#[must_use]
pub struct Options {
    pub(crate) kind: ServerKind,
    conf: Vec<String>,
    /// What follows the module's path in `loadmodule`; None: without the module.
    module: Option<String>,
    pub(crate) sentinel: bool,
}

impl Options {
    pub(crate) fn new(kind: &ServerKind) -> Options {
        Options { kind: kind.clone(), conf: Vec::new(), module: Some(String::new()), sentinel: false }
    }

    /// The same on another server, or on the same one started in another way.
    pub fn on(mut self, kind: &ServerKind) -> Options {
        self.kind = kind.clone();
        self
    }

    /// A line of redis.conf. Later lines win, also over those that every server gets.
    pub fn conf(mut self, line: &str) -> Options {
        self.conf.push(line.to_string());
        self
    }

    /// Arguments of the module itself, in place of earlier ones.
    pub fn module_args(mut self, arguments: &str) -> Options {
        self.module = Some(arguments.to_string());
        self
    }

    /// A plain server.
    pub fn without_module(mut self) -> Options {
        self.module = None;
        self
    }

    /// No server of data but one that watches over others; what to watch over is in `conf`.
    pub fn sentinel(mut self) -> Options {
        self.sentinel = true;
        self.without_module()
    }

    /// Starts it and waits until it answers; panics with its log when it does not get there.
    #[track_caller]
    pub fn start(self) -> Server {
        match self.launch() {
            Ok(server) => server,
            Err((log, folder)) => panic!("the server did not start in {}:\n{log}", folder.path().display()),
        }
    }

    /// Starts it, or returns the log of a server that refused to.
    pub fn try_start(self) -> Result<Server, String> {
        self.launch().map_err(|(log, _)| log)
    }

    fn launch(self) -> Result<Server, (String, Folder)> {
        let folder = Folder::fresh();
        loop {
            let port = Port::claim();
            self.write(folder.path(), port.number());
            match Process::start(&self, folder.path(), port.number()) {
                Ok(process) => return Ok(Server::new(self, port, folder, process)),
                // Somebody who is no test of ours was quicker.
                Err(log) if log.contains("Address already in use") => continue,
                Err(log) => return Err((log, folder)),
            }
        }
    }

    /// Writes server.conf.
    pub(crate) fn write(&self, dir: &Path, port: u16) {
        let mut lines = vec![
            format!("port {port}"),
            format!("dir {}", dir.display()),
            "bind 127.0.0.1".to_string(),
            "save \"\"".to_string(),
            "enable-debug-command yes".to_string(),
            "enable-module-command yes".to_string(),
            // A crash is reported without a walk over all memory first.
            "crash-memcheck-enabled no".to_string(),
            // A replica is served at once instead of after 5 s in which others might join it.
            "repl-diskless-sync-delay 0".to_string(),
        ];
        if let Some(arguments) = &self.module {
            lines.push(format!("loadmodule {} {arguments}", module_path().display()));
        }
        lines.extend(self.conf.iter().cloned());
        fs::write(dir.join("server.conf"), lines.join("\n") + "\n").expect("server.conf can be written");
    }
}
