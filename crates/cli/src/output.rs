//! What dlock prints: results on standard output, messages on standard error, tables.
//!
//! Text from outside (servers, arguments, files) is escaped before it is printed for people. Only this file
//! has functions that escape it. A resource name or an error message with control sequences could overwrite
//! other output or reconfigure the terminal. Output for programs, such as the token that `acquire` prints, is
//! not escaped.

use std::fmt;
use std::io::{self, Write, stderr, stdout};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::NOTHING;

/// An error of writing to standard output.
pub struct NotPrinted(pub io::Error);

/// Prints a line to standard output.
pub fn print(text: &str) -> Result<(), NotPrinted> {
    writeln!(stdout(), "{text}").map_err(NotPrinted)
}

/// Prints a message to standard error, on one line.
pub fn warn(message: impl fmt::Display) {
    let line = format!("dlock: {}\n", escape_control(message));
    print_later(move || line);
}

/// Returns to the start of a line of the terminal and clears the line.
pub const CLEAR_LINE: &str = "\r\x1b[K";

/// Renders a text at the moment it is printed.
type Render = Box<dyn FnOnce() -> String + Send>;

/// `None` if no thread could be started.
static PRINTER: OnceLock<Option<Sender<Render>>> = OnceLock::new();

/// Prints to standard error from a thread of its own. A terminal that Ctrl-S has stopped, or a full pipe,
/// blocks that thread, but not renewals, signals or the end of a command.
pub fn print_later(text: impl FnOnce() -> String + Send + 'static) {
    match PRINTER.get_or_init(|| start_printer().ok()) {
        Some(printer) => _ = printer.send(Box::new(text)),
        None => write(&text()),
    }
}

fn start_printer() -> io::Result<Sender<Render>> {
    let (texts, received) = channel::<Render>();
    let print = move || received.iter().for_each(|text| write(&text()));
    thread::Builder::new().name("printer".into()).spawn(print)?;
    Ok(texts)
}

/// Ignores errors, because standard error may be closed. `eprint!` would panic.
fn write(text: &str) {
    let _ = stderr().write_all(text.as_bytes());
}

/// Waits until everything passed to [`print_later`] is printed, for at most `limit`.
pub fn wait_printed(limit: Duration) {
    if PRINTER.get().is_some() {
        let (sender, receiver) = channel::<()>();
        print_later(move || {
            // Ends the wait below.
            drop(sender);
            String::new()
        });
        let _ = receiver.recv_timeout(limit);
    }
}

// Text from outside.

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

/// A name as text: escaped if it is not UTF-8.
pub fn name_text(name: &[u8]) -> String {
    std::str::from_utf8(name).map_or_else(|_| name.escape_ascii().to_string(), str::to_owned)
}

/// Sets the name in a JSON object: `resource` as text and, if the name is not UTF-8, its bytes as
/// `resource_base64`.
pub fn set_name(object: &mut serde_json::Value, name: &[u8]) {
    object["resource"] = name_text(name).into();
    if std::str::from_utf8(name).is_err() {
        object["resource_base64"] = base64(name).into();
    }
}

/// Encodes bytes as the program `base64` does.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits =
            three.iter().fold(0, |bits, byte| bits << 8 | usize::from(*byte)) << (8 * (3 - three.len()));
        for digit in 0..4 {
            let is_used = digit <= three.len();
            text.push(if is_used { DIGITS[bits >> (18 - 6 * digit) & 63].into() } else { '=' });
        }
    }
    text
}

/// Returns the value as JSON, with control characters escaped. Only the strings in JSON can contain them.
pub fn escape_json(value: &serde_json::Value) -> String {
    let escaped = |char: char| {
        if is_hidden(char) { format!("\\u{:04x}", char as u32) } else { String::from(char) }
    };
    let text = value.to_string();
    if text.contains(is_hidden) { text.chars().map(escaped).collect() } else { text }
}

/// Returns whether a terminal interprets the character instead of showing it: controls (C0, DEL, C1), line
/// separators, and changes of the writing direction. All are below U+10000, so [`escape_json`] needs four hex
/// digits.
fn is_hidden(char: char) -> bool {
    let is_separator = matches!(char, '\u{2028}' | '\u{2029}');
    let is_mark = matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}');
    let is_direction = is_mark || matches!(char, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    char.is_control() || is_separator || is_direction
}

// Tables for people, and the format of times, names and tokens in them.

pub fn table(head: &[&str]) -> Table {
    let mut table = table_without_head();
    table.set_header(head);
    table
}

pub fn table_without_head() -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table
}

/// The number of characters of a text that a cell shows. A resource name may have megabytes, and the widest
/// cell widens its column.
const MAX_WIDTH: usize = 64;

/// A cell with text from outside: escaped, and cut to [`MAX_WIDTH`] characters.
pub fn cell(text: impl fmt::Display) -> String {
    cut(&escape_control(text), MAX_WIDTH)
}

/// The beginning of a token. The whole token is not shown, because any client could release the hold with it.
pub fn short(token: &str) -> String {
    escape_control(cut(token, 8))
}

/// The first `max_chars` characters of a text, with an ellipsis if it is longer.
pub fn cut(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
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

    /// Texts with hidden characters, and one without, each with its escaped form.
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
            let shown = escape_json(&value);
            assert!(!shown.contains(is_hidden), "{shown}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).expect("JSON"), value);
        }
    }

    #[test]
    fn base64_encodes_as_rfc_4648_does() {
        for (bytes, text) in [
            (&b""[..], ""),
            (b"f", "Zg=="),
            (b"fo", "Zm8="),
            (b"foo", "Zm9v"),
            (b"foobar", "Zm9vYmFy"),
            (b"\xfb\xff\xfe", "+//+"),
        ] {
            assert_eq!(base64(bytes), text);
        }
    }

    #[test]
    fn cells_times_and_tokens_are_shortened() {
        assert_eq!((time(999), time(61_900)), ("999ms".into(), "1m 1s".into()));
        assert_eq!(short("a\nb"), "a\\nb");
        assert_eq!(cell("a\nb".repeat(20)), format!("{}…", "a\\nb".repeat(16)));
        assert_eq!((short("abc"), short("ééééééééé")), ("abc".into(), "éééééééé…".into()));
    }
}
