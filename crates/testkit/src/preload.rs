//! Servers with replaced functions of the C library.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::{Mutex, PoisonError};

use crate::kinds::ServerKind;
use crate::process::environment;
use crate::project::{profile_folder, project};

/// Returns the kind with a command that preloads one more C file. Its functions replace functions of the C
/// library.
/// `source` is the file's path below the project, `variables` the environment variables that it reads.
pub fn preloaded(kind: &ServerKind, source: &str, variables: &[(&str, &Path)]) -> ServerKind {
    let shim = compiled(source).display().to_string();
    let mut kind = kind.clone();
    match kind.command.iter_mut().find(|word| word.starts_with("LD_PRELOAD=")) {
        Some(others) => *others = format!("{others}:{shim}"),
        None => {
            // The tests may preload a sanitizer's runtime (`environment`), which must come first.
            let others = environment(Path::new("")).into_iter().find(|(name, _)| name == "LD_PRELOAD");
            let others = others.map_or(String::new(), |(_, others)| format!("{others}:"));
            let env = ["/usr/bin/env".to_string(), format!("LD_PRELOAD={others}{shim}")];
            kind.command.splice(0..0, env);
        }
    }
    kind.command.splice(1..1, variables.iter().map(|(name, value)| format!("{name}={}", value.display())));
    kind
}

/// Returns a C file below the project as a shared library, compiled once per run. Needs a C
/// compiler, as the bindings of the module do.
pub fn compiled(source: &str) -> PathBuf {
    static DONE: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    done.get_or_insert_default().entry(source.to_string()).or_insert_with(|| compile(source)).clone()
}

fn compile(source: &str) -> PathBuf {
    let folder = profile_folder().join("shims");
    fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let name = source.replace(['/', '.'], "-");
    let (path, unfinished) =
        (folder.join(format!("{name}.so")), folder.join(format!("{name}-{}", process::id())));
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]).arg(&unfinished);
    cc.arg(project().join(source)).arg("-ldl");
    let status = cc.status().unwrap_or_else(|error| panic!("cc does not run: {error}"));
    assert!(status.success(), "{source} does not compile");
    // Renamed into place, so that the servers of other runs load either the old file or the whole new one.
    fs::rename(&unfinished, &path).expect("the library can be moved into place");
    path
}
