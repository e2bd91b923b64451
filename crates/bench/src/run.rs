//! What every measurement needs, and what it returns.

use std::io::{IsTerminal, Write, stderr};

use serde_json::Value;

use crate::server::Program;
use crate::table::Table;

/// How to measure.
pub struct Run {
    pub program: Program,
    pub quick: bool,
    pub form: Form,
    /// A contender's name must contain one of these words; none: all contenders.
    pub only: Vec<String>,
}

/// How reports are printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Plain,
    Markdown,
    Json,
}

impl Run {
    pub fn wants(&self, contender: &str) -> bool {
        has_one_of(contender, &self.only)
    }

    /// The first for quick runs, the second for full ones.
    pub fn scale<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Says what goes on, on stderr where stdout is for JSON.
    pub fn say(&self, text: &str) {
        match self.form {
            Form::Json => eprintln!("{text}"),
            _ => println!("{text}"),
        }
    }

    /// Shows progress on a terminal.
    pub fn progress(&self, text: &str) {
        if stderr().is_terminal() {
            let _ = write!(stderr(), "\r\x1b[K{text}");
        }
    }

    /// Whose turn it is in so many rounds, as indices: each once a round, and nobody always after the same
    /// one.
    pub fn turns(&self, title: &str, rounds: usize, contenders: usize) -> impl Iterator<Item = usize> {
        (0..rounds * contenders).map(move |nth| {
            let (round, turn) = (nth / contenders, nth % contenders);
            if turn == 0 {
                self.progress(&format!("{title}: round {} of {rounds}", round + 1));
            }
            (turn + round) % contenders
        })
    }

    /// Prints a table as soon as it is known: a later measurement may fail.
    pub fn done(&self, report: Report) -> Report {
        self.progress("");
        match self.form {
            Form::Plain => println!("{}", report.table.plain()),
            Form::Markdown => println!("{}", report.table.markdown()),
            Form::Json => return report,
        }
        for note in &report.notes {
            println!("{note}\n");
        }
        report
    }
}

/// What was measured.
pub struct Report {
    pub table: Table,
    /// What else a reader must know: what could not be measured, and why.
    pub notes: Vec<String>,
    pub json: Value,
}

/// Whether the name contains one of the words; without words, every name does.
pub fn has_one_of(name: &str, words: &[String]) -> bool {
    let name = name.to_lowercase();
    words.is_empty() || words.iter().any(|word| name.contains(&word.to_lowercase()))
}
