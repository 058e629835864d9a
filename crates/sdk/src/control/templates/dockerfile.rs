//! A Dockerfile as the steps of a template. What E2B has no step for is refused with its line, not left out; labels, ports
//! and volumes mean nothing to a sandbox and are passed over.
//!
//! References to variables stay in the text: the server expands them.

use super::definition::{CopyFiles, Template};

/// A Dockerfile that cannot be a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the Dockerfile: {message}")]
#[non_exhaustive]
pub struct DockerfileError {
    /// From 1 on.
    pub line: usize,
    pub message: String,
}

/// How long the official SDKs wait when a Dockerfile says what to start and not when it is up.
const READY: &str = "sleep 20";

impl Template {
    /// From the text of a Dockerfile with one stage. `CMD` and `ENTRYPOINT` become the start command. Set the directory its
    /// `COPY` is relative to with [`Template::context`].
    ///
    /// # Errors
    /// What cannot be built, with its line: several stages, `ADD` of a URL, files written in the Dockerfile itself.
    pub fn from_dockerfile(text: &str) -> Result<Self, DockerfileError> {
        let lines = instructions(text)?;
        let first = lines.iter().position(|line| line.name == "FROM");
        let Some(first) = first else {
            return Err(DockerfileError { line: 1, message: "there is no FROM".into() });
        };
        let template = Self::from_image(lines[first].image()?).user("root").workdir("/");
        let mut reading = Reading { template, user: false, workdir: false, cmd: None, entrypoint: None };
        for (at, line) in lines.iter().enumerate() {
            match line.name.as_str() {
                "FROM" if at == first => {}
                "FROM" => return Err(line.wrong("several stages are not supported")),
                name if at < first && name != "ARG" => return Err(line.wrong("there must be a FROM before it")),
                _ => reading = reading.take(line)?,
            }
        }
        Ok(reading.finish())
    }
}

/// One instruction, its continued lines joined.
#[derive(Debug)]
struct Line {
    number: usize,
    name: String,
    flags: Vec<(String, String)>,
    rest: String,
    escape: char,
    /// Bodies of here-documents, each with its delimiter.
    documents: Vec<(String, String)>,
}

/// A start command in one of its two forms.
enum Words {
    Exec(Vec<String>),
    Shell(String),
}

struct Reading {
    template: Template,
    user: bool,
    workdir: bool,
    cmd: Option<Words>,
    entrypoint: Option<Words>,
}

impl Reading {
    fn take(mut self, line: &Line) -> Result<Self, DockerfileError> {
        let template = self.template;
        self.template = match line.name.as_str() {
            "RUN" => template.run(line.command()?),
            "COPY" | "ADD" => line.copies()?.into_iter().fold(template, Template::copy_files),
            "ENV" => template.envs(line.variables()?),
            "ARG" => template.envs(line.arguments()?),
            "WORKDIR" => {
                self.workdir = true;
                template.workdir(line.single()?)
            }
            "USER" => {
                self.user = true;
                template.user(line.single()?)
            }
            "CMD" => {
                self.cmd = Some(line.start()?);
                template
            }
            "ENTRYPOINT" => {
                self.entrypoint = Some(line.start()?);
                template
            }
            "EXPOSE" | "LABEL" | "MAINTAINER" | "VOLUME" | "HEALTHCHECK" | "STOPSIGNAL" => template,
            name => return Err(line.wrong(&format!("{name} is not supported"))),
        };
        Ok(self)
    }

    /// An exec-form entry point takes the command as its arguments; a shell-form one ignores it.
    fn finish(self) -> Template {
        let command = match (self.entrypoint, self.cmd) {
            (Some(Words::Shell(line)), _) | (None, Some(Words::Shell(line))) => line,
            (Some(Words::Exec(mut words)), cmd) => {
                match cmd {
                    Some(Words::Exec(more)) => words.extend(more),
                    Some(Words::Shell(line)) => words.extend(["/bin/sh".into(), "-c".into(), line]),
                    None => {}
                }
                quoted(&words)
            }
            (None, Some(Words::Exec(words))) => quoted(&words),
            (None, None) => String::new(),
        };
        let mut template = self.template;
        if !command.trim().is_empty() {
            template = template.start(command, READY);
        }
        if !self.user {
            template = template.user("user");
        }
        if !self.workdir {
            template = template.workdir("/home/user");
        }
        template
    }
}

/// Words as one line of a shell.
fn quoted(words: &[String]) -> String {
    let plain = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || "@%_-+=:,./".contains(c));
    let quote =
        |word: &String| if plain(word) { word.clone() } else { format!("'{}'", word.replace('\'', r#"'"'"'"#)) };
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

impl Line {
    fn wrong(&self, message: &str) -> DockerfileError {
        DockerfileError { line: self.number, message: message.to_owned() }
    }

    fn flag(&self, name: &str) -> Option<&str> {
        self.flags.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn words(&self) -> Result<Vec<String>, DockerfileError> {
        let words = split(&self.rest, self.escape).map_err(|message| self.wrong(message))?;
        words.iter().map(|word| self.unquote(word)).collect()
    }

    fn unquote(&self, word: &str) -> Result<String, DockerfileError> {
        unquote(word, self.escape).map_err(|message| self.wrong(message))
    }

    /// The JSON form, if that is what it is.
    fn exec(&self) -> Option<Vec<String>> {
        self.rest.starts_with('[').then(|| serde_json::from_str(&self.rest).ok()).flatten()
    }

    fn start(&self) -> Result<Words, DockerfileError> {
        Ok(self.exec().map_or_else(|| Words::Shell(self.rest.clone()), Words::Exec))
    }

    fn image(&self) -> Result<String, DockerfileError> {
        match self.words()?.as_slice() {
            [image] => Ok(image.clone()),
            [image, r#as, _] if r#as.eq_ignore_ascii_case("as") => Ok(image.clone()),
            _ => Err(self.wrong("FROM takes an image, and perhaps AS and a name")),
        }
    }

    fn single(&self) -> Result<String, DockerfileError> {
        // A path may have spaces: the whole rest counts.
        if self.rest.is_empty() { Err(self.wrong("an argument is missing")) } else { self.unquote(&self.rest) }
    }

    fn command(&self) -> Result<String, DockerfileError> {
        if self.rest.is_empty() {
            return Err(self.wrong("RUN takes a command"));
        }
        if let Some(words) = self.exec() {
            return Ok(quoted(&words));
        }
        match self.documents.as_slice() {
            [] => Ok(self.rest.clone()),
            // The document alone is the script.
            [(_, body)]
                if split(&self.rest, self.escape).is_ok_and(|words| words.len() == 1) && !body.starts_with("#!") =>
            {
                Ok(body.clone())
            }
            documents => {
                let bodies = documents.iter().map(|(delimiter, body)| format!("\n{body}{delimiter}"));
                Ok(format!("{}{}", self.rest, bodies.collect::<String>()))
            }
        }
    }

    fn copies(&self) -> Result<Vec<CopyFiles>, DockerfileError> {
        if self.flag("from").is_some() {
            return Err(self.wrong("--from is not supported: there is one stage"));
        }
        if !self.documents.is_empty() {
            return Err(self.wrong("files written in the Dockerfile are not supported"));
        }
        let words = match self.exec() {
            Some(words) => words,
            None => self.words()?,
        };
        let Some((destination, sources)) = words.split_last().filter(|(_, sources)| !sources.is_empty()) else {
            return Err(self.wrong("a source and a destination are needed"));
        };
        let mode = self.flag("chmod").map(|text| u32::from_str_radix(text, 8)).transpose();
        let mode = mode.map_err(|_| self.wrong("--chmod must be octal, as in 0755"))?;
        let owner = self.flag("chown").map(|owner| self.unquote(owner)).transpose()?;
        let copy = |source: &String| {
            if self.name == "ADD" && source.contains("://") {
                return Err(self.wrong("ADD of a URL is not supported"));
            }
            let mut files = CopyFiles::new(source, destination);
            files.owner = owner.clone();
            files.mode = mode;
            Ok(files)
        };
        sources.iter().map(copy).collect()
    }

    /// `NAME=value …`, or the old `NAME the rest`.
    fn variables(&self) -> Result<Vec<(String, String)>, DockerfileError> {
        let words = split(&self.rest, self.escape).map_err(|message| self.wrong(message))?;
        let Some(first) = words.first() else { return Err(self.wrong("ENV takes a name and a value")) };
        if !first.contains('=') {
            let value = self.rest[first.len()..].trim();
            if value.is_empty() {
                return Err(self.wrong("a value is missing"));
            }
            return Ok(vec![(self.unquote(first)?, self.unquote(value)?)]);
        }
        words.iter().map(|word| self.pair(word)).collect()
    }

    /// Arguments are variables with their defaults, since nobody gives others.
    fn arguments(&self) -> Result<Vec<(String, String)>, DockerfileError> {
        let words = split(&self.rest, self.escape).map_err(|message| self.wrong(message))?;
        if words.is_empty() {
            return Err(self.wrong("ARG takes a name"));
        }
        let pair =
            |word: &String| if word.contains('=') { self.pair(word) } else { Ok((self.unquote(word)?, String::new())) };
        words.iter().map(pair).collect()
    }

    fn pair(&self, word: &str) -> Result<(String, String), DockerfileError> {
        match word.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((self.unquote(name)?, self.unquote(value)?)),
            _ => Err(self.wrong("NAME=value is due")),
        }
    }
}

/// Joins continued lines, drops comments, and takes here-documents apart.
fn instructions(text: &str) -> Result<Vec<Line>, DockerfileError> {
    let mut escape = '\\';
    let mut found = Vec::new();
    let mut lines = text.lines().enumerate().peekable();
    while let Some((at, raw)) = lines.next() {
        let trimmed = raw.trim();
        if let Some(comment) = trimmed.strip_prefix('#') {
            // Directives stand before everything else.
            if let Some(("escape", value)) =
                comment.trim().split_once('=').map(|(name, value)| (name.trim(), value.trim()))
                && found.is_empty()
                && value == "`"
            {
                escape = '`';
            }
            continue;
        }
        if trimmed.is_empty() {
            continue;
        }
        let mut joined = raw.trim_start().to_owned();
        while let Some(open) = joined.trim_end().strip_suffix(escape) {
            joined = open.to_owned();
            // Comments and empty lines inside a continued instruction are not part of it.
            let more = lines.by_ref().map(|(_, line)| line);
            match more.into_iter().find(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#')) {
                Some(line) => joined.push_str(line),
                None => break,
            }
        }
        let number = at + 1;
        let joined = joined.trim();
        let (name, rest) = joined.split_once(char::is_whitespace).unwrap_or((joined, ""));
        let mut rest = rest.trim_start();
        let mut flags = Vec::new();
        while let Some(flag) = rest.strip_prefix("--") {
            let (flag, after) = flag.split_once(char::is_whitespace).unwrap_or((flag, ""));
            let (name, value) = flag.split_once('=').unwrap_or((flag, "true"));
            flags.push((name.to_owned(), value.to_owned()));
            rest = after.trim_start();
        }
        let mut line = Line {
            number,
            name: name.to_ascii_uppercase(),
            flags,
            rest: rest.to_owned(),
            escape,
            documents: Vec::new(),
        };
        if matches!(line.name.as_str(), "RUN" | "COPY" | "ADD") {
            for (delimiter, chomp) in delimiters(&line.rest) {
                let mut body = String::new();
                loop {
                    let Some((_, content)) = lines.next() else {
                        return Err(line.wrong(&format!("{delimiter} of a here-document is missing")));
                    };
                    let content = if chomp { content.trim_start_matches('\t') } else { content };
                    if content == delimiter {
                        break;
                    }
                    body.push_str(content);
                    body.push('\n');
                }
                line.documents.push((delimiter, body));
            }
        }
        found.push(line);
    }
    Ok(found)
}

/// The here-documents a line opens: their delimiters, and whether leading tabs go.
fn delimiters(line: &str) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    for word in line.split_whitespace() {
        let Some((fd, after)) = word.split_once("<<").filter(|(fd, _)| fd.chars().all(|c| c.is_ascii_digit())) else {
            continue;
        };
        let (chomp, name) = after.strip_prefix('-').map_or((false, after), |name| (true, name));
        let name = name.trim_matches(['"', '\'']);
        let named = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
        if named && fd.len() <= 1 {
            found.push((name.to_owned(), chomp));
        }
    }
    found
}

/// Words between whitespace, quotes and escapes left in place.
fn split(text: &str, escape: char) -> Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    let mut rest = text.chars();
    while let Some(character) = rest.next() {
        match (character, quote) {
            (c, None) if c.is_whitespace() => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                continue;
            }
            (c, _) if c == escape && quote != Some('\'') => {
                word.push(c);
                word.extend(rest.next());
                continue;
            }
            ('"' | '\'', None) => quote = Some(character),
            (c, Some(open)) if c == open => quote = None,
            _ => {}
        }
        word.push(character);
    }
    if quote.is_some() {
        return Err("a quote is not closed");
    }
    if !word.is_empty() {
        words.push(word);
    }
    Ok(words)
}

/// Without quotes and escapes. A dollar that was escaped stays so, since the server expands what is left.
fn unquote(word: &str, escape: char) -> Result<String, &'static str> {
    let mut plain = String::new();
    let mut quote = None;
    let mut rest = word.chars().peekable();
    while let Some(character) = rest.next() {
        match (character, quote) {
            ('"' | '\'', None) => quote = Some(character),
            (c, Some(open)) if c == open => quote = None,
            (c, Some('"')) if c == escape && !rest.peek().is_some_and(|next| ['"', '$', escape].contains(next)) => {
                plain.push(c);
            }
            (c, _) if c == escape && quote != Some('\'') => match rest.next() {
                Some('$') => plain.push_str("\\$"),
                Some(next) => plain.push(next),
                None => {}
            },
            _ => plain.push(character),
        }
    }
    if quote.is_some() { Err("a quote is not closed") } else { Ok(plain) }
}

#[cfg(test)]
mod tests {
    use super::super::definition::{Base, Instruction};
    use super::*;

    /// The steps, one a line.
    fn read(text: &str) -> String {
        let template = Template::from_dockerfile(text).expect("a Dockerfile");
        let Base::Image(image) = &template.base else { panic!("an image") };
        let mut shown = vec![format!("FROM {image}")];
        shown.extend(template.steps.iter().map(|step| match &step.instruction {
            Instruction::Copy(f) => format!("COPY {} {} {:?} {:?}", f.source, f.destination, f.owner, f.mode),
            Instruction::Run { command, .. } => format!("RUN {command}"),
            Instruction::Env(pairs) => format!("ENV {pairs:?}"),
            Instruction::Workdir(path) => format!("WORKDIR {path}"),
            Instruction::User(name) => format!("USER {name}"),
        }));
        shown.extend(template.start.iter().map(|command| format!("START {command}")));
        shown.join("\n")
    }

    #[test]
    fn a_dockerfile_becomes_steps() {
        let text = r#"# a comment
ARG VERSION=1
FROM python:3.12 AS base
RUN apt-get update && \
    # why not
    apt-get install -y git
COPY --chown=user:user --chmod=0755 a.py "b c.py" /app/
ENV A=1 B="two words" C=$A
ENV OLD the rest
RUN ["echo", "it's"]
EXPOSE 80
WORKDIR /app
ENTRYPOINT ["python"]
CMD ["-m", "http.server"]
"#;
        let expected = r#"FROM python:3.12
USER root
WORKDIR /
ENV [("VERSION", "1")]
RUN apt-get update &&     apt-get install -y git
COPY a.py /app/ Some("user:user") Some(493)
COPY b c.py /app/ Some("user:user") Some(493)
ENV [("A", "1"), ("B", "two words"), ("C", "$A")]
ENV [("OLD", "the rest")]
RUN echo 'it'"'"'s'
WORKDIR /app
USER user
START python -m http.server"#;
        assert_eq!(read(text), expected);
    }

    #[test]
    fn here_documents_are_scripts() {
        let text = "FROM a\nRUN <<EOF\necho one\necho two\nEOF\nRUN cat <<-'X' > /f\n\tbody\nX\n";
        let expected = "RUN echo one\necho two\n\nRUN cat <<-'X' > /f\nbody\nX\n";
        assert!(read(text).contains(expected), "{}", read(text));
    }

    #[test]
    fn what_cannot_be_built_is_named_with_its_line() {
        for (text, line, message) in [
            ("RUN x", 1, "no FROM"),
            ("RUN x\nFROM a", 1, "FROM before it"),
            ("FROM a\nFROM b", 2, "several stages"),
            ("FROM a\nCOPY --from=b x y", 2, "--from"),
            ("FROM a\nADD https://x.example/y /z", 2, "URL"),
            ("FROM a\nCOPY <<EOF /f\nx\nEOF", 2, "written in the Dockerfile"),
            ("FROM a\nRUN <<EOF\nx", 2, "here-document"),
            ("FROM a\n\nONBUILD RUN x", 3, "ONBUILD"),
            ("FROM a\nENV A=\"b", 2, "quote"),
            ("FROM a\nCOPY x", 2, "destination"),
        ] {
            let error = Template::from_dockerfile(text).expect_err(text);
            assert!(error.line == line && error.message.contains(message), "{text:?}: {error}");
        }
    }
}
