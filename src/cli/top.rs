//! `roiflow top`: the streams of a running `roiflow serve` in the terminal.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::ValueEnum;
use ratatui::backend::TermionBackend;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style, Stylize};
use ratatui::termion::event::Key;
use ratatui::termion::input::TermRead;
use ratatui::termion::raw::IntoRawMode;
use ratatui::termion::screen::IntoAlternateScreen;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use roiflow_server::stream::is_chosen;
use serde_json::Value;
use signal_hook::consts::signal::{SIGHUP, SIGTERM};

use super::client::{Client, Server};
use super::terminal::{self, OneLine};
use crate::pipeline;

/// How long the loop may wait for a key until it checks signals and the time.
const MAX_KEY_WAIT: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    server: Server,
    /// Print the table once, and exit
    #[arg(long)]
    once: bool,
    /// Order of the streams; the keys n, s, f, l, m and r change it
    #[arg(long, value_enum, default_value_t = Order::Name, value_name = "COLUMN")]
    sort: Order,
    /// Seconds between two requests to the server
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
}

/// The column that orders the streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Order {
    /// Names from A to Z
    Name,
    /// Streams that do not run first
    State,
    /// Slowest first
    Fps,
    /// Highest latency first
    Latency,
    /// Most missed frames first
    Missed,
    /// Most restarts first
    Restarts,
}

impl Order {
    fn of_key(key: char) -> Option<Self> {
        Some(match key {
            'n' => Self::Name,
            's' => Self::State,
            'f' => Self::Fps,
            'l' => Self::Latency,
            'm' => Self::Missed,
            'r' => Self::Restarts,
            _ => return None,
        })
    }

    fn column(self) -> usize {
        match self {
            Self::Name => 0,
            Self::State => 1,
            Self::Fps => 2,
            Self::Latency => 3,
            Self::Missed => 5,
            Self::Restarts => 6,
        }
    }
}

const HEADS: [&str; 8] = ["NAME", "STATE", "FPS", "LATENCY", "FRAMES", "MISSED", "RESTARTS", "DETAILS"];

/// A stream as the table shows it.
#[derive(Debug, Clone, PartialEq)]
struct Stream {
    name: String,
    state: String,
    fps: f64,
    latency_ms: Option<f64>,
    frames: u64,
    /// Number of frames without inference because it was too slow.
    missed: u64,
    restarts: u64,
    /// The error, or the reasons of missed frames.
    details: String,
}

impl Stream {
    fn of(view: &Value) -> Self {
        let text = |key: &str| OneLine(view[key].as_str().unwrap_or_default()).to_string();
        let all = |key: &str| view[key].as_array().map_or(&[][..], Vec::as_slice).iter();
        let skipped = all("skipped").filter(|frames| !is_chosen(frames["reason"].as_str().unwrap_or_default()));
        let n_frames = |frames: &Value| frames["frames"].as_u64().unwrap_or(0);
        let reasons = all("dropped").chain(skipped).filter(|frames| n_frames(frames) > 0).map(|frames| {
            let text = |key: &str| OneLine(frames[key].as_str().unwrap_or_default()).to_string();
            format!("{} by {} ({})", n_frames(frames), text("element"), text("reason"))
        });
        let reasons = reasons.collect::<Vec<_>>().join(", ");
        Self {
            name: text("name"),
            state: text("state"),
            fps: view["fps"].as_f64().unwrap_or(0.0),
            latency_ms: view["latency_ms"].as_f64(),
            frames: view["frames"].as_u64().unwrap_or(0),
            missed: view["missed"].as_u64().unwrap_or(0),
            restarts: view["restarts"].as_u64().unwrap_or(0),
            details: if view["error"].is_null() { reasons } else { text("error") },
        }
    }

    fn cells(&self) -> [String; 8] {
        [
            self.name.clone(),
            self.state.clone(),
            format!("{:.1}", self.fps),
            self.latency_ms.map_or_else(|| "-".to_owned(), |latency| format!("{latency:.1} ms")),
            self.frames.to_string(),
            self.missed.to_string(),
            self.restarts.to_string(),
            self.details.clone(),
        ]
    }
}

/// The content of the terminal.
struct View {
    server: String,
    streams: Vec<Stream>,
    order: Order,
    /// Why the newest request failed; the streams are then those of an earlier one.
    error: Option<String>,
    /// Number of the first stream that is shown.
    first: usize,
}

impl View {
    /// Requests the streams.
    fn refresh(&mut self, client: &Client) {
        match client.send("GET", "/api/streams", None) {
            Ok(answer) => {
                self.streams = answer["streams"].as_array().into_iter().flatten().map(Stream::of).collect();
                self.error = None;
                self.sort();
            }
            Err(error) => self.error = Some(format!("{error:#}")),
        }
    }

    fn sort(&mut self) {
        let order = self.order;
        self.streams.sort_by(|a, b| {
            let by = match order {
                Order::Name => std::cmp::Ordering::Equal,
                Order::State => (a.state == "running").cmp(&(b.state == "running")).then(a.state.cmp(&b.state)),
                Order::Fps => a.fps.total_cmp(&b.fps),
                Order::Latency => b.latency_ms.unwrap_or(0.0).total_cmp(&a.latency_ms.unwrap_or(0.0)),
                Order::Missed => b.missed.cmp(&a.missed),
                Order::Restarts => b.restarts.cmp(&a.restarts),
            };
            by.then_with(|| a.name.cmp(&b.name))
        });
    }

    /// Applies a key. Returns false if it ends the command.
    fn press(&mut self, key: Key) -> bool {
        match key {
            Key::Char('q') | Key::Esc | Key::Ctrl('c') => return false,
            Key::Up => self.first = self.first.saturating_sub(1),
            Key::Down => self.first = (self.first + 1).min(self.streams.len().saturating_sub(1)),
            Key::Home => self.first = 0,
            Key::Char(key) => {
                if let Some(order) = Order::of_key(key) {
                    self.order = order;
                    self.sort();
                }
            }
            _ => {}
        }
        true
    }

    fn draw(&self, frame: &mut ratatui::Frame<'_>) {
        let [title, table, help] =
            Layout::vertical([Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)]).areas(frame.area());
        let n_running = self.streams.iter().filter(|stream| stream.state == "running").count();
        let fps: f64 = self.streams.iter().map(|stream| stream.fps).sum();
        let summary = format!("{}  {n_running} of {} streams running, {fps:.1} frames per second", self.server, self.streams.len());
        frame.render_widget(Line::from(vec!["roiflow top  ".bold(), Span::raw(summary)]), title);
        let last = match &self.error {
            Some(error) => Line::from(OneLine(error).to_string()).fg(Color::Red),
            None => Line::from("q quit   order: n name, s state, f fps, l latency, m missed, r restarts   arrows scroll"),
        };
        frame.render_widget(Paragraph::new(last), help);
        let shown: Vec<&Stream> = self.streams.iter().skip(self.first).collect();
        let width = |column: usize| {
            let cells = shown.iter().map(|stream| stream.cells()[column].chars().count());
            cells.chain([HEADS[column].len()]).max().unwrap_or(0) as u16
        };
        let widths = (0..HEADS.len()).map(|column| if column == 7 { Constraint::Fill(1) } else { Constraint::Length(width(column)) });
        let widths: Vec<Constraint> = widths.collect();
        let heads = HEADS.iter().enumerate().map(|(column, head)| {
            let style = if column == self.order.column() { Style::new().reversed() } else { Style::new() };
            Cell::from(*head).style(style)
        });
        let rows = shown.iter().map(|stream| {
            let color = match &*stream.state {
                "running" => Color::Green,
                "failed" => Color::Red,
                _ => Color::Yellow,
            };
            let cells = stream.cells().into_iter().enumerate();
            Row::new(cells.map(|(column, cell)| if column == 1 { Cell::from(cell).fg(color) } else { Cell::from(cell) }))
        });
        frame.render_widget(Table::new(rows, widths).header(Row::new(heads).bold()).column_spacing(2), table);
    }
}

pub(super) fn top(args: &Args) -> anyhow::Result<()> {
    let client = Client::new(&args.server)?;
    let mut view = View { server: client.shown(), streams: Vec::new(), order: args.sort, error: None, first: 0 };
    if args.once {
        view.refresh(&client);
        if let Some(error) = view.error.take() {
            bail!("{error}");
        }
        let rows: Vec<[String; 8]> = [HEADS.map(str::to_owned)].into_iter().chain(view.streams.iter().map(Stream::cells)).collect();
        return terminal::columns(&mut terminal::stdout(), &rows);
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        bail!(pipeline::Error::usage("top: expected a terminal, got none. Add --once to print the table once"));
    }
    // The first request shows errors before the screen is cleared.
    view.refresh(&client);
    if let Some(error) = view.error.take() {
        bail!("{error}");
    }
    let is_ending = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, is_ending.clone()).context("cannot handle signals")?;
    }
    show(&mut view, &client, Duration::from_secs(args.interval), &is_ending)
}

/// Shows the view until a key or signal ends the command.
fn show(view: &mut View, client: &Client, interval: Duration, is_ending: &AtomicBool) -> anyhow::Result<()> {
    // Dropping the screen restores the terminal, also after a panic.
    let screen = std::io::stdout().into_raw_mode().and_then(IntoAlternateScreen::into_alternate_screen);
    let mut screen = ratatui::Terminal::new(TermionBackend::new(screen.context("cannot use the terminal")?))?;
    screen.hide_cursor()?;
    let (sender, keys) = channel();
    // Reading a key blocks, so a thread does it. The thread ends with the process.
    std::thread::Builder::new().name("roiflow-keys".to_owned()).spawn(move || {
        for key in std::io::stdin().keys().map_while(Result::ok) {
            if sender.send(key).is_err() {
                return;
            }
        }
    })?;
    let mut due = Instant::now() + interval;
    while !is_ending.load(Ordering::Relaxed) {
        screen.draw(|frame| view.draw(frame)).context("cannot draw on the terminal")?;
        match keys.recv_timeout(due.saturating_duration_since(Instant::now()).min(MAX_KEY_WAIT)) {
            Ok(key) if !view.press(key) => return Ok(()),
            // The terminal was closed.
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
        }
        if due <= Instant::now() {
            view.refresh(client);
            due = Instant::now() + interval;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;

    fn view() -> View {
        let stream = |name: &str, state: &str, fps: f64, n_dropped: u64| {
            let dropped = json!([{"element": "detect", "reason": "queue-policy", "frames": n_dropped}]);
            let skipped = json!([{"element": "age", "reason": "max-latency", "frames": 3}, {"element": "age", "reason": "inference-interval", "frames": 50}]);
            Stream::of(
                &json!({"name": name, "state": state, "fps": fps, "latency_ms": 12.34, "frames": 100, "dropped": dropped, "skipped": skipped, "missed": n_dropped + 3, "restarts": 1, "error": null}),
            )
        };
        let failed = json!({"name": "gate", "state": "failed", "fps": 0.0, "latency_ms": null, "frames": 0, "dropped": [], "missed": 0, "restarts": 3, "error": "no\nsuch camera"});
        let streams = vec![stream("yard", "running", 25.0, 7), Stream::of(&failed), stream("door", "running", 12.5, 0)];
        View { server: "http://host".to_owned(), streams, order: Order::Name, error: None, first: 0 }
    }

    fn lines(view: &View) -> Vec<String> {
        let mut screen = Terminal::new(TestBackend::new(110, 8)).unwrap();
        screen.draw(|frame| view.draw(frame)).unwrap();
        let text = screen.backend().to_string();
        text.lines().map(|line| line.trim_matches('"').trim_end().to_owned()).collect()
    }

    fn names(view: &View) -> Vec<&str> {
        view.streams.iter().map(|stream| &*stream.name).collect()
    }

    #[test]
    fn table_shows_streams_with_drops_and_errors() {
        let mut view = view();
        view.sort();
        let lines = lines(&view);
        assert_eq!(lines[0], "roiflow top  http://host  2 of 3 streams running, 37.5 frames per second");
        assert!(lines[1].starts_with("NAME  STATE    FPS   LATENCY  FRAMES  MISSED  RESTARTS  DETAILS"), "{lines:?}");
        assert!(lines[2].starts_with("door  running  12.5  12.3 ms  100"), "{lines:?}");
        assert!(
            lines[3].starts_with("gate  failed   0.0   -") && !lines[3].contains('\n') && lines[3].contains("such camera"),
            "{lines:?}"
        );
        assert!(lines[4].contains("100     10      1         7 by detect (queue-policy), 3 by age (max-latency)"), "{lines:?}");
        assert!(lines[7].starts_with("q quit"), "{lines:?}");
        view.error = Some("cannot reach the server".to_owned());
        let lines = self::lines(&view);
        assert!(lines[7].starts_with("cannot reach the server") && lines[2].starts_with("door"), "earlier streams stay: {lines:?}");
    }

    #[test]
    fn keys_order_scroll_and_quit() {
        let mut view = view();
        let press = |view: &mut View, key: char| view.press(Key::Char(key));
        for (key, order) in [
            ('n', ["door", "gate", "yard"]),
            ('s', ["gate", "door", "yard"]),
            ('f', ["gate", "door", "yard"]),
            ('m', ["yard", "door", "gate"]),
            ('r', ["gate", "door", "yard"]),
            ('l', ["door", "yard", "gate"]),
            ('x', ["door", "yard", "gate"]),
        ] {
            assert!(press(&mut view, key));
            assert_eq!(names(&view), order, "{key}");
        }
        press(&mut view, 'n');
        assert!(view.press(Key::Down));
        assert!(lines(&view)[2].starts_with("gate"));
        assert!((0..9).all(|_| view.press(Key::Down)));
        assert!(lines(&view)[2].starts_with("yard"), "the last stream stays on the screen");
        view.press(Key::Home);
        assert!(lines(&view)[2].starts_with("door"));
        assert!(!press(&mut view, 'q') && !view.press(Key::Esc));
        assert!(!view.press(Key::Ctrl('c')));
    }

    #[test]
    fn small_and_empty_screens_do_not_panic() {
        for (width, height) in [(1, 1), (3, 2), (20, 3)] {
            let mut screen = Terminal::new(TestBackend::new(width, height)).unwrap();
            screen.draw(|frame| view().draw(frame)).unwrap();
            screen.draw(|frame| View { streams: Vec::new(), ..view() }.draw(frame)).unwrap();
        }
    }
}
