//! The library as it is given away: `cargo test -p dlock-module --test documented built -- --ignored`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What `make run` and `cargo build --release` make.
fn released() -> PathBuf {
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let target = project.join("target");
    cargo
        .args(["build", "--quiet", "--release", "--package", "dlock-module", "--lib", "--target-dir"])
        .arg(&target);
    assert!(cargo.current_dir(project).status().expect("cargo runs").success());
    target.join("release/libdlock.so")
}

#[test]
#[ignore = "builds the release, which takes minutes: `make test` runs it"]
fn it_does_not_say_where_it_was_built() {
    let library = std::fs::read(released()).expect("the library");
    let says = |text: &str| library.windows(text.len()).any(|bytes| bytes == text.as_bytes());
    // The places of panics, of this project and of what it depends on.
    assert!(says("src/commands.rs") && says("/hdrhistogram-"), "it says nothing at all");
    let folders = ["HOME", "CARGO_HOME", "RUSTUP_HOME"].map(env::var).into_iter().flatten();
    for folder in folders.chain([env!("CARGO_MANIFEST_DIR").to_string(), "/.cargo".into()]) {
        assert!(folder.len() < 3 || !says(&folder), "{folder}");
    }
}
