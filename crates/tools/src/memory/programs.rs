//! The commands of the small shell.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::shell::{BrokenPipe, Env, Exit, InputStream, Io, Run, Step};
use crate::port::PortError;

type Code = Result<Result<i32, Exit>, BrokenPipe>;

pub(super) async fn run(run: &Arc<Run>, words: &[String], env: &mut Env, io: &Io) -> Code {
    let done = |code: i32| Ok(Ok(code));
    let words = assignments(words, env);
    let Some((name, arguments)) = words.split_first() else { return done(0) };
    if let Some(steps) = run.machine.find_script(&words.join(" ")) {
        return run_script(run, &steps, env, io).await.map(Ok);
    }
    let text = |index: usize| arguments.get(index).map_or("", String::as_str);
    match name.as_str() {
        "true" | ":" => done(0),
        "false" => done(1),
        "exit" => Ok(Err(Exit(text(0).parse().unwrap_or(env.status)))),
        "echo" => {
            let (end, words) = if text(0) == "-n" { ("", &arguments[1..]) } else { ("\n", arguments) };
            run.say(&io.out, &format!("{}{end}", words.join(" "))).await?;
            done(0)
        }
        "printf" => {
            run.write(&io.out, format_printf(arguments)).await?;
            done(0)
        }
        "pwd" => {
            run.say(&io.out, &format!("{}\n", env.cwd)).await?;
            done(0)
        }
        "cd" => {
            let target = if arguments.is_empty() { super::machine::HOME } else { text(arguments.len() - 1) };
            let path = env.path(target);
            if run.machine.files().is_directory(&path) {
                env.cwd = run.machine.files().resolve(&path).unwrap_or(path);
                done(0)
            } else {
                run.say(&io.err, &format!("bash: line 1: cd: {target}: No such file or directory\n")).await?;
                done(1)
            }
        }
        "export" => {
            for argument in arguments {
                let (name, value) = match argument.split_once('=') {
                    Some((name, value)) => (name, value.to_owned()),
                    None => (argument.as_str(), env.value(argument)),
                };
                env.variables.insert(name.to_owned(), (value, true));
            }
            done(0)
        }
        "unset" => {
            arguments.iter().for_each(|name| {
                env.variables.remove(name);
            });
            done(0)
        }
        "env" => {
            let all = env.variables.iter().filter(|(_, (_, exported))| *exported);
            let all: String = all.map(|(name, (value, _))| format!("{name}={value}\n")).collect();
            run.say(&io.out, &all).await?;
            done(0)
        }
        "sleep" => {
            tokio::time::sleep(Duration::from_secs_f64(text(0).parse().unwrap_or(0.0))).await;
            done(0)
        }
        "cat" => cat(run, arguments, env, io).await,
        "head" => head(run, arguments, env, io).await,
        "yes" => {
            let line = if arguments.is_empty() { "y".to_owned() } else { arguments.join(" ") } + "\n";
            let piece = Bytes::from(line.repeat(65536 / line.len().max(1)));
            loop {
                run.write(&io.out, piece.clone()).await?;
                // Yields, so that other tasks and a kill get their chance.
                tokio::task::yield_now().await;
            }
        }
        "seq" => {
            let (first, last): (i64, i64) = match arguments {
                [last] => (1, last.parse().unwrap_or(0)),
                [first, last, ..] => (first.parse().unwrap_or(1), last.parse().unwrap_or(0)),
                [] => (1, 0),
            };
            let all: String = (first..=last).map(|number| format!("{number}\n")).collect();
            run.say(&io.out, &all).await?;
            done(0)
        }
        "read" => {
            let line = match &io.input {
                Some(source) => next(source).await,
                None => None,
            };
            let Some(line) = line else { return done(1) };
            let line = String::from_utf8_lossy(&line).lines().next().unwrap_or_default().to_owned();
            env.variables.insert(text(arguments.len().saturating_sub(1)).to_owned(), (line, false));
            done(0)
        }
        "mkdir" => {
            for path in arguments.iter().filter(|argument| !argument.starts_with('-')) {
                let path = env.path(path);
                run.machine.files().make_directory(&path);
            }
            done(0)
        }
        "rm" | "rmdir" => {
            for path in arguments.iter().filter(|argument| !argument.starts_with('-')) {
                let path = env.path(path);
                run.machine.files().remove(&path);
            }
            done(0)
        }
        "touch" => {
            for path in arguments {
                let path = env.path(path);
                let mut files = run.machine.files();
                let old = files.get(&path).unwrap_or_default();
                let _ = files.write(&path, old);
            }
            done(0)
        }
        "test" | "[" => {
            let holds = match arguments.iter().map(String::as_str).filter(|word| *word != "]").collect::<Vec<_>>()[..] {
                ["-f", path] => run.machine.files().get(&env.path(path)).is_some(),
                ["-d", path] => run.machine.files().is_directory(&env.path(path)),
                ["-n", text] => !text.is_empty(),
                ["-z", text] => text.is_empty(),
                [left, "=", right] => left == right,
                _ => false,
            };
            done(i32::from(!holds))
        }
        "kill" => match arguments {
            [signal, pid] if *pid == env.pid.to_string() => {
                Ok(Err(Exit(128 + signal.trim_start_matches('-').parse().unwrap_or(15))))
            }
            _ => done(0),
        },
        // Sessions do not matter here: the call groups processes.
        "setsid" | "nohup" | "exec" | "command" => Box::pin(self::run(run, arguments, env, io)).await,
        _ => {
            let message = format!("bash: line 1: {name}: command not found\n");
            run.say(&io.err, &message).await?;
            run.machine.record_unknown_command(&words.join(" "));
            done(127)
        }
    }
}

/// Applies `NAME=value` before a command.
fn assignments<'a>(words: &'a [String], env: &mut Env) -> &'a [String] {
    let is_name =
        |name: &str| !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    let mut rest = words;
    while let Some((name, value)) = rest.first().and_then(|word| word.split_once('=')).filter(|(name, _)| is_name(name))
    {
        let exported = env.variables.get(name).is_some_and(|(_, exported)| *exported);
        env.variables.insert(name.to_owned(), (value.to_owned(), exported));
        rest = &rest[1..];
    }
    rest
}

async fn run_script(run: &Arc<Run>, steps: &[Step], env: &Env, io: &Io) -> Result<i32, BrokenPipe> {
    for step in steps {
        match step {
            Step::Out(text) => run.say(&io.out, text).await?,
            Step::Err(text) => run.say(&io.err, text).await?,
            Step::Sleep(time) => tokio::time::sleep(*time).await,
            Step::File(path, text) => {
                let path = env.path(path);
                let _ = run.machine.files().write(&path, Bytes::from(text.clone()));
            }
            Step::Child(name, time) => {
                let pid = run.machine.register(&run.call, name);
                run.children.lock().push(pid);
                let (run, time, out) = (Arc::clone(run), *time, io.out.clone());
                let machine = Arc::clone(&run.machine);
                machine.spawn(async move {
                    let _ = run.killed.run_until_cancelled(tokio::time::sleep(time)).await;
                    drop(out);
                    run.machine.unregister(pid);
                });
            }
            Step::Exit(code) => return Ok(*code),
            Step::Never => std::future::pending().await,
        }
    }
    Ok(0)
}

async fn next(source: &InputStream) -> Option<Bytes> {
    source.lock().await.as_mut()?.recv().await
}

async fn cat(run: &Arc<Run>, arguments: &[String], env: &Env, io: &Io) -> Code {
    let mut code = 0;
    if arguments.is_empty()
        && let Some(source) = &io.input
    {
        while let Some(bytes) = next(source).await {
            run.write(&io.out, bytes).await?;
        }
    }
    for name in arguments {
        let path = env.path(name);
        if path == "/dev/tty" {
            run.say(&io.err, "cat: /dev/tty: No such device or address\n").await?;
            code = 1;
            continue;
        }
        let read = run.machine.files().read(&path);
        match read {
            Ok(bytes) => run.write(&io.out, bytes).await?,
            Err(error) => {
                let reason = match error {
                    PortError::IsDirectory => "Is a directory".to_owned(),
                    PortError::NotFound => "No such file or directory".to_owned(),
                    other => other.to_string(),
                };
                run.say(&io.err, &format!("cat: {name}: {reason}\n")).await?;
                code = 1;
            }
        }
    }
    Ok(Ok(code))
}

async fn head(run: &Arc<Run>, arguments: &[String], env: &Env, io: &Io) -> Code {
    let (by_bytes, count, file) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["-c", count] => (true, size(count), None),
        ["-n", count] => (false, size(count), None),
        ["-c", count, file] => (true, size(count), Some(file)),
        ["-n", count, file] => (false, size(count), Some(file)),
        [file] if !file.starts_with('-') => (false, 10, Some(file)),
        [count] => (false, size(count.trim_start_matches('-')), None),
        _ => (false, 10, None),
    };
    let mut left = count;
    if let Some(file) = file {
        let bytes = run.machine.files().read(&env.path(file)).unwrap_or_default();
        let part = first(&bytes, by_bytes, &mut left);
        run.write(&io.out, part).await?;
        return Ok(Ok(0));
    }
    let Some(source) = &io.input else { return Ok(Ok(0)) };
    while left > 0
        && let Some(bytes) = next(source).await
    {
        let part = first(&bytes, by_bytes, &mut left);
        run.write(&io.out, part).await?;
    }
    Ok(Ok(0))
}

fn first(bytes: &Bytes, by_bytes: bool, left: &mut usize) -> Bytes {
    let end = if by_bytes {
        bytes.len().min(*left)
    } else {
        memchr::memchr_iter(b'\n', bytes).nth(left.saturating_sub(1)).map_or(bytes.len(), |at| at + 1)
    };
    let part = bytes.slice(..end);
    *left -= if by_bytes { end } else { memchr::memchr_iter(b'\n', &part).count().min(*left) };
    part
}

/// `10`, `64K`, `1M`, `1G`.
fn size(text: &str) -> usize {
    let (number, scale) = match text.chars().last() {
        Some('K') => (&text[..text.len() - 1], 1 << 10),
        Some('M') => (&text[..text.len() - 1], 1 << 20),
        Some('G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    number.parse::<usize>().unwrap_or(0) * scale
}

/// `printf` with `%s`, `%d`, `%%` and backslashes; the format repeats while there are arguments.
fn format_printf(arguments: &[String]) -> Bytes {
    let Some((format, mut values)) = arguments.split_first() else { return Bytes::new() };
    let mut out: Vec<u8> = Vec::new();
    loop {
        let given = values.len();
        let mut letters = format.chars().peekable();
        while let Some(letter) = letters.next() {
            match letter {
                '%' => match letters.next() {
                    Some('s' | 'd' | 'b') => {
                        if let Some((value, rest)) = values.split_first() {
                            out.extend(value.as_bytes());
                            values = rest;
                        }
                    }
                    Some(other) => out.extend(other.to_string().bytes()),
                    None => out.push(b'%'),
                },
                '\\' => match letters.next() {
                    Some('n') => out.push(b'\n'),
                    Some('r') => out.push(b'\r'),
                    Some('t') => out.push(b'\t'),
                    Some('e') => out.push(0x1b),
                    Some('\\') => out.push(b'\\'),
                    Some('x') => {
                        let mut code = String::new();
                        while code.len() < 2
                            && let Some(digit) = letters.next_if(char::is_ascii_hexdigit)
                        {
                            code.push(digit);
                        }
                        out.extend(u8::from_str_radix(&code, 16));
                    }
                    Some(digit @ '0'..='7') => {
                        let mut code = digit.to_string();
                        while code.len() < 3
                            && let Some(digit) = letters.next_if(|letter| ('0'..='7').contains(letter))
                        {
                            code.push(digit);
                        }
                        out.extend(u8::from_str_radix(&code, 8));
                    }
                    Some(other) => out.extend(format!("\\{other}").bytes()),
                    None => out.push(b'\\'),
                },
                other => out.extend(other.to_string().bytes()),
            }
        }
        if values.is_empty() || values.len() == given {
            return out.into();
        }
    }
}
