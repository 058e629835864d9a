//! Finds the port that a command line or a source file names.

/// The port in a command line: `--port 4000`, `-p=4000`, `PORT=4000`.
pub(super) fn in_command(line: &str) -> Option<u16> {
    let words: Vec<&str> = line.split([' ', '\t', '\'', '"']).filter(|word| !word.is_empty()).collect();
    words.iter().enumerate().find_map(|(index, word)| {
        if matches!(*word, "--port" | "-p" | "-P") {
            return number(words.get(index + 1)?);
        }
        let (name, value) = word.split_once('=')?;
        if matches!(name, "--port" | "-p" | "PORT") { number(value) } else { None }
    })
}

/// The port in source text: `listen(4000`, `PORT || 4000`, `PORT ?? "4000"`, `port = 4000`, `("",
/// 4000)`.
pub(super) fn in_source(text: &str) -> Option<u16> {
    const BEFORE: &[&str] = &[
        "PORT ||",
        "PORT ??",
        "PORT\") or",
        "PORT',",
        "PORT\",",
        "listen(",
        "HTTPServer((\"\",",
        "HTTPServer(('',",
        "HTTPServer((\"0.0.0.0\",",
        "HTTPServer(('0.0.0.0',",
        "TCPServer((\"\",",
        "TCPServer(('',",
        "port =",
        "PORT =",
        "port=",
        "port:",
    ];
    BEFORE.iter().find_map(|before| {
        text.match_indices(before).find_map(|(at, _)| {
            let rest = text[at + before.len()..].trim_start_matches([' ', '"', '\'']);
            let digits = rest.len() - rest.trim_start_matches(|letter: char| letter.is_ascii_digit()).len();
            number(&rest[..digits])
        })
    })
}

/// Parses a plausible port for a dev server.
fn number(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port| *port >= 80)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_found_in_commands_and_sources() {
        for line in
            ["vite --port 4000", "next dev -p 4000", "PORT=4000 node a.js", "x --port=4000", "c 'vite --port 4000'"]
        {
            assert_eq!(in_command(line), Some(4000), "{line}");
        }
        for line in ["vite", "node --port", "x --port abc", "tar -p 1"] {
            assert_eq!(in_command(line), None, "{line}");
        }
        for text in [
            "app.listen(4000, () => {})",
            "const p = process.env.PORT || 4000;",
            "Number(process.env.PORT ?? '4000')",
            "HTTPServer((\"\", 4000), Handler)",
            "os.environ.get('PORT', 4000)",
            "app.run(port=4000)",
        ] {
            assert_eq!(in_source(text), Some(4000), "{text}");
        }
        assert_eq!(in_source("server.listen(port)"), None);
    }
}
