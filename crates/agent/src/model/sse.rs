//! Parses server-sent events from a byte stream that may be split anywhere.

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct SseEvent {
    pub(super) name: String,
    pub(super) data: String,
}

/// Limit for one event; no model sends more.
const MAX_EVENT_BYTES: usize = 64 * 1024 * 1024;

/// An event exceeded its size limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EventTooLong;

#[derive(Debug, Default)]
pub(super) struct Sse {
    /// An incomplete line.
    line: Vec<u8>,
    event: SseEvent,
    has_data: bool,
}

impl Sse {
    /// Adds bytes and returns the events that they complete.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<Vec<SseEvent>, EventTooLong> {
        let mut events = Vec::new();
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.line.extend_from_slice(&rest[..end]);
            rest = &rest[end + 1..];
            let line = std::mem::take(&mut self.line);
            events.extend(self.take(line.strip_suffix(b"\r").unwrap_or(&line)));
        }
        self.line.extend_from_slice(rest);
        if self.line.len() + self.event.data.len() > MAX_EVENT_BYTES { Err(EventTooLong) } else { Ok(events) }
    }

    fn take(&mut self, line: &[u8]) -> Option<SseEvent> {
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            return std::mem::take(&mut self.has_data).then_some(event);
        }
        let line = String::from_utf8_lossy(line);
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.event.name = value.to_owned(),
            "data" => {
                if self.has_data {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
                self.has_data = true;
            }
            // A comment, or an unused field.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_do_not_depend_on_chunk_boundaries() {
        let text = "\u{feff}: hi\r\nevent: a\r\ndata: {\"x\":\"ü\"}\r\n\r\n: ping\n\nevent: b\ndata: 1\ndata:2\n\nevent: none\n\n";
        let expected = [
            SseEvent { name: "a".into(), data: "{\"x\":\"ü\"}".into() },
            SseEvent { name: "b".into(), data: "1\n2".into() },
        ];
        for cut in 0..=text.len() {
            let (head, tail) = text.as_bytes().split_at(cut);
            let mut sse = Sse::default();
            let mut events = sse.feed(head).expect("short");
            events.extend(sse.feed(tail).expect("short"));
            assert_eq!(events, expected, "cut at {cut}");
        }
        let mut sse = Sse::default();
        let bytewise: Vec<_> = text.bytes().flat_map(|byte| sse.feed(&[byte]).expect("short")).collect();
        assert_eq!(bytewise, expected);
    }
}
