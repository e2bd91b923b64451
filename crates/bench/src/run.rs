//! The settings that every measurement gets, and the report that it returns.

use std::io::{IsTerminal, Write, stderr};

use serde_json::Value;

use crate::server::Program;
use crate::table::Table;

/// Settings of a run.
pub struct Run {
    pub program: Program,
    pub quick: bool,
    pub format: Format,
    /// A contender (dlock, or a lock that it is compared with) runs if its name contains one of these words.
    /// Empty means that every contender runs.
    pub only: Vec<String>,
}

/// Output format of the reports.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Plain,
    Markdown,
    Json,
}

/// The result of a measurement.
pub struct Report {
    pub table: Table,
    /// Explanations of the table, and measurements that could not be made, with the reason.
    pub notes: Vec<String>,
    pub json: Value,
}

impl Run {
    /// Returns true if the contender of this name runs.
    pub fn wants(&self, contender: &str) -> bool {
        contains_any(contender, &self.only)
    }

    /// Returns `quick` in a quick run, `full` in a full one.
    pub fn quick_or_full<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Prints a message, to stderr if stdout is for JSON.
    pub fn say(&self, text: &str) {
        match self.format {
            Format::Json => eprintln!("{text}"),
            _ => println!("{text}"),
        }
    }

    /// Shows progress on a terminal.
    pub fn progress(&self, text: &str) {
        if stderr().is_terminal() {
            let _ = write!(stderr(), "\r\x1b[K{text}");
        }
    }

    /// Returns the indices of the contenders in the order of their turns: each contender once per round. Each
    /// round begins with another contender.
    pub fn turns(&self, title: &str, rounds: usize, contenders: usize) -> impl Iterator<Item = usize> {
        (0..rounds * contenders).map(move |nth| {
            let (round, turn) = (nth / contenders, nth % contenders);
            if turn == 0 {
                self.progress(&format!("{title}: round {} of {rounds}", round + 1));
            }
            (turn + round) % contenders
        })
    }

    /// Prints a report as soon as it is complete, because a later measurement may fail. Only JSON is printed
    /// later, by `main` for all reports together. Returns the report.
    pub fn print(&self, report: Report) -> Report {
        self.progress("");
        match self.format {
            Format::Plain => println!("{}", report.table.plain()),
            Format::Markdown => println!("{}", report.table.markdown()),
            Format::Json => return report,
        }
        for note in &report.notes {
            println!("{note}\n");
        }
        report
    }
}

/// Returns true if the name contains one of the words, without regard to case, or if there are no words.
pub fn contains_any(name: &str, words: &[String]) -> bool {
    let name = name.to_lowercase();
    words.is_empty() || words.iter().any(|word| name.contains(&word.to_lowercase()))
}
