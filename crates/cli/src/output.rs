//! What dlock prints: results on standard output, messages on standard error. Text from outside (servers,
//! arguments, files) is escaped first: see [`escape`].

pub mod escape;
pub mod table;

use std::fmt;
use std::io::{self, Write, stderr, stdout};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use escape::escape_control;

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

/// Renders a text at the moment it is printed.
type Render = Box<dyn FnOnce() -> String + Send>;

/// `None` if no thread could be started.
static PRINTER: OnceLock<Option<Sender<Render>>> = OnceLock::new();

/// Prints to standard error from a thread of its own. A terminal that Ctrl-S has stopped, or a pipe without
/// a reader, blocks that thread, but not renewals, signals or the end of a command.
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

/// Ignores errors: standard error may be closed. `eprint!` would panic.
fn write(text: &str) {
    let _ = stderr().write_all(text.as_bytes());
}

/// Waits until everything passed to [`print_later`] is printed, for at most `limit`.
pub fn wait_printed(limit: Duration) {
    if PRINTER.get().is_some() {
        let (printed, is_printed) = channel::<()>();
        print_later(move || {
            drop(printed);
            String::new()
        });
        let _ = is_printed.recv_timeout(limit);
    }
}
