//! Paths: the project, the build's folder, the module under test.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Returns the folder of the whole project.
pub fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/testkit is in the project")
}

/// Returns the absolute path of the libdlock.so to load: `DLOCK_TEST_MODULE`, or else that of this build,
/// which is brought up to date first.
pub fn module_path() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let path = match env::var_os("DLOCK_TEST_MODULE") {
            Some(given) => PathBuf::from(given),
            None => build(),
        };
        assert!(path.is_absolute(), "the module's path must be absolute: {}", path.display());
        assert!(path.is_file(), "there is no module at {}", path.display());
        path
    })
}

/// Builds the module with the profile of this test binary. Cargo builds only what a test depends on, and a
/// test cannot depend on the module, which is a cdylib. Without this build, tests would run against an old
/// file.
fn build() -> PathBuf {
    let profile = profile_folder();
    let above = profile.parent().expect("target/ above the profile's folder");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--package", "dlock-module", "--lib"]);
    cargo.arg("--manifest-path").arg(project().join("Cargo.toml"));
    // `above` is target/, or target/triple/. If it is target/triple/, its parent is target/, in which Cargo
    // writes CACHEDIR.TAG.
    match above.parent().filter(|outer| outer.join("CACHEDIR.TAG").exists()) {
        Some(outer) => {
            cargo.arg("--target").arg(above.file_name().expect("a folder named after the target triple"));
            cargo.arg("--target-dir").arg(outer);
        }
        None => {
            cargo.arg("--target-dir").arg(above);
        }
    }
    let name = profile.file_name().and_then(|name| name.to_str()).expect("the profile's name");
    cargo.args(["--profile", if name == "debug" { "dev" } else { name }]);
    let output = cargo.output().expect("cargo runs");
    assert!(
        output.status.success(),
        "building the module failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    profile.join("libdlock.so")
}

/// Returns the build's folder: target/[triple/]profile/ of the test binary
/// target/[triple/]profile/deps/test-0123456789abcdef.
pub(crate) fn profile_folder() -> PathBuf {
    let test = env::current_exe().expect("the test binary's own path");
    test.ancestors().nth(2).expect("the test binary is in target/profile/deps").to_path_buf()
}
