//! Medians, ratios with their spread, and tables in plain text and Markdown.

use serde_json::{Value, json};

/// Returns the median. NaN if there are no values.
pub fn median(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// Returns a percentile by the nearest-rank method: the smallest value such that at least this share of the
/// values is not above it. NaN if there are no values.
pub fn percentile(values: &[f64], share: f64) -> f64 {
    let at = (values.len() as f64 * share).ceil() as usize;
    sorted(values).get(at.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Formats a number in few digits: 812 k, 1.23 M.
pub fn si(number: f64) -> String {
    match number {
        n if n >= 1e6 => format!("{:.2} M", n / 1e6),
        n if n >= 1e4 => format!("{:.0} k", n / 1e3),
        n if n >= 1e3 => format!("{:.1} k", n / 1e3),
        n => format!("{n:.0}"),
    }
}

/// Formats microseconds in few digits: 18.2 us, 3.41 ms, 1.20 s.
pub fn time(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{:.2} s", us / 1e6),
        us if us >= 1e3 => format!("{:.2} ms", us / 1e3),
        us => format!("{us:.1} us"),
    }
}

/// Returns Jain's fairness index: 1 if all n shares are equal, 1/n if one share is everything.
pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// Ratios of a contender's figures to the baseline's, one for each round. The two figures of a ratio were
/// measured one after the other.
pub struct Ratios(Vec<f64>);

impl Ratios {
    pub fn of(values: &[f64], baseline: &[f64]) -> Ratios {
        Ratios(values.iter().zip(baseline).map(|(value, baseline)| value / baseline).collect())
    }

    pub fn median(&self) -> String {
        format!("{:.2}", median(&self.0))
    }

    pub fn spread(&self) -> String {
        let (min, max) = self.min_and_max();
        format!("{min:.2}..{max:.2}")
    }

    pub fn json(&self) -> Value {
        let (min, max) = self.min_and_max();
        json!({ "median": median(&self.0), "min": min, "max": max })
    }

    fn min_and_max(&self) -> (f64, f64) {
        let min = self.0.iter().copied().fold(f64::NAN, f64::min);
        (min, self.0.iter().copied().fold(f64::NAN, f64::max))
    }
}

/// Rows under a head. The first column holds text, the others hold numbers.
pub struct Table {
    title: String,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(title: &str, head: &[&str]) -> Table {
        Table { title: title.into(), rows: vec![head.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    pub fn plain(&self) -> String {
        let lines = self.lines("", "  ", "");
        format!("{}\n{}", self.title, lines.iter().map(|line| format!("  {line}\n")).collect::<String>())
    }

    pub fn markdown(&self) -> String {
        let mut lines = self.lines("| ", " | ", " |");
        let columns = self.rows[0].len();
        lines.insert(1, format!("|---|{}", "---:|".repeat(columns - 1)));
        format!("**{}**\n\n{}\n", self.title, lines.join("\n"))
    }

    fn lines(&self, before: &str, between: &str, after: &str) -> Vec<String> {
        let width = |column: usize| self.rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.rows[0].len()).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            format!("{before}{}{after}", cells.collect::<Vec<_>>().join(between))
        };
        self.rows.iter().map(line).collect()
    }
}
