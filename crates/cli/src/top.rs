//! `dlock top`: servers, locks and what went wrong, live.

mod view;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{IsTerminal, stdin, stdout};
use std::os::unix::ffi::OsStrExt;
use std::pin::Pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dlock_client::{Client, Inspected, Instant, now};
use nix::sys::signal::Signal;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::args::Top;
use crate::exit::Error;
use crate::inspect::View;
use crate::list::{self, Lock};
use crate::lock::Abort;
use crate::log::{self, Entry};
use crate::shown::plain;
use crate::status::{self, Info};
use crate::table::cell;

/// How many locks are shown; of more, a filter shows others.
const MOST_LOCKS: usize = 100;

/// How many entries of the log are shown.
const MOST_ENTRIES: usize = 5;

pub async fn top(args: Top) -> Result<u8, Abort> {
    if !stdin().is_terminal() || !stdout().is_terminal() {
        return Err(Error::usage("top requires a terminal; `dlock list` and `dlock status` do not").into());
    }
    let client = args.servers.observer().await?;
    let (to, keys) = unbounded_channel();
    let mut terminal = ratatui::try_init().map_err(|why| Error::system("the terminal", why))?;
    // Ends with the terminal.
    thread::spawn(move || while event::read().is_ok_and(|event| to.send(event).is_ok()) {});
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
    let (mut end, mut hangup) = (listen(SignalKind::terminate())?, listen(SignalKind::hangup())?);
    // Ctrl-C is a key here: this one was sent.
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut app = App::default();
    let mut next = look(client, &app.query, Duration::ZERO);
    loop {
        terminal.draw(|frame| view::draw(frame, &app)).map_err(|why| Error::system("the terminal", why))?;
        tokio::select! {
            event = keys.recv() => match event {
                None => return Ok(0),
                Some(Event::Key(key)) if key.kind == KeyEventKind::Press => match app.press(key) {
                    Act::Nothing => {}
                    Act::Look => next = look(client, &app.query, Duration::ZERO),
                    Act::Break(resource) => {
                        app.message = broken(client, &resource).await;
                        next = look(client, &app.query, Duration::ZERO);
                    }
                    Act::Quit => return Ok(0),
                },
                // Drawn anew in its new size.
                Some(_) => {}
            },
            seen = &mut next => {
                app.update(seen);
                next = look(client, &app.query, interval);
            }
            _ = end.recv() => return Err(Abort::Signal(Signal::SIGTERM)),
            _ = interrupt.recv() => return Err(Abort::Signal(Signal::SIGINT)),
            _ = hangup.recv() => return Err(Abort::Signal(Signal::SIGHUP)),
        }
    }
}

/// What is looked for.
#[derive(Debug, Clone, Default)]
struct Query {
    sort: Sort,
    filter: String,
    inspected: Option<Vec<u8>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Sort {
    #[default]
    Waiters,
    Held,
    Left,
    Name,
}

impl Sort {
    fn sort(self, locks: &mut [Lock]) {
        match self {
            Sort::Waiters => locks.sort_by_key(|lock| std::cmp::Reverse((lock.waiters, lock.held_ms))),
            Sort::Held => locks.sort_by_key(|lock| std::cmp::Reverse(lock.held_ms)),
            Sort::Left => locks.sort_by_key(|lock| lock.left_ms),
            Sort::Name => {}
        }
    }
}

/// What was seen.
struct Seen {
    at: Instant,
    servers: Vec<Inspected<Info>>,
    /// Sorted, not all of them.
    locks: Vec<Lock>,
    all_locks: usize,
    /// Why a server did not list its locks.
    unlisted: Option<String>,
    log: Vec<Entry>,
    inspection: Option<String>,
}

type Looking<'a> = Pin<Box<dyn Future<Output = Seen> + 'a>>;

fn look<'a>(client: &'a Client, query: &Query, after: Duration) -> Looking<'a> {
    let query = query.clone();
    Box::pin(async move {
        tokio::time::sleep(after).await;
        let pattern = match query.filter.contains(['*', '?', '[']) {
            true => query.filter.clone(),
            false => format!("*{}*", query.filter),
        };
        let pattern = Some(pattern.as_bytes()).filter(|_| !query.filter.is_empty());
        let (servers, (mut locks, silent), log) = tokio::join!(
            status::ask(client),
            list::find(client, pattern),
            client.log(MOST_ENTRIES as u32, None)
        );
        let all_locks = locks.len();
        query.sort.sort(&mut locks);
        locks.truncate(MOST_LOCKS);
        let inspection = match &query.inspected {
            Some(resource) => Some(View::of(client, OsStr::from_bytes(resource)).await.text()),
            None => None,
        };
        Seen {
            at: now(),
            servers,
            locks: list::with_holders(client, locks).await,
            all_locks,
            unlisted: silent.first().map(|silent| plain(format_args!("{}: {}", silent.server, silent.why))),
            log: log::newest(log, MOST_ENTRIES),
            inspection,
        }
    })
}

async fn broken(client: &Client, resource: &[u8]) -> String {
    let answers = client.break_holds(resource).await;
    let ended: u64 = answers.iter().filter_map(|seen| seen.answer.found()).sum();
    let silent = answers.iter().filter(|seen| seen.answer.found().is_none()).count();
    let name = cell(String::from_utf8_lossy(resource));
    match silent {
        0 => format!("{name}: ended {ended} holds"),
        _ => format!("{name}: ended {ended} holds; {silent} servers did not answer, and may still have it"),
    }
}

/// What a key asks for.
enum Act {
    Nothing,
    Look,
    Break(Vec<u8>),
    Quit,
}

/// What the keys are for.
#[derive(Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Locks,
    /// The filter is being typed.
    Filter,
    /// Whether to break it is being asked.
    Question(Vec<u8>),
}

#[derive(Default)]
struct App {
    query: Query,
    mode: Mode,
    /// A lock, by its name: it stays selected where it goes.
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
            let of = |servers: &[Inspected<Info>]| -> HashMap<Arc<str>, u64> {
                let up = servers.iter().filter_map(|seen| Some((seen.server.clone(), seen.answer.found()?)));
                up.map(|(server, info)| (server, grants(info))).collect()
            };
            let old = of(&before.servers);
            let new = of(&seen.servers).into_iter();
            let more = new.filter_map(|(server, grants)| grants.checked_sub(*old.get(&server)?));
            self.grants_per_second = more.sum::<u64>() as f64 / seconds.max(0.001);
        }
        self.seen = Some(seen);
    }

    fn locks(&self) -> &[Lock] {
        self.seen.as_ref().map_or(&[], |seen| &seen.locks)
    }

    /// The row of the selected lock; the first if it is gone.
    fn row(&self) -> usize {
        let selected = self.selected.as_ref();
        self.locks().iter().position(|lock| Some(&lock.name) == selected).unwrap_or(0)
    }

    fn press(&mut self, key: KeyEvent) -> Act {
        self.message.clear();
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Act::Quit;
        }
        match (std::mem::take(&mut self.mode), key.code) {
            (Mode::Question(resource), KeyCode::Char('y' | 'Y')) => return Act::Break(resource),
            (Mode::Question(_), _) => self.message = "nothing was broken".into(),
            (Mode::Filter, KeyCode::Enter | KeyCode::Esc) => return Act::Look,
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
        Act::Nothing
    }

    fn choose(&mut self, code: KeyCode) -> Act {
        let (row, last) = (self.row(), self.locks().len().saturating_sub(1));
        let name = |row: usize| self.locks().get(row).map(|lock| lock.name.clone());
        match code {
            KeyCode::Char('q') => return Act::Quit,
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
            KeyCode::Char('l') => self.query.sort = Sort::Left,
            KeyCode::Char('n') => self.query.sort = Sort::Name,
            _ => {}
        }
        match code {
            KeyCode::Esc | KeyCode::Enter | KeyCode::Char('w' | 'h' | 'l' | 'n') => Act::Look,
            _ => Act::Nothing,
        }
    }
}
