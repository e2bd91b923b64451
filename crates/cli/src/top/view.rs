//! What `dlock top` shows. The tables are those of `status`, `list` and `log`.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Stylize;
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use super::{App, Mode, Seen, Sort};
use crate::shown::plain;
use crate::table::cell;
use crate::{list, log, status};

pub fn draw(frame: &mut Frame, app: &App) {
    let Some(seen) = &app.seen else {
        return frame.render_widget(Paragraph::new("asking the servers"), frame.area());
    };
    let servers = (seen.servers.len() as u16).saturating_add(1).min(frame.area().height / 3);
    let log = if seen.log.is_empty() { 0 } else { seen.log.len() as u16 + 2 };
    let heights = [1, servers, 1].map(Constraint::Length).into_iter();
    let heights = heights.chain([Constraint::Min(3), Constraint::Length(log), Constraint::Length(1)]);
    let [head, servers, _, middle, lately, foot] = Layout::vertical(heights).areas(frame.area());
    frame.render_widget(summary(app, seen), head);
    frame.render_widget(Paragraph::new(status::text(&seen.servers)), servers);
    match &seen.inspection {
        Some(text) if app.query.inspected.is_some() => {
            frame.render_widget(Paragraph::new(text.as_str()), middle)
        }
        _ => frame.render_widget(locks(app, seen, middle), middle),
    }
    frame.render_widget(Paragraph::new(format!("\n{}", log::text(&seen.log))), lately);
    frame.render_widget(Line::from(prompt(app)).reversed(), foot);
}

fn summary(app: &App, seen: &Seen) -> Line<'static> {
    let up: Vec<_> = seen.servers.iter().filter_map(|seen| seen.answer.found()).collect();
    let longest = up.iter().map(|info| info.number("dlock_waited_ms_p99")).max().unwrap_or(0);
    let text = format!(
        "dlock top: {} of {} servers, {} locks, {:.0} grants/s, p99 of waits {longest} ms",
        up.len(),
        seen.servers.len(),
        seen.all_locks,
        app.grants_per_second,
    );
    Line::from(text).bold()
}

/// Scrolled so that the selected one is in sight.
fn locks(app: &App, seen: &Seen, area: Rect) -> Paragraph<'static> {
    if let (true, Some(why)) = (seen.locks.is_empty(), &seen.unlisted) {
        return Paragraph::new(why.clone());
    }
    let selected = app.row() + 1;
    let first = (selected + 1).saturating_sub(usize::from(area.height)).max(1);
    let text = list::text(&seen.locks);
    let lines = text.lines().enumerate().filter(|(row, _)| *row == 0 || *row >= first);
    let lines = lines.map(|(row, line)| {
        let line = Line::from(line.to_owned());
        if row == selected { line.reversed() } else { line }
    });
    Paragraph::new(lines.collect::<Vec<_>>())
}

fn prompt(app: &App) -> String {
    let sorted = match app.query.sort {
        Sort::Waiters => "waiters",
        Sort::Held => "time held",
        Sort::Left => "lease left",
        Sort::Name => "name",
    };
    let filter = plain(&app.query.filter);
    match &app.mode {
        Mode::Filter => format!("filter: {filter}_"),
        Mode::Question(name) => {
            format!("End every hold of {}? [y/N]", cell(String::from_utf8_lossy(name)))
        }
        Mode::Locks if !app.message.is_empty() => app.message.clone(),
        Mode::Locks => {
            let filtered = if filter.is_empty() { String::new() } else { format!(", only {filter}") };
            format!("by {sorted}{filtered}   w h l n sort   / filter   enter inspect   b break   q quit")
        }
    }
}
