//! Notices about a cut text: where the missing part can be read, and what became of the command
//! that wrote it. One pure function over [`Provenance`], so that no combination of cut, killed and
//! saved makes a false claim.

use crate::result::{ErrorCode, ToolResult};

/// Where a text comes from and how much of it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Provenance<'a> {
    pub producer: Producer,
    pub saved: Saved<'a>,
    /// The text is stdout or stderr alone, while the file has both.
    pub one_stream: bool,
}

/// What wrote a text, and its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Producer {
    /// A file or a search: no command.
    Document,
    /// The command's shell exited, by itself or by a signal that the dispatcher did not send.
    Exited,
    /// The dispatcher killed the command: timeout, cancellation or too much output.
    Killed,
    /// The dispatcher failed to kill the command.
    NotKilled,
    /// The connection to the command was lost.
    Disconnected,
    /// The command continues as a background task.
    Running,
}

/// Which part of a text is in a file of the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Saved<'a> {
    Nowhere,
    Whole {
        path: &'a str,
    },
    /// All but `missing` bytes in the middle.
    Ends {
        path: &'a str,
        missing: u64,
    },
    /// The log reached its size limit.
    Start {
        path: &'a str,
    },
}

impl<'a> Provenance<'a> {
    /// A text of no command that is stored nowhere, such as the result of a search.
    pub const UNSAVED_DOCUMENT: Self = Self::document(Saved::Nowhere);

    /// A text of no command.
    pub const fn document(saved: Saved<'a>) -> Self {
        Self { producer: Producer::Document, saved, one_stream: false }
    }

    /// The provenance of a tool result's text.
    pub fn for_result(tool_name: &str, result: &'a ToolResult) -> Self {
        let structured = &result.structured;
        match tool_name {
            "bash" => {
                let run = structured.as_bash();
                let (producer, path) = match run.and_then(|run| run.background.as_ref()) {
                    Some(task) => {
                        let producer = if task.running { Producer::Running } else { Producer::Exited };
                        (producer, Some(task.output_path.as_str()))
                    }
                    None => {
                        let end = run.and_then(|run| run.foreground.as_ref());
                        let producer = Producer::from_code(result.code, run.and_then(|run| run.exit_code));
                        (producer, end.and_then(|end| end.output_path.as_deref()))
                    }
                };
                let dropped = run.and_then(|run| run.captured.as_ref()).map_or(0, |captured| captured.bytes_dropped);
                let saved = match (path, dropped) {
                    (None, _) => Saved::Nowhere,
                    (Some(path), 0) => Saved::Whole { path },
                    (Some(path), missing) => Saved::Ends { path, missing },
                };
                Self { producer, saved, one_stream: false }
            }
            "read_file" => Self::document(structured.path().map_or(Saved::Nowhere, |path| Saved::Whole { path })),
            _ => Self::UNSAVED_DOCUMENT,
        }
    }

    /// Sentences that complete the notice about a cut.
    pub fn explain(self) -> String {
        let Self { producer, saved, one_stream } = self;
        let shown = |path| crate::paths::display(path);
        let until = match producer {
            Producer::Document | Producer::Exited => "",
            Producer::Killed => " until it was killed",
            Producer::NotKilled => " until the call ended",
            Producer::Disconnected => " until the connection was lost",
            Producer::Running => " so far",
        };
        const HOW: &str = "read_file with offset/limit, or grep it";
        let place = match (saved, producer) {
            (Saved::Nowhere, Producer::Document) => {
                return "The rest was not kept; narrow what is asked for.".to_owned();
            }
            (Saved::Nowhere, _) => "The omitted part was not kept.".to_owned(),
            (Saved::Whole { path }, Producer::Document) => return format!("Full text: {} — {HOW}.", shown(path)),
            (Saved::Whole { path }, Producer::Exited) => format!("Full output: {} — {HOW}.", shown(path)),
            (Saved::Whole { path }, _) => format!("Output{until}: {} — {HOW}.", shown(path)),
            (Saved::Ends { path, missing }, _) => format!(
                "Start and end of the output{until}: {} — {HOW}; {missing} bytes between them were not kept, and lines are counted \
                 without them.",
                shown(path)
            ),
            (Saved::Start { path }, _) => {
                format!("Start of the output{until}: {} — {HOW}; what came after it was not kept.", shown(path))
            }
        };
        let streams = match saved {
            Saved::Nowhere => "",
            _ if one_stream => " The file has stdout and stderr together, in order of arrival.",
            _ => "",
        };
        let state = match (producer, saved) {
            (Producer::Document, _) => "",
            (Producer::Exited, Saved::Whole { .. }) => " The command has ended; do not re-run it to see the rest.",
            (Producer::Exited, _) => {
                " The command has ended; to see the rest, run it again with its output redirected to a file."
            }
            (Producer::Killed, _) => " The command did not finish: it was killed.",
            (Producer::NotKilled, _) => " The command did not finish and could not be killed: it may still run.",
            (Producer::Disconnected, _) => " The command may still run.",
            (Producer::Running, Saved::Nowhere) => " The command still runs.",
            (Producer::Running, _) => " The command still runs; its further output goes there too.",
        };
        format!("{place}{streams}{state}")
    }
}

impl Producer {
    /// For a command in the foreground, by the code of its result and the exit code, which is
    /// `None` if unknown.
    pub(crate) fn from_code(code: Option<ErrorCode>, exit_code: Option<i32>) -> Self {
        match code {
            Some(ErrorCode::Timeout | ErrorCode::Cancelled | ErrorCode::OutputLimit) if exit_code.is_none() => {
                Self::NotKilled
            }
            Some(ErrorCode::Timeout | ErrorCode::Cancelled | ErrorCode::OutputLimit) => Self::Killed,
            Some(ErrorCode::SandboxUnavailable) => Self::Disconnected,
            _ => Self::Exited,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRODUCERS: [Producer; 6] = [
        Producer::Document,
        Producer::Exited,
        Producer::Killed,
        Producer::NotKilled,
        Producer::Disconnected,
        Producer::Running,
    ];
    const PATH: &str = "/s/out/c1.log";
    const SAVED: [Saved<'_>; 4] = [
        Saved::Nowhere,
        Saved::Whole { path: PATH },
        Saved::Ends { path: PATH, missing: 77 },
        Saved::Start { path: PATH },
    ];

    /// Which claims a notice may make, and under which condition each is true.
    #[test]
    fn every_combination_makes_only_true_claims() {
        for producer in PRODUCERS {
            for saved in SAVED {
                for one_stream in [false, true] {
                    let text = Provenance { producer, saved, one_stream }.explain();
                    let whole = matches!(saved, Saved::Whole { .. });
                    let claims: [(&str, bool); 14] = [
                        ("Full output: ", whole && producer == Producer::Exited),
                        ("Full text: ", whole && producer == Producer::Document),
                        ("do not re-run", whole && producer == Producer::Exited),
                        ("run it again", !whole && producer == Producer::Exited),
                        ("has ended", producer == Producer::Exited),
                        ("did not finish", matches!(producer, Producer::Killed | Producer::NotKilled)),
                        ("it was killed.", producer == Producer::Killed),
                        ("could not be killed", producer == Producer::NotKilled),
                        ("may still run", matches!(producer, Producer::NotKilled | Producer::Disconnected)),
                        ("still runs", producer == Producer::Running),
                        (PATH, saved != Saved::Nowhere),
                        ("was not kept", matches!(saved, Saved::Nowhere | Saved::Start { .. })),
                        ("77 bytes between them were not kept", matches!(saved, Saved::Ends { .. })),
                        ("stdout and stderr together", {
                            let document = producer == Producer::Document && whole;
                            one_stream && saved != Saved::Nowhere && !document
                        }),
                    ];
                    for (claim, is_true) in claims {
                        assert_eq!(
                            text.contains(claim),
                            is_true,
                            "{producer:?} {saved:?} {one_stream}: {claim:?} in {text:?}"
                        );
                    }
                    assert!(text.ends_with('.') && !text.contains('\n') && !text.contains(']'), "{text}");
                }
            }
        }
    }

    #[test]
    fn common_notices_have_expected_text() {
        let of = |producer, saved| Provenance { producer, saved, one_stream: false }.explain();
        assert_eq!(
            of(Producer::Exited, Saved::Whole { path: "/o" }),
            "Full output: /o — read_file with offset/limit, or grep it. The command has ended; do not re-run it to see the rest."
        );
        assert_eq!(
            of(Producer::Killed, Saved::Ends { path: "/o", missing: 9 }),
            "Start and end of the output until it was killed: /o — read_file with offset/limit, or grep it; 9 bytes between them \
             were not kept, and lines are counted without them. The command did not finish: it was killed."
        );
    }
}
