//! `dlock top`: servers, locks and recent incidents, live.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io::{IsTerminal, stdin, stdout};
use std::os::unix::ffi::OsStrExt;
use std::pin::Pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dlock_client::{Client, Inspected, Instant, Needed, now};
use nix::sys::signal::Signal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Stylize;
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use ratatui::{DefaultTerminal, Frame};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::args::Top;
use crate::exit::{Abort, Error};
use crate::lock_state;
use crate::operators::inspect::{View, ended_delay};
use crate::operators::list::{self, Lock, Walks};
use crate::operators::log::{self, Entry};
use crate::operators::{self, ClusterMap, Info, longest_wait};
use crate::output::{cell, escape_control};

/// Maximum number of locks in the list. A filter or another sort order shows the locks beyond it.
const MAX_LOCKS: usize = 100;

/// Number of requests to each server for its locks in one refresh. The server answers each with at most 250
/// locks, so more locks are read in the course of several refreshes.
const MAX_REQUESTS: usize = 20;

/// Time limit for these requests, once some locks are known.
const READ_LIMIT: Duration = Duration::from_millis(200);

/// A wait of this length is shown, in ms.
const LONG_WAIT: u64 = 1000;

/// Maximum number of log entries on the screen.
const MAX_ENTRIES: usize = 5;

pub async fn top(args: Top) -> Result<u8, Abort> {
    if !stdin().is_terminal() || !stdout().is_terminal() {
        return Err(Error::usage("top requires a terminal; `dlock list` and `dlock status` do not").into());
    }
    let client = args.servers.observer().await?;
    let (sender, keys) = unbounded_channel();
    let mut terminal = ratatui::try_init().map_err(|why| Error::system("the terminal", why))?;
    // The thread ends when the terminal closes.
    thread::spawn(move || while event::read().is_ok_and(|event| sender.send(event).is_ok()) {});
    let interval = args.interval.max(Duration::from_millis(100));
    let done = watch(&client, &mut terminal, keys, interval).await;
    ratatui::restore();
    done
}

async fn watch(
    client: &Client,
    terminal: &mut DefaultTerminal,
    mut keys: UnboundedReceiver<Event>,
    interval: Duration,
) -> Result<u8, Abort> {
    let listen = |kind| signal(kind).map_err(|why| Error::system("signals", why));
    let (mut terminate, mut hangup) = (listen(SignalKind::terminate())?, listen(SignalKind::hangup())?);
    // Only another process sends SIGINT. The terminal is in raw mode, in which Ctrl-C arrives as a key.
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut app = App::default();
    let finder = Cell::new(None);
    let mut next = ask(client, app.query(terminal), &finder, Duration::ZERO);
    loop {
        terminal.draw(|frame| draw(frame, &app)).map_err(|why| Error::system("the terminal", why))?;
        tokio::select! {
            event = keys.recv() => match event {
                None => return Ok(0),
                Some(Event::Key(key)) if key.kind == KeyEventKind::Press => match app.press(key) {
                    Action::Nothing => {}
                    Action::Refresh => next = ask(client, app.query(terminal), &finder, Duration::ZERO),
                    Action::Break(resource) => {
                        app.message = break_lock(client, &resource).await;
                        next = ask(client, app.query(terminal), &finder, Duration::ZERO);
                    }
                    Action::Quit => return Ok(0),
                },
                // The next iteration draws again, for example after a change of the terminal's size.
                Some(_) => {}
            },
            seen = &mut next => {
                app.update(seen);
                next = ask(client, app.query(terminal), &finder, interval);
            }
            _ = terminate.recv() => return Err(Abort::Signal(Signal::SIGTERM)),
            _ = interrupt.recv() => return Err(Abort::Signal(Signal::SIGINT)),
            _ = hangup.recv() => return Err(Abort::Signal(Signal::SIGHUP)),
        }
    }
}

/// The selection and order of the locks to show.
#[derive(Debug, Clone, Default)]
struct Query {
    sort: Sort,
    filter: String,
    /// Name of the lock to inspect. `None` means that the list is shown.
    inspected: Option<Vec<u8>>,
    /// Number of rows up to the last one that the screen can show.
    rows: usize,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Sort {
    #[default]
    Waiters,
    Held,
    LeaseLeft,
    Name,
}

impl Sort {
    fn sort(self, locks: &mut [Lock]) {
        match self {
            Sort::Waiters => locks.sort_by_key(|lock| std::cmp::Reverse((lock.waiters, lock.held_ms))),
            Sort::Held => locks.sort_by_key(|lock| std::cmp::Reverse(lock.held_ms)),
            Sort::LeaseLeft => locks.sort_by_key(|lock| lock.left_ms),
            Sort::Name => locks.sort_by(|one, other| one.name.cmp(&other.name)),
        }
    }
}

/// The servers' replies to one round of requests.
struct Seen {
    at: Instant,
    servers: Vec<Inspected<Info>>,
    /// The first [`MAX_LOCKS`] in the order of the query.
    locks: Vec<Lock>,
    /// Number of locks that match the filter, as far as they have been read.
    all_locks: u64,
    /// The first server that did not list its locks, with the reason, for the screen.
    list_error: Option<String>,
    log: Vec<Entry>,
    inspection: Option<String>,
    /// The longest wait now, if it has lasted for [`LONG_WAIT`].
    longest_wait: Option<String>,
    /// See [`ClusterMap::message`].
    cluster_fault: Option<String>,
}

/// Finds the first locks in the order of a query, among any number of locks. Each call of
/// [`read`](Self::read) reads a part of the servers' locks. After the last part, the next call begins with
/// the first one again.
struct Finder {
    sort: Sort,
    filter: String,
    walks: Walks,
    /// True while `walks` is only over the locks with waiters, which are first in the order by waiters.
    only_waited_for: bool,
    /// The first locks of this pass over the servers' locks.
    found: Vec<Lock>,
    /// Number of locks of this pass.
    count: u64,
    /// The same of the pass before. `None` during the first pass.
    last: Option<(Vec<Lock>, u64)>,
    list_error: Option<String>,
}

impl Finder {
    fn new(client: &Client, query: &Query) -> Finder {
        let (sort, filter) = (query.sort, query.filter.clone());
        let only_waited_for = sort == Sort::Waiters;
        let walks = walks(client, &filter, only_waited_for);
        Finder {
            sort,
            filter,
            walks,
            only_waited_for,
            found: Vec::new(),
            count: 0,
            last: None,
            list_error: None,
        }
    }

    /// Reads a part of the locks. The part is smaller if the servers answer slowly, so that the first locks
    /// are shown soon.
    async fn read(&mut self, client: &Client) {
        let began = now();
        for _ in 0..MAX_REQUESTS {
            if self.count > 0 && now().saturating_since(began) > READ_LIMIT {
                return;
            }
            match self.walks.next().await {
                Some(locks) => self.add(locks),
                None if self.only_waited_for && self.found.len() < MAX_LOCKS => {
                    // The locks with waiters come again, among the others.
                    self.count = 0;
                    self.begin(client, false);
                }
                None => {
                    self.last = Some((std::mem::take(&mut self.found), std::mem::take(&mut self.count)));
                    return self.begin(client, self.sort == Sort::Waiters);
                }
            }
            // In the order by waiters, any others follow the locks with waiters.
            if self.sort == Sort::Waiters && !self.only_waited_for && self.found.len() == MAX_LOCKS {
                self.last = Some((std::mem::take(&mut self.found), std::mem::take(&mut self.count)));
                return self.begin(client, true);
            }
        }
    }

    fn begin(&mut self, client: &Client, only_waited_for: bool) {
        let silent = self.walks.silent.first();
        self.list_error = silent.map(|(server, why)| escape_control(format_args!("{server}: {why}")));
        self.walks = walks(client, &self.filter, only_waited_for);
        self.only_waited_for = only_waited_for;
    }

    fn add(&mut self, locks: Vec<Lock>) {
        self.count += locks.len() as u64;
        merge(&mut self.found, locks);
        self.sort.sort(&mut self.found);
        self.found.truncate(MAX_LOCKS);
    }

    /// The first locks of this pass and the one before.
    fn first(&self) -> Vec<Lock> {
        let mut locks = self.last.as_ref().map_or_else(Vec::new, |(locks, _)| locks.clone());
        merge(&mut locks, self.found.clone());
        self.sort.sort(&mut locks);
        locks.truncate(MAX_LOCKS);
        locks
    }
}

fn walks(client: &Client, filter: &str, only_waited_for: bool) -> Walks {
    let pattern = match filter.contains(['*', '?', '[']) {
        true => filter.to_owned(),
        false => format!("*{filter}*"),
    };
    let pattern = Some(pattern.as_bytes()).filter(|_| !filter.is_empty());
    Walks::new(client, pattern, only_waited_for)
}

/// Adds locks, and replaces those of the same names.
fn merge(locks: &mut Vec<Lock>, newer: Vec<Lock>) {
    let names: HashSet<&[u8]> = newer.iter().map(|lock| &*lock.name).collect();
    locks.retain(|lock| !names.contains(&*lock.name));
    locks.extend(newer);
}

type Asking<'a> = Pin<Box<dyn Future<Output = Seen> + 'a>>;

/// Asks the servers once `after` has passed. Continues with the finder of the call before if the order and
/// the filter are the same.
fn ask<'a>(
    client: &'a Client,
    query: Query,
    finder: &'a Cell<Option<Finder>>,
    after: Duration,
) -> Asking<'a> {
    Box::pin(async move {
        tokio::time::sleep(after).await;
        let is_same = |finder: &Finder| finder.sort == query.sort && finder.filter == query.filter;
        let current = finder.take().filter(is_same);
        let mut current = current.unwrap_or_else(|| Finder::new(client, &query));
        // Finds the masters that the following requests ask.
        let map = ClusterMap::ask(client).await;
        let (servers, (), log) = tokio::join!(
            operators::ask_info(client),
            current.read(client),
            client.log(MAX_ENTRIES as u32, None)
        );
        let mut locks = current.first();
        // The values of the other rows are those of the last time at which the servers listed the locks.
        let hidden = locks.split_off(query.rows.min(locks.len()));
        locks = list::with_holders(client, locks, |_| true).await;
        locks.retain(Lock::exists);
        query.sort.sort(&mut locks);
        locks.extend(hidden);
        let inspection = match &query.inspected {
            Some(resource) => Some(View::of(client, OsStr::from_bytes(resource)).await.text()),
            None => None,
        };
        let longest_wait = longest_wait::find(client, &servers).await;
        let longest_wait =
            longest_wait.filter(|longest| longest.ms >= LONG_WAIT).map(|longest| longest.text());
        let held = servers.iter().filter_map(|seen| seen.answer.found());
        let held = held.map(|info| info.number("dlock_held"));
        let held = match client.needed() {
            Needed::Every => held.sum(),
            _ => held.max().unwrap_or(0),
        };
        let read = current.count.max(current.last.as_ref().map_or(0, |(_, count)| *count));
        let list_error = current.list_error.clone();
        finder.set(Some(current));
        Seen {
            at: now(),
            servers,
            locks,
            all_locks: if query.filter.is_empty() { held.max(read) } else { read },
            list_error,
            log: log::newest(log, MAX_ENTRIES),
            inspection,
            longest_wait,
            cluster_fault: map.message(),
        }
    })
}

/// Breaks a lock and returns the message to show.
async fn break_lock(client: &Client, resource: &[u8]) -> String {
    let delay_ms = lock_state::closed_ms(&client.inspect(resource).await);
    let answers = client.break_holds(resource).await;
    let ended: u64 = answers.iter().filter_map(|seen| seen.answer.found()).sum();
    let silent = answers.iter().filter(|seen| seen.answer.found().is_none()).count();
    let name = cell(String::from_utf8_lossy(resource));
    let delay = if delay_ms > 0 { ended_delay(delay_ms) } else { String::new() };
    match silent {
        0 => format!("{name}: ended {ended} holds{delay}"),
        _ => {
            format!("{name}: ended {ended} holds{delay}; {silent} servers did not answer, and may have more")
        }
    }
}

/// The effect of a key on the main loop.
enum Action {
    Nothing,
    Refresh,
    Break(Vec<u8>),
    Quit,
}

/// Meaning of the next key.
#[derive(Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Locks,
    /// The key edits the filter.
    Filter,
    /// The key confirms or declines to break the lock with this name.
    Question(Vec<u8>),
}

#[derive(Default)]
struct App {
    query: Query,
    mode: Mode,
    /// Name of the selected lock. It stays selected when its row changes.
    selected: Option<Vec<u8>>,
    seen: Option<Seen>,
    grants_per_second: f64,
    message: String,
}

impl App {
    fn update(&mut self, seen: Seen) {
        if let Some(before) = &self.seen {
            let seconds = seen.at.saturating_since(before.at).as_secs_f64();
            let grants = |info: &Info| info.number("dlock_grants");
            let grants_by_server = |servers: &[Inspected<Info>]| -> HashMap<Arc<str>, u64> {
                let up =
                    servers.iter().filter_map(|reply| Some((reply.server.clone(), reply.answer.found()?)));
                up.map(|(server, info)| (server, grants(info))).collect()
            };
            let old = grants_by_server(&before.servers);
            let new = grants_by_server(&seen.servers).into_iter();
            // `checked_sub`, because the count of a restarted server begins at 0 again.
            let added = new.filter_map(|(server, grants)| grants.checked_sub(*old.get(&server)?));
            self.grants_per_second = added.sum::<u64>() as f64 / seconds.max(0.001);
        }
        self.seen = Some(seen);
    }

    /// The query for this size of the terminal.
    fn query(&self, terminal: &DefaultTerminal) -> Query {
        let height = terminal.size().map_or(MAX_LOCKS, |size| size.height.into());
        Query { rows: self.row() + height, ..self.query.clone() }
    }

    fn locks(&self) -> &[Lock] {
        self.seen.as_ref().map_or(&[], |seen| &seen.locks)
    }

    /// The row of the selected lock, or the first row if the lock is no longer shown.
    fn row(&self) -> usize {
        let selected = self.selected.as_ref();
        self.locks().iter().position(|lock| Some(&lock.name) == selected).unwrap_or(0)
    }

    fn press(&mut self, key: KeyEvent) -> Action {
        self.message.clear();
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Action::Quit;
        }
        match (std::mem::take(&mut self.mode), key.code) {
            (Mode::Question(resource), KeyCode::Char('y' | 'Y')) => return Action::Break(resource),
            (Mode::Question(_), _) => self.message = "no hold was ended".into(),
            (Mode::Filter, KeyCode::Enter | KeyCode::Esc) => return Action::Refresh,
            (Mode::Filter, code) => {
                match code {
                    KeyCode::Char(char) => self.query.filter.push(char),
                    KeyCode::Backspace => drop(self.query.filter.pop()),
                    _ => {}
                }
                self.mode = Mode::Filter;
            }
            (Mode::Locks, code) => return self.choose(code),
        }
        Action::Nothing
    }

    /// Handles a key in the list of locks, or while a lock is inspected.
    fn choose(&mut self, code: KeyCode) -> Action {
        let (row, last) = (self.row(), self.locks().len().saturating_sub(1));
        let name = |row: usize| self.locks().get(row).map(|lock| lock.name.clone());
        match code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Esc | KeyCode::Enter if self.query.inspected.is_some() => self.query.inspected = None,
            KeyCode::Enter => self.query.inspected = name(row),
            KeyCode::Up | KeyCode::Char('k') => self.selected = name(row.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.selected = name((row + 1).min(last)),
            KeyCode::Char('b') => {
                let resource = self.query.inspected.clone().or_else(|| name(row));
                self.mode = resource.map_or(Mode::Locks, Mode::Question);
            }
            KeyCode::Char('/') => {
                self.query.filter.clear();
                self.mode = Mode::Filter;
            }
            KeyCode::Char('w') => self.query.sort = Sort::Waiters,
            KeyCode::Char('h') => self.query.sort = Sort::Held,
            KeyCode::Char('l') => self.query.sort = Sort::LeaseLeft,
            KeyCode::Char('n') => self.query.sort = Sort::Name,
            _ => {}
        }
        match code {
            KeyCode::Esc | KeyCode::Enter | KeyCode::Char('w' | 'h' | 'l' | 'n') => Action::Refresh,
            _ => Action::Nothing,
        }
    }
}

/// Draws the screen, with the tables of `status`, `list` and `log`.
fn draw(frame: &mut Frame, app: &App) {
    let Some(seen) = &app.seen else {
        return frame.render_widget(Paragraph::new("asking the servers"), frame.area());
    };
    let servers = (seen.servers.len() as u16).saturating_add(1).min(frame.area().height / 3);
    let log = if seen.log.is_empty() { 0 } else { seen.log.len() as u16 + 2 };
    let heights = [1, servers, 1].map(Constraint::Length).into_iter();
    let heights = heights.chain([Constraint::Min(3), Constraint::Length(log), Constraint::Length(1)]);
    let [head, servers, _, middle, incidents, foot] = Layout::vertical(heights).areas(frame.area());
    frame.render_widget(summary(app, seen), head);
    frame.render_widget(Paragraph::new(operators::servers_table(&seen.servers, None)), servers);
    match &seen.inspection {
        Some(text) if app.query.inspected.is_some() => {
            frame.render_widget(Paragraph::new(text.as_str()), middle)
        }
        _ => frame.render_widget(locks(app, seen, middle), middle),
    }
    frame.render_widget(Paragraph::new(format!("\n{}", log::text(&seen.log))), incidents);
    frame.render_widget(Line::from(prompt(app)).reversed(), foot);
}

fn summary(app: &App, seen: &Seen) -> Line<'static> {
    let up: Vec<_> = seen.servers.iter().filter_map(|reply| reply.answer.found()).collect();
    let highest_p99 = up.iter().map(|info| info.number("dlock_waited_ms_p99")).max().unwrap_or(0);
    let text = format!(
        "dlock top: {} of {} servers, {} locks, {:.0} grants/s, p99 of waits {highest_p99} ms",
        up.len(),
        seen.servers.len(),
        seen.all_locks,
        app.grants_per_second,
    );
    let longest = seen.longest_wait.as_ref().map(|longest| format!(", longest wait {longest}"));
    let fault = seen.cluster_fault.as_ref().map(|fault| format!(", {fault}"));
    let text = text + &fault.unwrap_or_default() + &longest.unwrap_or_default();
    Line::from(text).bold()
}

/// The list of locks, scrolled so that the selected lock is visible.
fn locks(app: &App, seen: &Seen, area: Rect) -> Paragraph<'static> {
    if let (true, Some(why)) = (seen.locks.is_empty(), &seen.list_error) {
        return Paragraph::new(why.clone());
    }
    // Row 0 is the heading.
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
        Sort::LeaseLeft => "lease left",
        Sort::Name => "name",
    };
    let filter = escape_control(&app.query.filter);
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
