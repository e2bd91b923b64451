//! Tables for people, and the format of times, names and tokens in them.

use std::fmt;
use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::NOTHING;

use crate::output::escape::escape_control;

pub fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(head);
    table
}

/// The number of characters of a text that a cell shows. A resource name may have megabytes, and the widest
/// cell widens its column.
const MAX_WIDTH: usize = 64;

/// A cell with text from outside: escaped, and cut to [`MAX_WIDTH`] characters.
pub fn cell(text: impl fmt::Display) -> String {
    cut(&escape_control(text), MAX_WIDTH)
}

/// The beginning of a token. The whole token is not shown: with it, any client could release the hold.
pub fn short(token: &str) -> String {
    escape_control(cut(token, 8))
}

/// The first `most` characters of a text, with an ellipsis if it is longer.
pub fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A time in whole seconds, or in milliseconds if it is below one second.
pub fn time(ms: u64) -> String {
    let time = Duration::from_millis(ms);
    let shown = if ms < 1000 { time } else { Duration::from_secs(time.as_secs()) };
    humantime::format_duration(shown).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_times_and_tokens_are_shortened() {
        assert_eq!((time(999), time(61_900)), ("999ms".into(), "1m 1s".into()));
        assert_eq!(short("a\nb"), "a\\nb");
        assert_eq!(cell("a\nb".repeat(20)), format!("{}…", "a\\nb".repeat(16)));
        assert_eq!((short("abc"), short("ééééééééé")), ("abc".into(), "éééééééé…".into()));
    }
}
