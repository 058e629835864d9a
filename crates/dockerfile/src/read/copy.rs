//! `COPY` and `ADD`.

use super::{Draft, Flag, Reader, Result, parse_flags};
use crate::expand::UnknownVariable;
use crate::plan::{Action, Copy, CopyFrom};
use crate::scan::Instruction;
use crate::words::{self, Word};

impl Reader<'_> {
    pub(super) fn copy(&mut self, draft: &Draft, instruction: &Instruction) -> Result<Action> {
        let is_add = instruction.keyword == "ADD";
        let (given, rest) = parse_flags(instruction);
        let (mut from, mut owner, mut mode) = (CopyFrom::Context, None, None);
        for Flag { name, value, at } in &given {
            let value = |reader: &Self| {
                let word = value.as_ref().filter(|word| !word.text.is_empty());
                let word = word.ok_or_else(|| reader.error_in(instruction, at, format!("{name} needs a value")))?;
                reader.expand_word(&draft.scope, instruction, word, UnknownVariable::Reject)
            };
            match name.as_str() {
                "--from" if !is_add => from = self.source_stage(draft, instruction, at, &value(self)?)?,
                "--chown" => owner = Some(self.owner(instruction, at, value(self)?)?),
                "--chmod" => {
                    let text = value(self)?;
                    let parsed = u32::from_str_radix(&text, 8).ok().filter(|mode| *mode <= 0o7777);
                    let message = format!("'{text}' is no octal mode such as 0755");
                    mode = Some(parsed.ok_or_else(|| self.error_in(instruction, at, message))?);
                }
                other => {
                    let message = format!("{} {other} is not supported", instruction.keyword);
                    return Err(self.error_in(instruction, at, message));
                }
            }
        }
        if let Some(document) = instruction.documents.first() {
            let message = "files cannot be written in the Dockerfile itself; put them into the context, or use RUN cat";
            return Err(self.error_at(&document.at, message.to_owned()));
        }
        let mut paths = self.paths(draft, instruction, rest)?;
        let Some((_, destination)) = paths.pop().filter(|_| !paths.is_empty()) else {
            let message = format!("{} needs a source and a destination", instruction.keyword);
            return Err(self.error_at(&instruction.at, message));
        };
        let ends_with_dot = destination == "." || destination.ends_with("/.") || destination == "..";
        let destination = if ends_with_dot { destination + "/" } else { destination };
        if paths.len() > 1 && !destination.ends_with('/') {
            let message = format!("several sources need a directory: '{destination}/'");
            return Err(self.error_in(instruction, &(rest..instruction.rest.line.len()), message));
        }
        for (word, path) in &paths {
            self.check_source(instruction, word, path, is_add)?;
        }
        let sources = paths.into_iter().map(|(_, path)| path).collect();
        let unpack = is_add && from == CopyFrom::Context;
        Ok(Action::Copy(Copy { from, sources, destination, owner, mode, unpack }))
    }

    /// Expands the words after the flags, in shell or JSON form.
    fn paths(&self, draft: &Draft, instruction: &Instruction, rest: usize) -> Result<Vec<(Word, String)>> {
        let line = &instruction.rest.line[rest..];
        let words = match words::parse_json_list(line) {
            Some(list) => list.into_iter().map(|text| Word { text, at: 0..line.len() }).collect(),
            None => words::split(line, self.escape)
                .map_err(|(at, message)| self.error_in(instruction, &(at.start + rest..at.end + rest), message))?,
        };
        let place = |word: Word| Word { at: word.at.start + rest..word.at.end + rest, ..word };
        let expanded = |word: Word| {
            let path = self.expand_word(&draft.scope, instruction, &word, UnknownVariable::Reject)?;
            Ok((word, path))
        };
        words.into_iter().map(place).map(expanded).collect()
    }

    fn check_source(&self, instruction: &Instruction, word: &Word, path: &str, is_add: bool) -> Result<()> {
        let is_remote = ["http://", "https://", "git@", "ftp://"].iter().any(|start| path.starts_with(start));
        let message = if is_add && is_remote {
            "ADD of a URL is not supported; use RUN curl, and check what it brings".to_owned()
        } else if path.is_empty() {
            "this source is empty".to_owned()
        } else if path.split('/').any(|part| part == "..") {
            format!("'{path}' leads out of the build context")
        } else {
            return Ok(());
        };
        Err(self.error_in(instruction, &word.at, message))
    }

    fn source_stage(
        &mut self,
        draft: &Draft,
        instruction: &Instruction,
        at: &std::ops::Range<usize>,
        name: &str,
    ) -> Result<CopyFrom> {
        if draft.stage.name.as_deref() == Some(&name.to_lowercase()) {
            return Err(self.error_in(instruction, at, "a stage cannot copy from itself"));
        }
        if let Ok(number) = name.parse() {
            let message = format!("there is no stage {number} before this one");
            let found = self.find_stage_by_number(number);
            return found.map(CopyFrom::Stage).ok_or_else(|| self.error_in(instruction, at, message));
        }
        let line = self.line(instruction);
        if let Some(found) = self.find_stage(name) {
            return Ok(CopyFrom::Stage(found));
        }
        self.check_count(instruction)?;
        self.charge(instruction, name.len())?;
        Ok(CopyFrom::Stage(self.add_image_stage(name, line)))
    }

    fn owner(&self, instruction: &Instruction, at: &std::ops::Range<usize>, text: String) -> Result<String> {
        let good =
            |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
        if text.split(':').count() <= 2 && text.split(':').all(good) {
            return Ok(text);
        }
        Err(self.error_in(instruction, at, format!("'{text}' is no owner such as user:group")))
    }
}
