//! Links of the documents lead to existing targets, and the index reaches every document. Also: the length of
//! the README, and the make targets and test programs that the documents name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use dlock_testkit::{documents, project};

/// Returns a document without its code blocks.
fn prose(text: &str) -> String {
    let mut code = false;
    let kept = text.lines().filter(|line| {
        code ^= line.trim_start().starts_with("```");
        !code && !line.trim_start().starts_with("```")
    });
    kept.collect::<Vec<_>>().join("\n")
}

/// Returns the anchors of the headings, as GitHub builds them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let headings = prose(text);
    let headings = headings.lines().filter(|line| line.trim_start_matches('#').starts_with(' '));
    let anchor = |heading: &str| {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|char| char.is_alphanumeric() || [' ', '-', '_'].contains(char));
        let anchor: String = kept.map(|char| if char == ' ' { '-' } else { char }).collect();
        let times = seen.entry(anchor.clone()).or_default();
        *times += 1;
        if *times > 1 { format!("{anchor}-{}", *times - 1) } else { anchor }
    };
    headings.filter(|line| line.starts_with('#')).map(anchor).collect()
}

/// Returns the targets of the relative links, with their anchors.
fn links(path: &str, text: &str) -> Vec<(PathBuf, Option<String>)> {
    let text = prose(text);
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let relative = targets.filter(|target| !target.contains("://"));
    let resolve = |target: &str| {
        let (file, anchor) = target.split_once('#').map_or((target, None), |(file, to)| (file, Some(to)));
        let file = match file {
            "" => PathBuf::from(path),
            file => without_parent_parts(&Path::new(path).with_file_name(file)),
        };
        (file, anchor.map(str::to_owned))
    };
    relative.map(resolve).collect()
}

/// Resolves each `..` of a path.
fn without_parent_parts(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut resolved, part| {
        match part {
            Component::ParentDir => assert!(resolved.pop(), "{} leads out of the project", path.display()),
            part => resolved.push(part),
        }
        resolved
    })
}

#[test]
fn every_link_leads_to_a_file_and_to_a_heading_in_it() {
    let mut followed = 0;
    for path in documents::all() {
        for (file, anchor) in links(&path, &documents::read(&path)) {
            assert!(project().join(&file).exists(), "{path} links to {}", file.display());
            if let Some(anchor) = anchor {
                let found = anchors(&documents::read(file.to_str().expect("UTF-8")));
                assert!(found.contains(&anchor), "{path} links to {}#{anchor}: {found:?}", file.display());
            }
            followed += 1;
        }
    }
    assert!(followed >= 80, "only {followed} links were followed");
}

#[test]
fn the_index_links_every_document() {
    let index = documents::read("docs/README.md");
    let linked: BTreeSet<PathBuf> =
        links("docs/README.md", &index).into_iter().map(|(file, _)| file).collect();
    let unlinked: Vec<String> = documents::all()
        .into_iter()
        .filter(|path| path.starts_with("docs/") && path != "docs/README.md")
        .filter(|path| !linked.contains(Path::new(path)))
        .collect();
    assert!(unlinked.is_empty(), "docs/README.md does not link {unlinked:?}");
}

#[test]
fn the_readme_has_50_to_150_lines() {
    let lines = documents::read("README.md").lines().count();
    assert!((50..=150).contains(&lines), "{lines} lines");
}

#[test]
fn every_named_make_target_exists() {
    let makefile = documents::read("Makefile");
    let mut named = BTreeSet::new();
    for path in documents::all() {
        let text = documents::read(&path);
        // Code only: "make sure" is no command.
        let code = text.split("`make ").skip(1).chain(text.split("\nmake ").skip(1));
        let code = code.filter_map(|rest| rest.split(|c: char| !is_target_char(c)).next());
        for target in code {
            assert!(makefile.contains(&format!("\n{target}:")), "{path}: make {target}");
            named.insert(target.to_owned());
        }
    }
    assert!(named.len() >= 10, "{named:?}");
}

#[test]
fn every_named_test_program_exists() {
    let mut folders = vec![project().join("tests")];
    let crates = std::fs::read_dir(project().join("crates")).expect("crates/");
    folders.extend(crates.map(|package| package.expect("a folder").path().join("tests")));
    let mut named = BTreeSet::new();
    for path in documents::all() {
        let text = documents::read(&path);
        for name in text.split("--test ").skip(1).filter_map(|rest| rest.split([' ', '`', '\n']).next()) {
            let is_in = |folder: &PathBuf| {
                folder.join(name).join("main.rs").exists() || folder.join(format!("{name}.rs")).exists()
            };
            // NAME is a placeholder, and a path belongs to a Node test.
            assert!(
                name == "NAME" || name.contains('/') || folders.iter().any(is_in),
                "{path}: --test {name}"
            );
            named.insert(name.to_owned());
        }
    }
    assert!(named.len() >= 10, "{named:?}");
}

fn is_target_char(char: char) -> bool {
    char.is_ascii_lowercase() || char == '-'
}
