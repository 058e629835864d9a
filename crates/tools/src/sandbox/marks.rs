//! Removes control marks from a command's output. `foreground.sh` defines their format.

use bytes::{Bytes, BytesMut};

use crate::port::{ShellEnd, ShellEvent, StartDirectory, Stream, Survivor};

const RS: u8 = 0x1e;
/// The longest mark: an end mark names processes and background tasks. Longer data is output, since
/// a command can learn its mark and write the start of one without an end.
const MAX_MARK_BYTES: usize = 1024 * 1024;

/// What a part of the output turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MarkEvent {
    Event(ShellEvent),
    /// The last mark of this stream; on stdout with the exit information.
    Last(Option<ShellEnd>),
}

/// Parser for one stream of a command.
#[derive(Debug)]
pub(super) struct MarkParser {
    stream: Stream,
    mark: Vec<u8>,
    state: String,
    held: BytesMut,
    ended: bool,
}

/// What the buffered bytes start with.
enum Scanned {
    /// Output of this length.
    Output(usize),
    /// A mark, and its length.
    Ours(MarkEvent, usize),
    /// Not decidable without more bytes.
    Unfinished,
}

impl MarkParser {
    pub(super) fn new(stream: Stream, mark: &str, state: &str) -> Self {
        let mark = [&[RS], mark.as_bytes()].concat();
        Self { stream, mark, state: state.to_owned(), held: BytesMut::new(), ended: false }
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended
    }

    /// The events of a chunk. Bytes after the last mark are not the command's.
    pub(super) fn push(&mut self, chunk: &Bytes) -> Vec<MarkEvent> {
        let mut events = Vec::new();
        if self.ended {
            return events;
        }
        if self.held.is_empty() && memchr::memchr(RS, chunk).is_none() {
            events.push(MarkEvent::Event(ShellEvent::Output(self.stream, chunk.clone())));
            return events;
        }
        self.held.extend_from_slice(chunk);
        while !self.held.is_empty() && !self.ended {
            match self.scan() {
                Scanned::Output(length) => {
                    let bytes = self.held.split_to(length).freeze();
                    events.push(MarkEvent::Event(ShellEvent::Output(self.stream, bytes)));
                }
                Scanned::Ours(word, length) => {
                    let _ = self.held.split_to(length);
                    self.ended = matches!(word, MarkEvent::Last(_));
                    events.push(word);
                }
                Scanned::Unfinished => break,
            }
        }
        events
    }

    /// The buffered bytes, when the stream has ended.
    pub(super) fn rest(&mut self) -> Option<ShellEvent> {
        let rest = self.held.split().freeze();
        (!rest.is_empty() && !self.ended).then_some(ShellEvent::Output(self.stream, rest))
    }

    fn scan(&self) -> Scanned {
        let held = &self.held[..];
        match memchr::memchr(RS, held) {
            None => return Scanned::Output(held.len()),
            Some(0) => {}
            Some(at) => return Scanned::Output(at),
        }
        let Some(body) = held.strip_prefix(self.mark.as_slice()) else {
            return if self.mark.starts_with(held) { Scanned::Unfinished } else { Scanned::Output(1) };
        };
        if self.stream == Stream::Stderr {
            return Scanned::Ours(MarkEvent::Last(None), self.mark.len());
        }
        let Some((kind, body)) = body.split_first() else { return Scanned::Unfinished };
        let fields = |count: usize| {
            let parts: Vec<&[u8]> = body.splitn(count + 1, |byte| *byte == 0).collect();
            (parts.len() > count).then(|| {
                let length: usize = parts[..count].iter().map(|part| part.len() + 1).sum();
                let texts = parts[..count].iter().map(|part| String::from_utf8_lossy(part).into_owned());
                (texts.collect::<Vec<String>>(), length)
            })
        };
        let read = match kind {
            b'#' => fields(1).map(|(texts, length)| {
                let id = texts[0].clone();
                let log = self.log(&id);
                (MarkEvent::Event(ShellEvent::Task { id, log }), length)
            }),
            b'+' => fields(2).map(|(texts, length)| (MarkEvent::Event(parse_started(&texts)), length)),
            // One more byte terminates it, so that it is complete.
            b'=' => fields(4)
                .filter(|(_, length)| body.len() > *length)
                .map(|(texts, length)| (MarkEvent::Last(Some(self.parse_end(&texts))), length + 1)),
            _ => return Scanned::Output(1),
        };
        match read {
            Some((event, length)) => Scanned::Ours(event, self.mark.len() + 1 + length),
            None if body.len() > MAX_MARK_BYTES => Scanned::Output(1),
            None => Scanned::Unfinished,
        }
    }

    fn log(&self, task: &str) -> String {
        format!("{}/bg/{task}.log", self.state)
    }

    fn parse_end(&self, texts: &[String]) -> ShellEnd {
        let pairs = |text: &str| -> Vec<(String, String)> {
            let pair = |line: &str| line.split_once(' ').map(|(a, b)| (a.to_owned(), b.trim().to_owned()));
            text.lines().filter_map(pair).collect()
        };
        let survivors = pairs(&texts[2])
            .into_iter()
            .filter_map(|(pid, command)| Some(Survivor { pid: pid.parse().ok()?, command: display_command(&command) }));
        let finished = pairs(&texts[3])
            .into_iter()
            .filter_map(|(task, end)| super::memory::parse_finished(&self.state, task, &end));
        ShellEnd {
            exit_code: texts[0].parse().unwrap_or(-1),
            directory: Some(texts[1].clone()).filter(|path| !path.is_empty()),
            survivors: survivors.collect(),
            finished: finished.collect(),
        }
    }
}

/// A command line for display. A part of the command's own shell shows our script as its name.
fn display_command(command: &str) -> String {
    const WIDTH: usize = 80;
    if command.contains("__sandbar_") {
        return "a part of the command's shell".into();
    }
    let mut text: String = command.chars().take(WIDTH).collect();
    if text.len() < command.len() {
        text.push('…');
    }
    text
}

fn parse_started(texts: &[String]) -> ShellEvent {
    let (pid, status) = texts[0].split_once(' ').unwrap_or((&texts[0], "ok"));
    let directory = match status {
        "gone" => StartDirectory::Fallback { gone: texts[1].clone() },
        "missing" => StartDirectory::Missing { directory: texts[1].clone() },
        _ => StartDirectory::AsAsked,
    };
    ShellEvent::Started { group: pid.parse().unwrap_or(0), directory }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::FinishedTask;
    use proptest::prelude::*;

    fn all(chunks: &[&[u8]]) -> (Vec<u8>, Vec<MarkEvent>) {
        let mut marks = MarkParser::new(Stream::Stdout, "MARK", "/s");
        let (mut output, mut others) = (Vec::new(), Vec::new());
        for chunk in chunks {
            for event in marks.push(&Bytes::copy_from_slice(chunk)) {
                match event {
                    MarkEvent::Event(ShellEvent::Output(_, bytes)) => output.extend_from_slice(&bytes),
                    other => others.push(other),
                }
            }
        }
        if let Some(ShellEvent::Output(_, bytes)) = marks.rest() {
            output.extend_from_slice(&bytes);
        }
        (output, others)
    }

    const WHOLE: &[u8] =
        b"\x1eMARK+812 ok\0/w\0hi \x1e there\n\x1eMARX\x1eMARK=7\0/usr\x0012 node a.js\n\0b1 0\n\0\x1elate";

    #[test]
    fn marks_are_removed_at_any_chunk_boundary() {
        let (output, others) = all(&[WHOLE]);
        assert_eq!(output, b"hi \x1e there\n\x1eMARX");
        let end = ShellEnd {
            exit_code: 7,
            directory: Some("/usr".into()),
            survivors: vec![Survivor { pid: 12, command: "node a.js".into() }],
            finished: vec![FinishedTask { task: "b1".into(), exit_code: Some(0), log: "/s/bg/b1.log".into() }],
        };
        let expected = [
            MarkEvent::Event(ShellEvent::Started { group: 812, directory: StartDirectory::AsAsked }),
            MarkEvent::Last(Some(end)),
        ];
        assert_eq!(others, expected);
        for cut in 0..WHOLE.len() {
            assert_eq!(all(&[&WHOLE[..cut], &WHOLE[cut..]]), (output.clone(), others.clone()), "cut at {cut}");
        }
    }

    #[test]
    fn unterminated_mark_is_output() {
        let mut marks = MarkParser::new(Stream::Stdout, "MARK", "/s");
        let mut given = marks.push(&Bytes::from_static(b"\x1eMARK=")).len();
        let piece = Bytes::from(vec![b'x'; 64 * 1024]);
        for _ in 0..100 {
            given +=
                marks.push(&piece).iter().map(|event| usize::from(matches!(event, MarkEvent::Event(_)))).sum::<usize>();
            assert!(marks.held.len() <= MAX_MARK_BYTES + 2 * piece.len(), "{}", marks.held.len());
        }
        assert!(given > 0);
    }

    proptest! {
        #[test]
        fn output_without_the_mark_is_unchanged(chunks: Vec<Vec<u8>>) {
            let chunks: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
            let (output, others) = all(&chunks);
            prop_assert_eq!(output, chunks.concat());
            prop_assert!(others.is_empty());
        }
    }
}
