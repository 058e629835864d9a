//! Takes our own words out of a command's output. `foreground.sh` says what they look like.

use bytes::{Bytes, BytesMut};

use crate::port::{ShellEnd, ShellEvent, Started, Stream, Survivor};

const RS: u8 = 0x1e;
/// The longest of our own words: an end names processes and background tasks. What is longer is output, since a command can
/// find out its mark and begin a word without an end.
const LONGEST_WORD: usize = 1024 * 1024;

/// What a piece of output turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    Event(ShellEvent),
    /// The last word on this stream; on stdout with how it ended.
    Last(Option<ShellEnd>),
}

/// One stream of a command.
#[derive(Debug)]
pub(super) struct Marks {
    stream: Stream,
    mark: Vec<u8>,
    state: String,
    held: BytesMut,
    ended: bool,
}

/// What stands at the start of the held bytes.
enum Word {
    /// Output, this long.
    Output(usize),
    /// One of ours, and how long it is.
    Ours(Said, usize),
    /// More is needed to tell.
    Unfinished,
}

impl Marks {
    pub(super) fn new(stream: Stream, mark: &str, state: &str) -> Self {
        let mark = [&[RS], mark.as_bytes()].concat();
        Self { stream, mark, state: state.to_owned(), held: BytesMut::new(), ended: false }
    }

    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// What a chunk brings. After the last word nothing of the stream is ours to tell.
    pub(super) fn push(&mut self, chunk: &Bytes) -> Vec<Said> {
        let mut said = Vec::new();
        if self.ended {
            return said;
        }
        if self.held.is_empty() && memchr::memchr(RS, chunk).is_none() {
            said.push(Said::Event(ShellEvent::Output(self.stream, chunk.clone())));
            return said;
        }
        self.held.extend_from_slice(chunk);
        while !self.held.is_empty() && !self.ended {
            match self.word() {
                Word::Output(length) => {
                    let bytes = self.held.split_to(length).freeze();
                    said.push(Said::Event(ShellEvent::Output(self.stream, bytes)));
                }
                Word::Ours(word, length) => {
                    let _ = self.held.split_to(length);
                    self.ended = matches!(word, Said::Last(_));
                    said.push(word);
                }
                Word::Unfinished => break,
            }
        }
        said
    }

    /// What was held back, when no more comes.
    pub(super) fn rest(&mut self) -> Option<ShellEvent> {
        let rest = self.held.split().freeze();
        (!rest.is_empty() && !self.ended).then_some(ShellEvent::Output(self.stream, rest))
    }

    fn word(&self) -> Word {
        let held = &self.held[..];
        match memchr::memchr(RS, held) {
            None => return Word::Output(held.len()),
            Some(0) => {}
            Some(at) => return Word::Output(at),
        }
        let Some(body) = held.strip_prefix(self.mark.as_slice()) else {
            return if self.mark.starts_with(held) { Word::Unfinished } else { Word::Output(1) };
        };
        if self.stream == Stream::Stderr {
            return Word::Ours(Said::Last(None), self.mark.len());
        }
        let Some((kind, body)) = body.split_first() else { return Word::Unfinished };
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
                (Said::Event(ShellEvent::Task { id, log }), length)
            }),
            b'+' => fields(2).map(|(texts, length)| (Said::Event(started(&texts)), length)),
            // One more byte closes it, so that it is all there.
            b'=' => fields(4)
                .filter(|(_, length)| body.len() > *length)
                .map(|(texts, length)| (Said::Last(Some(self.end(&texts))), length + 1)),
            _ => return Word::Output(1),
        };
        match read {
            Some((said, length)) => Word::Ours(said, self.mark.len() + 1 + length),
            None if body.len() > LONGEST_WORD => Word::Output(1),
            None => Word::Unfinished,
        }
    }

    fn log(&self, task: &str) -> String {
        format!("{}/bg/{task}.log", self.state)
    }

    fn end(&self, texts: &[String]) -> ShellEnd {
        let pairs = |text: &str| -> Vec<(String, String)> {
            let pair = |line: &str| line.split_once(' ').map(|(a, b)| (a.to_owned(), b.trim().to_owned()));
            text.lines().filter_map(pair).collect()
        };
        let survivors = pairs(&texts[2])
            .into_iter()
            .filter_map(|(pid, command)| Some(Survivor { pid: pid.parse().ok()?, command: shown(&command) }));
        let finished =
            pairs(&texts[3]).into_iter().filter_map(|(task, end)| super::memory::finished(&self.state, task, &end));
        ShellEnd {
            exit_code: texts[0].parse().unwrap_or(-1),
            directory: Some(texts[1].clone()).filter(|path| !path.is_empty()),
            survivors: survivors.collect(),
            finished: finished.collect(),
        }
    }
}

/// A command line for people. A part of the command's own shell has our script for a name.
fn shown(command: &str) -> String {
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

fn started(texts: &[String]) -> ShellEvent {
    let (pid, status) = texts[0].split_once(' ').unwrap_or((&texts[0], "ok"));
    let directory = match status {
        "gone" => Started::Fallback { gone: texts[1].clone() },
        "missing" => Started::Missing { directory: texts[1].clone() },
        _ => Started::AsAsked,
    };
    ShellEvent::Started { group: pid.parse().unwrap_or(0), directory }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::Finished;
    use proptest::prelude::*;

    fn all(chunks: &[&[u8]]) -> (Vec<u8>, Vec<Said>) {
        let mut marks = Marks::new(Stream::Stdout, "MARK", "/s");
        let (mut output, mut others) = (Vec::new(), Vec::new());
        for chunk in chunks {
            for said in marks.push(&Bytes::copy_from_slice(chunk)) {
                match said {
                    Said::Event(ShellEvent::Output(_, bytes)) => output.extend_from_slice(&bytes),
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
    fn our_words_are_taken_out_wherever_they_are_cut() {
        let (output, others) = all(&[WHOLE]);
        assert_eq!(output, b"hi \x1e there\n\x1eMARX");
        let end = ShellEnd {
            exit_code: 7,
            directory: Some("/usr".into()),
            survivors: vec![Survivor { pid: 12, command: "node a.js".into() }],
            finished: vec![Finished { task: "b1".into(), exit_code: Some(0), log: "/s/bg/b1.log".into() }],
        };
        let expected =
            [Said::Event(ShellEvent::Started { group: 812, directory: Started::AsAsked }), Said::Last(Some(end))];
        assert_eq!(others, expected);
        for cut in 0..WHOLE.len() {
            assert_eq!(all(&[&WHOLE[..cut], &WHOLE[cut..]]), (output.clone(), others.clone()), "cut at {cut}");
        }
    }

    #[test]
    fn a_word_without_an_end_is_output_and_is_not_kept() {
        let mut marks = Marks::new(Stream::Stdout, "MARK", "/s");
        let mut given = marks.push(&Bytes::from_static(b"\x1eMARK=")).len();
        let piece = Bytes::from(vec![b'x'; 64 * 1024]);
        for _ in 0..100 {
            given += marks.push(&piece).iter().map(|said| usize::from(matches!(said, Said::Event(_)))).sum::<usize>();
            assert!(marks.held.len() <= LONGEST_WORD + 2 * piece.len(), "{}", marks.held.len());
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
