//! Tables for people, and how times and tokens are written in them.

use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::NOTHING;

use crate::shown::plain;

pub fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(head);
    table
}

/// A token for people, shortened: whoever knows all of it owns the hold.
pub fn short(token: &str) -> String {
    match token.char_indices().nth(8) {
        Some((end, _)) => format!("{}…", plain(&token[..end])),
        None => plain(token),
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
        assert_eq!((short("abc"), short("ééééééééé")), ("abc".into(), "éééééééé…".into()));
    }
}
