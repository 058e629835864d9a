//! Parses the flags, in ripgrep's spelling.

use std::ffi::OsString;
use std::path::PathBuf;

/// What is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// `--files`: names of the files that would be searched.
    Files,
    /// `-c`: names with their numbers of matching lines.
    Count,
    /// `-l`: names of matching files.
    Names,
    /// `--json`: matches as JSON lines.
    Json,
}

#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) mode: Mode,
    pub(crate) pattern: String,
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) globs: Vec<String>,
    /// `name:glob`, added to the known types.
    pub(crate) own_types: Vec<String>,
    pub(crate) types: Vec<String>,
    pub(crate) before: usize,
    pub(crate) after: usize,
    pub(crate) ignore_case: bool,
    pub(crate) literal: bool,
    pub(crate) multiline: bool,
    pub(crate) hidden: bool,
    pub(crate) no_ignore: bool,
    /// Applies ignore rules of directories above the searched ones.
    pub(crate) parents: bool,
    /// Applies ignore rules of the user and of `.git/info/exclude`.
    pub(crate) global: bool,
    pub(crate) exclude: bool,
    pub(crate) require_git: bool,
    /// `-a`: every file is text.
    pub(crate) text: bool,
    /// `--binary`: files with zero bytes are searched too.
    pub(crate) binary: bool,
    pub(crate) stats: bool,
}

impl Arguments {
    pub(crate) fn parse(given: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let mut parsed = Self {
            mode: Mode::Names,
            pattern: String::new(),
            paths: Vec::new(),
            globs: Vec::new(),
            own_types: Vec::new(),
            types: Vec::new(),
            before: 0,
            after: 0,
            ignore_case: false,
            literal: false,
            multiline: false,
            hidden: false,
            no_ignore: false,
            parents: true,
            global: true,
            exclude: true,
            require_git: true,
            text: false,
            binary: false,
            stats: false,
        };
        let (mut mode, mut pattern) = (None, None);
        let mut given = given;
        while let Some(argument) = given.next() {
            let flag = argument.into_string().map_err(|flag| format!("{} is not a flag", flag.to_string_lossy()))?;
            let mut value = || {
                let value = given.next().ok_or_else(|| format!("{flag} needs a value"))?;
                value.into_string().map_err(|_| format!("the value of {flag} is not UTF-8"))
            };
            match flag.as_str() {
                "-e" => pattern = Some(value()?),
                "-g" => parsed.globs.push(value()?),
                "-t" => parsed.types.push(value()?),
                "--type-add" => parsed.own_types.push(value()?),
                "-A" => parsed.after = lines(&value()?)?,
                "-B" => parsed.before = lines(&value()?)?,
                "-c" => mode = Some(Mode::Count),
                "-l" => mode = Some(Mode::Names),
                "--json" => mode = Some(Mode::Json),
                "--files" => mode = Some(Mode::Files),
                "-i" => parsed.ignore_case = true,
                "-F" => parsed.literal = true,
                "-U" => parsed.multiline = true,
                "-a" => parsed.text = true,
                "--binary" => parsed.binary = true,
                "--stats" => parsed.stats = true,
                "--hidden" => parsed.hidden = true,
                "--no-ignore" => parsed.no_ignore = true,
                "--no-ignore-parent" => parsed.parents = false,
                "--no-ignore-global" => parsed.global = false,
                "--no-ignore-exclude" => parsed.exclude = false,
                "--no-require-git" => parsed.require_git = false,
                // The only supported behaviour.
                "--no-config" | "--color=never" | "--no-messages" | "-0" | "-H" | "--multiline-dotall" => {}
                "--" => {
                    parsed.paths.extend(given.by_ref().map(PathBuf::from));
                    break;
                }
                other => return Err(format!("{other} is not one of the flags that are needed here")),
            }
        }
        parsed.mode = mode.ok_or("one of -c, -l, --json and --files says what to print")?;
        match (pattern, parsed.mode) {
            (Some(pattern), _) => parsed.pattern = pattern,
            (None, Mode::Files) => {}
            (None, _) => return Err("-e says what to search for".into()),
        }
        if parsed.paths.is_empty() {
            return Err("after -- come the files and directories to search".into());
        }
        Ok(parsed)
    }
}

fn lines(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number of lines"))
}
