//! Prints results: JSON for programs; tables, ages and sizes for people; colours only on a
//! terminal.
//!
//! Text of a sandbox is not trusted: control characters in it are escaped.

use jiff::Timestamp;
use sdk::model::{LogLevel, SandboxState};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _, stdout};
use std::time::Duration;

/// Whether text on this stream may have colours: only for a person who has not refused them.
pub fn colours_on(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The format of a command's result.
#[derive(Clone, Copy)]
pub struct Show {
    pub json: bool,
    colours: bool,
}

impl Show {
    pub fn new(json: bool) -> Self {
        Self { json, colours: !json && colours_on(&stdout()) }
    }

    /// Prints text and a line end.
    pub fn line(self, text: impl AsRef<str>) -> io::Result<()> {
        writeln!(stdout(), "{}", text.as_ref())
    }

    /// Prints an object as indented JSON.
    pub fn object(self, value: &impl Serialize) -> io::Result<()> {
        self.line(serde_json::to_string_pretty(value)?)
    }

    /// Prints an object as one line of JSON, and flushes.
    pub fn event(self, value: &impl Serialize) -> io::Result<()> {
        self.line(serde_json::to_string(value)?)?;
        stdout().flush()
    }

    pub fn paint(self, colour: Colour, text: &str) -> String {
        if self.colours { format!("\x1b[{}m{text}\x1b[0m", colour.code()) } else { text.to_owned() }
    }

    pub fn state(self, state: SandboxState) -> String {
        match state {
            SandboxState::Running => self.paint(Colour::Green, "running"),
            SandboxState::Paused => self.paint(Colour::Yellow, "paused"),
        }
    }

    pub fn level(self, level: LogLevel) -> String {
        match level {
            LogLevel::Debug => self.paint(Colour::Dim, "debug"),
            LogLevel::Info => self.paint(Colour::Green, "info "),
            LogLevel::Warn => self.paint(Colour::Yellow, "warn "),
            LogLevel::Error => self.paint(Colour::Red, "error"),
        }
    }

    /// Prints rows below a head, each column as wide as its widest cell.
    pub fn table(self, head: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
        let mut widths: Vec<usize> = head.iter().map(|cell| cell.len()).collect();
        for row in rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(shown_width(cell));
            }
        }
        let render = |cells: &[String]| {
            let mut line = String::new();
            for (cell, width) in cells.iter().zip(&widths) {
                let _ = write!(line, "{cell}{}  ", " ".repeat(width - shown_width(cell)));
            }
            line.trim_end().to_owned()
        };
        let head: Vec<String> = head.iter().map(|&cell| cell.to_owned()).collect();
        self.line(self.paint(Colour::Dim, &render(&head)))?;
        rows.iter().try_for_each(|row| self.line(render(row)))
    }

    /// Prints `name  value` lines.
    pub fn pairs(self, pairs: &[(&str, String)]) -> io::Result<()> {
        let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        pairs.iter().try_for_each(|(name, value)| {
            self.line(format!("{}  {value}", self.paint(Colour::Dim, &format!("{name:width$}"))))
        })
    }
}

#[derive(Clone, Copy)]
pub enum Colour {
    Red,
    Green,
    Yellow,
    Blue,
    Dim,
}

impl Colour {
    fn code(self) -> u8 {
        match self {
            Self::Red => 31,
            Self::Green => 32,
            Self::Yellow => 33,
            Self::Blue => 34,
            Self::Dim => 2,
        }
    }
}

/// The width on the screen, without escape sequences of colours.
fn shown_width(text: &str) -> usize {
    let (mut width, mut painting) = (0, false);
    for character in text.chars() {
        match character {
            '\x1b' => painting = true,
            'm' if painting => painting = false,
            _ if painting => {}
            _ => width += 1,
        }
    }
    width
}

/// Escapes control characters, so that text of a sandbox cannot control the terminal.
pub fn printable(text: &str) -> String {
    if !text.chars().any(char::is_control) {
        return text.to_owned();
    }
    text.chars().fold(String::with_capacity(text.len()), |mut shown, character| {
        if character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
        shown
    })
}

/// As [`printable`], but keeps line ends.
pub fn printable_lines(text: &str) -> String {
    text.lines().map(printable).collect::<Vec<_>>().join("\n")
}

/// Formats a duration in at most two units: `12s`, `5m 3s`, `2h 5m`, `3d 4h`.
pub fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    let two = |large: u64, name: &str, small: u64, unit: &str| match small {
        0 => format!("{large}{name}"),
        small => format!("{large}{name} {small}{unit}"),
    };
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => two(seconds / 60, "m", seconds % 60, "s"),
        3600..86400 => two(seconds / 3600, "h", seconds % 3600 / 60, "m"),
        _ => two(seconds / 86400, "d", seconds % 86400 / 3600, "h"),
    }
}

/// The time until a timestamp of the protocol; [`None`] if it is past or invalid.
pub fn ahead(moment: &str) -> Option<Duration> {
    Duration::try_from(moment.parse::<Timestamp>().ok()?.duration_since(Timestamp::now())).ok()
}

/// The time since a timestamp of the protocol; [`None`] for the epoch, which a server's base has.
pub fn ago(moment: &str) -> Option<Duration> {
    let moment = moment.parse::<Timestamp>().ok().filter(|moment| *moment != Timestamp::UNIX_EPOCH)?;
    Duration::try_from(Timestamp::now().duration_since(moment)).ok()
}

/// A timestamp of the protocol in the local time zone.
pub fn local_time(moment: &str) -> String {
    match moment.parse::<Timestamp>() {
        Ok(moment) => moment.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string(),
        Err(_) => printable(moment),
    }
}

/// Formats a size: `17 B`, `1.5 KiB`, `2.0 GiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "one decimal place is shown")]
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A row of bars, one per value, from 0 to `full`.
pub fn sparkline(values: &[f64], full: f64) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let bar = |value: &f64| {
        let share = if full > 0.0 { (value / full).clamp(0.0, 1.0) } else { 0.0 };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 7")]
        let index = (share * 7.0).round() as usize;
        BARS[index]
    };
    values.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_sandbox_says_cannot_steer_a_terminal() {
        assert_eq!(printable("plain ü"), "plain ü");
        assert_eq!(printable("a\x1b[2Jb\n"), "a\\u{1b}[2Jb\\n");
        assert_eq!(printable("\u{9b}31m"), "\\u{9b}31m");
        assert_eq!(printable_lines("one\r\n\x1btwo\n"), "one\n\\u{1b}two");
    }

    #[test]
    fn spans_and_sizes_are_short() {
        for (seconds, expected) in
            [(0, "0s"), (59, "59s"), (60, "1m"), (303, "5m 3s"), (7500, "2h 5m"), (90_000, "1d 1h")]
        {
            assert_eq!(span(Duration::from_secs(seconds)), expected);
        }
        for (bytes, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (1 << 31, "2.0 GiB"),
        ] {
            assert_eq!(size(bytes), expected);
        }
    }

    #[test]
    fn a_sparkline_reaches_from_nothing_to_full() {
        assert_eq!(sparkline(&[0.0, 50.0, 100.0, 250.0], 100.0), "▁▅██");
        assert_eq!(sparkline(&[1.0], 0.0), "▁");
    }
}
