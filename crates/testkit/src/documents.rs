//! The documents of the project. Tests read them when they run, so a change of a document needs no build.

use std::fs;
use std::path::Path;

use crate::project::project;

/// Returns the text of a document, by its path in the project.
#[track_caller]
pub fn read(path: &str) -> String {
    fs::read_to_string(project().join(path)).unwrap_or_else(|why| panic!("{path}: {why}"))
}

/// Returns the lines of a document's fenced blocks in this language.
#[track_caller]
pub fn blocks(path: &str, language: &str) -> Vec<String> {
    let mut inside = false;
    let is_in_block = |line: &&str| {
        if let Some(fence) = line.strip_prefix("```") {
            inside = fence == language;
            return false;
        }
        inside
    };
    read(path).lines().filter(is_in_block).map(str::to_owned).collect()
}

/// Returns the paths of all documents of the project, sorted.
pub fn all() -> Vec<String> {
    let mut found = Vec::new();
    add(Path::new(""), &mut found);
    found.sort();
    found
}

fn add(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(project().join(folder)).expect("the folder can be read") {
        let entry = entry.expect("an entry");
        let (path, name) = (folder.join(entry.file_name()), entry.file_name());
        let name = name.to_string_lossy();
        // Skips built and installed files.
        let is_source = !name.starts_with('.') && !["target", "build", "node_modules"].contains(&&*name);
        if is_source && entry.file_type().expect("a kind").is_dir() {
            add(&path, found);
        } else if is_source && name.ends_with(".md") {
            found.push(path.to_str().expect("UTF-8").to_owned());
        }
    }
}
