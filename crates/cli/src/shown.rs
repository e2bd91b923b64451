//! What comes from outside (servers, arguments, files) as it may be printed to a person. Nothing is escaped
//! anywhere else, and nothing is printed to a person without: a name, a label or an error that moves the
//! cursor could write over what is true, and one that speaks to the terminal could do worse.
//!
//! What programs read, such as the token that `acquire` prints, is not for people and stays as it is.

use std::fmt;

/// On one line, without control characters.
pub fn plain(text: impl fmt::Display) -> String {
    let text = text.to_string();
    if !text.contains(is_hidden) {
        return text;
    }
    let escaped = |char: char| {
        if is_hidden(char) { char.escape_default().collect() } else { String::from(char) }
    };
    text.chars().map(escaped).collect()
}

/// JSON, of which only strings can hold such a character: the same value, and fit for a terminal.
pub fn json(value: &serde_json::Value) -> String {
    let escaped = |char: char| {
        if is_hidden(char) { format!("\\u{:04x}", char as u32) } else { String::from(char) }
    };
    value.to_string().chars().map(escaped).collect()
}

/// Not a mark on the screen but what a terminal does: controls (C0, DEL, C1), line ends that are none in
/// ASCII, and what turns the direction of writing over. None of them lies beyond four hex digits.
fn is_hidden(char: char) -> bool {
    let marks = matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}');
    let turns = marks || matches!(char, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    char.is_control() || matches!(char, '\u{2028}' | '\u{2029}') || turns
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What speaks to a terminal, and how it is shown.
    const HOSTILE: [(&str, &str); 7] = [
        ("\x1b[2Jé", "\\u{1b}[2Jé"),
        ("a\r\nb\tc", "a\\r\\nb\\tc"),
        ("\x1b]0;title\x07", "\\u{1b}]0;title\\u{7}"),
        ("\u{9b}2J\u{7f}\0", "\\u{9b}2J\\u{7f}\\u{0}"),
        ("invoice\u{202e}24", "invoice\\u{202e}24"),
        ("\u{2066}a\u{2069}\u{2028}", "\\u{2066}a\\u{2069}\\u{2028}"),
        ("größe \\ 大 👍🏽", "größe \\ 大 👍🏽"),
    ];

    #[test]
    fn nothing_that_is_shown_moves_a_cursor_or_turns_a_line_over() {
        for (text, shown) in HOSTILE {
            assert_eq!(plain(text), shown);
        }
    }

    #[test]
    fn json_is_the_same_value_without_them() {
        for (text, _) in HOSTILE {
            let value = serde_json::json!({ text: [text] });
            let shown = json(&value);
            assert!(!shown.contains(is_hidden), "{shown}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).expect("JSON"), value);
        }
    }
}
