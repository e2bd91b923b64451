//! The position in the wait queue, on one line of the terminal.

use std::io::{IsTerminal, stderr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_client::{Acquire, Instant, Position, now};
use terminal_size::terminal_size_of;
use tokio::task::JoinHandle;

use crate::exit::PRINT_TIMEOUT;
use crate::output::{CLEAR_LINE, escape_control, print_later, wait_printed};

/// Shows the position on standard error, redraws it in place, and clears the line when it is dropped.
pub struct PositionDisplay {
    line: Arc<Line>,
    /// Redraws the line every second.
    clock: JoinHandle<()>,
}

struct Line {
    /// The resources that are waited for.
    names: String,
    /// The last position that was reported, and the time of the report.
    last: Mutex<Option<(Position, Instant)>>,
    /// Whether a drawing is queued and not printed yet, as on a terminal that is slow or stopped. No second
    /// drawing is queued meanwhile.
    is_pending: AtomicBool,
}

impl PositionDisplay {
    /// Shows the positions that `lock` will report. `None` if standard error is no terminal.
    pub fn watch(names: &str, lock: Acquire) -> (Acquire, Option<PositionDisplay>) {
        if !stderr().is_terminal() {
            return (lock, None);
        }
        let (last, is_pending) = (Mutex::default(), AtomicBool::new(false));
        let line = Arc::new(Line { names: names.to_owned(), last, is_pending });
        let redrawn = line.clone();
        let clock = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                redrawn.draw();
            }
        });
        let reported = line.clone();
        let lock = lock.on_position(move |position| {
            *reported.last() = Some((position, now()));
            reported.draw();
        });
        (lock, Some(PositionDisplay { line, clock }))
    }
}

impl Drop for PositionDisplay {
    fn drop(&mut self) {
        self.clock.abort();
        if self.line.last().take().is_some() {
            print_later(|| CLEAR_LINE.into());
            // Waits, so that the output of the command that runs next begins on an empty line.
            wait_printed(PRINT_TIMEOUT);
        }
    }
}

impl Line {
    fn draw(self: &Arc<Self>) {
        if !self.is_pending.swap(true, Ordering::Relaxed) {
            let line = self.clone();
            print_later(move || line.text());
        }
    }

    /// The line to print. Empty as long as no position is known.
    fn text(&self) -> String {
        self.is_pending.store(false, Ordering::Relaxed);
        let last = self.last();
        let Some((Position { server, position, waited, .. }, at)) = &*last else { return String::new() };
        let (names, waited) = (&self.names, (*waited + now().saturating_since(*at)).as_secs());
        let text = format!("waiting for {names}: position {position} at {server}, {waited} s");
        // Cut to the width of the terminal, because a line that wraps cannot be cleared.
        let width = terminal_size_of(stderr()).map_or(80, |(width, _)| usize::from(width.0));
        let text: String = escape_control(text).chars().take(width.saturating_sub(1)).collect();
        format!("{CLEAR_LINE}{text}")
    }

    fn last(&self) -> MutexGuard<'_, Option<(Position, Instant)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
