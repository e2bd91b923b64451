//! The README, of which examples are tried.

pub const README: &str = include_str!("../../../README.md");

/// The lines of the README's fenced blocks of this language.
pub fn blocks(language: &str) -> impl Iterator<Item = &'static str> {
    let mut inside = false;
    README.lines().filter(move |line| {
        if let Some(fence) = line.strip_prefix("```") {
            inside = fence == language;
            return false;
        }
        inside
    })
}
