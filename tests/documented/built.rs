//! The released library, and the licences and versions of all packages. The test of the library is ignored by
//! default: `cargo test -p dlock-module --test documented built -- --ignored` runs it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use dlock_testkit::{Server, ServerKind, documents, each_server};

/// Builds the release and returns the path of its library.
fn release_library() -> PathBuf {
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
#[ignore = "builds the release, which takes minutes: `make check` runs it"]
fn the_module_contains_no_path_of_its_build() {
    let library = std::fs::read(release_library()).expect("the library can be read");
    let contains = |text: &str| library.windows(text.len()).any(|bytes| bytes == text.as_bytes());
    // Checks that the search works. Panics leave relative source paths in the library: the search must find
    // one of the project and one of a dependency (hdrhistogram). The optimiser decides which paths remain.
    let sources = ["src/module.rs", "src/ffi/ctx.rs", "src/waiters.rs", "src/effects.rs", "crates/core/src/"];
    assert!(sources.into_iter().any(contains) && contains("/hdrhistogram-"), "no source path is found");
    let folders = ["HOME", "CARGO_HOME", "RUSTUP_HOME"].map(env::var).into_iter().flatten();
    for folder in folders.chain([env!("CARGO_MANIFEST_DIR").to_string(), "/.cargo".into()]) {
        // A folder such as `/` occurs in any library.
        assert!(folder.len() < 3 || !contains(&folder), "the library contains {folder}");
    }
}

/// Checks the two licence texts and the licence field of each package.
#[test]
fn every_package_has_the_license_of_the_project() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = |path: &str| fs::read_to_string(top.join(path)).unwrap_or_else(|why| panic!("{path}: {why}"));
    for (file, beginning) in [("LICENSE-MIT", "MIT License"), ("LICENSE-APACHE", "Apache License")] {
        assert!(text(file).trim_start().starts_with(beginning), "{file}");
        assert!(
            documents::read("README.md").contains(&format!("({file})")),
            "the README does not link {file}"
        );
    }
    assert!(text("Cargo.toml").contains("\nlicense = \"MIT OR Apache-2.0\"\n"));
    assert!(text("fuzz/Cargo.toml").contains("\nlicense = \"MIT OR Apache-2.0\"\n"));
    let mut packages = vec!["Cargo.toml".to_string()];
    for package in fs::read_dir(top.join("crates")).expect("crates/") {
        let package = package.expect("a folder").file_name();
        packages.push(format!("crates/{}/Cargo.toml", package.display()));
    }
    assert!(packages.len() >= 5, "{packages:?}");
    for package in packages {
        assert!(text(&package).contains("\nlicense.workspace = true\n"), "{package}");
    }
}

/// `scripts/version.sh` copies the version of Cargo.toml to the other files, except CHANGELOG.md.
#[each_server]
fn every_part_has_the_version_of_the_project(kind: &ServerKind) {
    let version = env!("CARGO_PKG_VERSION");
    for (file, line) in [
        ("Cargo.toml", format!("version = \"{version}\"")),
        ("CHANGELOG.md", format!("## {version}")),
        ("clients/python/pyproject.toml", format!("version = \"{version}\"")),
        ("clients/python/src/dlock/__init__.py", format!("__version__ = \"{version}\"")),
        ("clients/node/package.json", format!("\"version\": \"{version}\"")),
        ("clients/node/package-lock.json", format!("\"version\": \"{version}\"")),
        ("clients/go/dlockotel/go.mod", format!("github.com/dlock/dlock/clients/go v{version}")),
        ("contrib/kubernetes/server.yaml", format!("image: dlock-valkey:{version}")),
        ("contrib/kubernetes/sentinel.yaml", format!("image: dlock-valkey:{version}")),
        ("contrib/kubernetes/cluster.yaml", format!("image: dlock-valkey:{version}")),
        ("contrib/kubernetes/quorum.yaml", format!("image: dlock-valkey:{version}")),
    ] {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file));
        let text = text.unwrap_or_else(|why| panic!("{file}: {why}"));
        // The first match counts: CHANGELOG.md lists older versions below.
        let start = &line[..line.find(version).expect("the line has the version")];
        let first = text.lines().map(str::trim).find(|found| found.starts_with(start));
        let first = first.unwrap_or_else(|| panic!("{file} names no version"));
        assert!(first.starts_with(&line), "{file}: {first}");
    }
    let numbers: Vec<i64> = version.split('.').map(|part| part.parse().expect("a number")).collect();
    let listed = Server::start(kind).connect().ok("MODULE LIST");
    let dlock = listed.items().iter().find(|module| *module.field("name") == "dlock");
    let shown = dlock.expect("the module is loaded").field("ver").int();
    assert_eq!(shown, (numbers[0] * 100 + numbers[1]) * 100 + numbers[2]);
}
