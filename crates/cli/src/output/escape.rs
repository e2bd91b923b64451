//! Escapes text from outside (servers, arguments, files) before it is printed for people. Only this module
//! escapes, and all such text passes through it: a resource name or an error message with control sequences
//! could overwrite other output or reconfigure the terminal.
//!
//! Output for programs, such as the token that `acquire` prints, is not escaped.

use std::fmt;

/// Returns the text on one line, with control characters escaped.
pub fn escape_control(text: impl fmt::Display) -> String {
    let text = text.to_string();
    if !text.contains(is_hidden) {
        return text;
    }
    let escaped = |char: char| {
        if is_hidden(char) { char.escape_default().collect() } else { String::from(char) }
    };
    text.chars().map(escaped).collect()
}

/// Returns JSON of the same value in which control characters are escaped. Only strings can contain them.
pub fn json(value: &serde_json::Value) -> String {
    let escaped = |char: char| {
        if is_hidden(char) { format!("\\u{:04x}", char as u32) } else { String::from(char) }
    };
    value.to_string().chars().map(escaped).collect()
}

/// Returns whether a terminal interprets the character instead of showing it: controls (C0, DEL, C1), line
/// separators, and changes of the writing direction. All of them have at most four hex digits.
fn is_hidden(char: char) -> bool {
    let marks = matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}');
    let turns = marks || matches!(char, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    char.is_control() || matches!(char, '\u{2028}' | '\u{2029}') || turns
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts, and how they are shown.
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
    fn control_characters_and_changes_of_the_writing_direction_are_escaped() {
        for (text, shown) in HOSTILE {
            assert_eq!(escape_control(text), shown);
        }
    }

    #[test]
    fn escaped_json_has_the_same_value() {
        for (text, _) in HOSTILE {
            let value = serde_json::json!({ text: [text] });
            let shown = json(&value);
            assert!(!shown.contains(is_hidden), "{shown}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).expect("JSON"), value);
        }
    }
}
