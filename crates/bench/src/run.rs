//! What every measurement needs, and what it gives back.

use std::io::{IsTerminal, Write, stderr};

use serde_json::Value;

use crate::server::Program;
use crate::table::Table;

/// How to measure.
pub struct Run {
    pub program: Program,
    pub quick: bool,
    pub form: Form,
}

/// How reports are printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Plain,
    Markdown,
    Json,
}

impl Run {
    /// Says on a terminal how far it is.
    pub fn progress(&self, text: &str) {
        if stderr().is_terminal() {
            let _ = write!(stderr(), "\r\x1b[K{text}");
        }
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
            println!("Not measured: {note}\n");
        }
        report
    }
}

/// What was measured.
pub struct Report {
    pub table: Table,
    /// What could not be measured, and why.
    pub notes: Vec<String>,
    pub json: Value,
}
