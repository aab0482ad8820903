//! The live screen.

use super::client::Client;
use super::find::Places;
use super::sample;
use super::snapshot::{CELL_COUNT, HEADINGS, PoolView, Process, TAG_HEADINGS, tag_cells};
use anyhow::{Context, Result};
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use gpumem_trace::pool::sys::text::Shown;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table, TableState};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `first` is a sample from now.
pub(super) fn run(places: Places, first: Vec<Process>, folder: &Path) -> Result<()> {
    let is_over = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&is_over))?;
    }
    let samples = sample::start(places);
    // Restores the terminal in a panic too.
    let mut terminal =
        ratatui::try_init().context("the terminal cannot be used; print one table with --once")?;
    let mut view = View::new(folder);
    view.take(first);
    let shown = loop {
        match samples.try_recv() {
            Ok(processes) => view.take(processes),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                break Err(anyhow::anyhow!("the thread that asks the processes has ended"));
            }
        }
        if let Err(error) = terminal.draw(|frame| view.draw(frame)) {
            break Err(error.into());
        }
        match event::poll(FRAME).and_then(|is_there| is_there.then(event::read).transpose()) {
            Ok(Some(Event::Key(key))) if key.kind != KeyEventKind::Release => {
                let ends = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                if ends || !view.press(key.code) {
                    break Ok(());
                }
            }
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => break Err(error.into()),
        }
        if is_over.load(Ordering::SeqCst) {
            break Ok(());
        }
    };
    ratatui::restore();
    shown
}

/// A line of the upper table: a process, or one of its pools.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Chosen {
    socket: PathBuf,
    pool: Option<u64>,
}

struct View<'a> {
    folder: &'a Path,
    now: Vec<Process>,
    before: Vec<Process>,
    chosen: Option<Chosen>,
    message: String,
}

impl<'a> View<'a> {
    fn new(folder: &'a Path) -> Self {
        Self { folder, now: Vec::new(), before: Vec::new(), chosen: None, message: String::new() }
    }

    fn take(&mut self, processes: Vec<Process>) {
        self.before = core::mem::replace(&mut self.now, processes);
        let lines = self.lines();
        if self.chosen.as_ref().is_none_or(|chosen| !lines.contains(chosen)) {
            // A process that has ended takes the choice with it.
            self.chosen = lines.iter().find(|line| line.pool.is_some()).or(lines.first()).cloned();
        }
    }

    fn lines(&self) -> Vec<Chosen> {
        let mut lines = Vec::new();
        for process in &self.now {
            let line = |pool| Chosen { socket: process.socket.clone(), pool };
            lines.push(line(None));
            lines.extend(process.pools().map(|pool| line(Some(pool.id()))));
        }
        lines
    }

    /// Handles a key. False to quit.
    fn press(&mut self, key: KeyCode) -> bool {
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::Char('r') => self.act(Self::record),
            KeyCode::Char('d') => self.act(Self::flight),
            _ => {}
        }
        true
    }

    fn go(&mut self, by: isize) {
        let lines = self.lines();
        let at = lines.iter().position(|line| Some(line) == self.chosen.as_ref()).unwrap_or(0);
        self.chosen = lines.get(at.saturating_add_signed(by).min(lines.len().saturating_sub(1))).cloned();
    }

    fn process(&self) -> Option<&Process> {
        let chosen = self.chosen.as_ref()?;
        self.now.iter().find(|process| process.socket == chosen.socket)
    }

    fn act(&mut self, action: fn(&Self, &Process) -> Result<String>) {
        let Some(process) = self.process() else { return };
        let done = action(self, process);
        self.message = done.unwrap_or_else(|error| format!("error: {error:#}"));
    }

    /// Starts or stops a recording.
    fn record(&self, process: &Process) -> Result<String> {
        if process.recording().is_some() {
            let answer = ask(process, &json!({ "do": "stop" }))?;
            let dropped = answer["dropped_events"].as_u64().unwrap_or(0);
            let lost = if dropped > 0 { format!(" ({dropped} events were lost)") } else { String::new() };
            let path = shown(&answer["path"]);
            return Ok(format!("recorded into {path}{lost}; next: gpumem report {path}"));
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let path = self.folder.join(format!("gpumem-{}-{now}.trace", process.pid().unwrap_or(0)));
        let answer = ask(process, &json!({ "do": "record", "path": path }))?;
        Ok(format!("recording into {}; r stops it", shown(&answer["path"])))
    }

    fn flight(&self, process: &Process) -> Result<String> {
        let answer = ask(process, &json!({ "do": "flight" }))?;
        let paths: Vec<_> = answer["paths"].as_array().into_iter().flatten().map(shown).collect();
        Ok(format!("written: {}; next: gpumem report {}", paths.join(", "), paths.join(" ")))
    }

    /// The same pool in the previous sample, and the seconds since.
    fn earlier(&self, process: &Process, id: u64) -> Option<(PoolView<'_>, f64)> {
        let before =
            self.before.iter().find(|one| one.socket == process.socket && one.pid() == process.pid())?;
        let pool = before.pools().find(|pool| pool.id() == id)?;
        Some((pool, process.at.duration_since(before.at).as_secs_f64()))
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let tag_count = self.pool().map_or(0, |(_, pool)| pool.tags().count());
        let tag_lines =
            if tag_count == 0 { 0 } else { (tag_count + 3).min(usize::from(frame.area().height / 2)) as u16 };
        let parts =
            [Constraint::Min(3), Constraint::Length(tag_lines), Constraint::Length(1), Constraint::Length(1)];
        let [pools, tags, message, keys] = Layout::vertical(parts).areas(frame.area());
        self.draw_pools(frame, pools);
        if tag_lines > 0 {
            self.draw_tags(frame, tags);
        }
        frame.render_widget(Line::from(self.message.as_str()).style(Style::new().fg(Color::Yellow)), message);
        let words = "up/down or j/k choose   r record   d flight record   q quit";
        frame.render_widget(Line::from(words).style(Style::new().add_modifier(Modifier::DIM)), keys);
    }

    fn pool(&self) -> Option<(&Process, PoolView<'_>)> {
        let (process, id) = (self.process()?, self.chosen.as_ref()?.pool?);
        Some((process, process.pools().find(|pool| pool.id() == id)?))
    }

    fn draw_pools(&self, frame: &mut Frame<'_>, area: Rect) {
        let block = Block::new().borders(Borders::TOP).title(" gpumem top ");
        if self.now.is_empty() {
            let text =
                Paragraph::new("no process serves a status socket any more; start one with GPUMEM_STATUS=on");
            return frame.render_widget(text.block(block), area);
        }
        let (mut rows, mut cells) = (Vec::new(), Vec::new());
        for process in &self.now {
            let style = if process.is_silent() { Style::new().fg(Color::Red) } else { Style::new() };
            rows.push((vec![process.title()], style.add_modifier(Modifier::BOLD)));
            for pool in process.pools() {
                let of_pool = pool.cells(self.earlier(process, pool.id()));
                let refused = of_pool[9] != "0" && !of_pool[9].is_empty();
                let style = if refused { Style::new().fg(Color::Yellow) } else { Style::new() };
                rows.push((of_pool.to_vec(), style));
                cells.push(of_pool);
            }
        }
        let width = |column: usize| {
            let widest = cells.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0);
            Constraint::Length(widest.max(HEADINGS[column].len()).min(40) as u16)
        };
        let widths: Vec<_> = (0..CELL_COUNT).map(width).collect();
        let chosen = self.lines().iter().position(|line| Some(line) == self.chosen.as_ref());
        let bold = Style::new().add_modifier(Modifier::BOLD);
        // A process has the whole width: its line is drawn above the empty row of the table.
        let lines = rows.iter().map(|(cells, style)| {
            let cells = if cells.len() == 1 { &[][..] } else { &cells[..] };
            row(cells, 2).style(*style)
        });
        let table = Table::new(lines, widths)
            .header(row(&HEADINGS.map(String::from), 2).style(bold))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
            .column_spacing(2)
            .block(block);
        let mut state = TableState::new().with_selected(chosen);
        frame.render_stateful_widget(table, area, &mut state);
        let first = state.offset();
        let visible = rows.iter().enumerate().skip(first).take(usize::from(area.height.saturating_sub(2)));
        for (index, (cells, style)) in visible.filter(|(_, (cells, _))| cells.len() == 1) {
            let is_chosen = chosen == Some(index);
            let style = if is_chosen { style.add_modifier(Modifier::REVERSED) } else { *style };
            let place = Rect { y: area.y + 2 + (index - first) as u16, height: 1, ..area };
            frame.render_widget(Line::from(cells[0].as_str()).style(style), place);
        }
    }

    fn draw_tags(&self, frame: &mut Frame<'_>, area: Rect) {
        let Some((process, pool)) = self.pool() else { return };
        let earlier = self.earlier(process, pool.id());
        let mut tags: Vec<&Value> = pool.tags().collect();
        tags.sort_by_key(|tag| core::cmp::Reverse(tag["in_use_bytes"].as_u64()));
        let rows: Vec<_> = tags.into_iter().map(|tag| tag_cells(tag, earlier)).collect();
        let width = |column: usize| {
            let widest = rows.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0);
            Constraint::Length(widest.max(TAG_HEADINGS[column].len()).min(60) as u16)
        };
        let widths: Vec<_> = (0..TAG_HEADINGS.len()).map(width).collect();
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let table = Table::new(rows.iter().map(|cells| row(cells, 1)), widths)
            .header(row(&TAG_HEADINGS.map(String::from), 1).style(bold))
            .column_spacing(2)
            .block(Block::new().borders(Borders::TOP).title(format!(" tags of {} ", pool.name())));
        frame.render_widget(table, area);
    }
}

/// A row whose first `left_count` cells are text, and the others figures.
fn row(cells: &[String], left_count: usize) -> Row<'static> {
    Row::new(cells.iter().enumerate().map(|(column, cell)| {
        let line = Line::from(cell.clone());
        Cell::from(if column < left_count { line } else { line.right_aligned() })
    }))
}

fn ask(process: &Process, request: &Value) -> Result<Value> {
    Client::connect(&process.socket, TIMEOUT)?.ask(request)
}

fn shown(path: &Value) -> String {
    Shown::path(Path::new(path.as_str().unwrap_or("?"))).to_string()
}

/// The time that a key waits for at most, and the screen for a new sample.
const FRAME: Duration = Duration::from_millis(100);
const TIMEOUT: Duration = Duration::from_secs(10);
