//! Tables for people, and how times and tokens are written in them.

use std::fmt;
use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::NOTHING;

use crate::shown::plain;

pub fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(head);
    table
}

/// How much of a text a cell shows. A name may have megabytes, and each row is as wide as the widest.
const WIDEST: usize = 64;

/// Text from outside in a table.
pub fn cell(text: impl fmt::Display) -> String {
    cut(&plain(text), WIDEST)
}

/// A token for people, shortened: whoever knows all of it owns the hold.
pub fn short(token: &str) -> String {
    plain(cut(token, 8))
}

pub fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// In whole seconds, or in milliseconds below one second.
pub fn time(ms: u64) -> String {
    let time = Duration::from_millis(ms);
    let shown = if ms < 1000 { time } else { Duration::from_secs(time.as_secs()) };
    humantime::format_duration(shown).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_tokens_are_short() {
        assert_eq!((time(999), time(61_900)), ("999ms".into(), "1m 1s".into()));
        assert_eq!(short("a\nb"), "a\\nb");
        assert_eq!(cell("a\nb".repeat(20)), format!("{}…", "a\\nb".repeat(16)));
        assert_eq!((short("abc"), short("ééééééééé")), ("abc".into(), "éééééééé…".into()));
    }
}
