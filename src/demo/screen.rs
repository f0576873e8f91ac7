//! What the demonstration shows: headings, command lines with their real output, calls of tools.
//! Colours only on a terminal, and not where `NO_COLOR` is set.

use std::io::{self, IsTerminal as _, Write};

use serde_json::Value;

/// The columns that a line may have; longer ones go on below.
const COLUMNS: usize = 120;
/// Between the columns of a table.
const GAP: &str = "   ";
/// Before what goes on below.
const INDENT: &str = "      ";
/// Before the answer of a tool.
const ANSWER: &str = "<- ";
/// Before a call of a tool.
const CALL: &str = "-> ";
const BOLD: &str = "\u{1b}[1m";
const DIM: &str = "\u{1b}[2m";
const PLAIN: &str = "\u{1b}[0m";

/// Where it is shown.
pub(super) struct Screen {
    out: Box<dyn Write>,
    is_coloured: bool,
}

impl Screen {
    /// Standard output.
    pub(super) fn stdout() -> Self {
        let out = io::stdout();
        // https://no-color.org: present and not empty.
        let is_refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_coloured = out.is_terminal() && !is_refused;
        Self { out: Box::new(out), is_coloured }
    }

    pub(super) fn heading(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out)?;
        let line = format!("== {text}");
        self.styled(BOLD, &line)
    }

    /// What a user would type.
    pub(super) fn command(&mut self, line: &str) -> io::Result<()> {
        self.styled(DIM, &format!("$ {line}"))
    }

    /// Something said about what is shown.
    pub(super) fn say(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "{text}")?;
        self.out.flush()
    }

    /// What a program wrote.
    pub(super) fn output(&mut self, text: &str) -> io::Result<()> {
        for line in text.trim_matches('\n').lines().flat_map(wrapped) {
            writeln!(self.out, "{line}")?;
        }
        self.out.flush()
    }

    pub(super) fn call(&mut self, tool: &str, arguments: &Value) -> io::Result<()> {
        let lines = folded(arguments, COLUMNS - CALL.len() - tool.len() - 1);
        let first = format!("{CALL}{tool} {}", lines.first().map_or("", String::as_str));
        self.styled(DIM, &first)?;
        for line in lines.iter().skip(1) {
            self.styled(DIM, &format!("   {line}"))?;
        }
        Ok(())
    }

    pub(super) fn answer(&mut self, result: &Value) -> io::Result<()> {
        for (index, line) in folded(result, COLUMNS - ANSWER.len()).iter().enumerate() {
            let before = if index == 0 { ANSWER } else { "   " };
            writeln!(self.out, "{before}{line}")?;
        }
        self.out.flush()
    }

    /// What comes by itself.
    pub(super) fn notification(&mut self, method: &str, params: &Value) -> io::Result<()> {
        self.say(&format!("{ANSWER}{method} {params}"))
    }

    fn styled(&mut self, style: &str, line: &str) -> io::Result<()> {
        if self.is_coloured {
            writeln!(self.out, "{style}{line}{PLAIN}")?;
        } else {
            writeln!(self.out, "{line}")?;
        }
        self.out.flush()
    }
}

/// A line as lines that fit: broken between two columns of a table, else between two words.
fn wrapped(line: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = line.to_owned();
    while let Some((end, _)) = rest.char_indices().nth(COLUMNS) {
        let head = &rest[..end];
        // What stands before it is the indent, which is no place to break at.
        let first = head.len() - head.trim_start().len();
        let at = [GAP, " "].iter().find_map(|gap| head.rfind(gap).filter(|at| *at > first));
        let at = at.unwrap_or(end);
        let below = format!("{INDENT}{}", rest[at..].trim_start());
        lines.push(head[..at.min(head.len())].trim_end().to_owned());
        rest = below;
    }
    lines.push(rest);
    lines
}

/// JSON on as few lines as fit, broken behind commas that stand between values.
fn folded(value: &Value, columns: usize) -> Vec<String> {
    let text = value.to_string();
    let mut pieces = vec![String::new()];
    let (mut is_string, mut is_escaped) = (false, false);
    for character in text.chars() {
        if let Some(piece) = pieces.last_mut() {
            piece.push(character);
        }
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' if is_string => is_escaped = true,
            '"' => is_string = !is_string,
            ',' if !is_string => pieces.push(String::new()),
            _ => {}
        }
    }
    let mut lines = vec![String::new()];
    for piece in pieces {
        let width = |text: &str| text.chars().count();
        match lines.last_mut() {
            Some(line) if line.is_empty() || width(line) + width(&piece) <= columns => {
                line.push_str(&piece);
            }
            _ => lines.push(piece),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::json;

    use super::*;

    #[derive(Clone, Default)]
    struct Shown(Arc<Mutex<Vec<u8>>>);

    impl Write for Shown {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn shown(is_coloured: bool, show: impl FnOnce(&mut Screen) -> io::Result<()>) -> String {
        let out = Shown::default();
        show(&mut Screen { out: Box::new(out.clone()), is_coloured }).unwrap();
        String::from_utf8(out.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn json_is_folded_between_values_and_stays_whole() {
        let value = json!({"a": "one, two \", three", "b": [1, 2, {"c": "é, x"}], "d": true});
        assert_eq!(folded(&value, 1000), [value.to_string()]);
        let lines = folded(&value, 24);
        assert_eq!(
            lines,
            [r#"{"a":"one, two \", three","#, r#""b":[1,2,{"c":"é, x"}],"#, r#""d":true}"#]
        );
        assert_eq!(lines.concat(), value.to_string());
        // A value that is wider than the screen stays whole too: it is JSON.
        assert_eq!(folded(&json!(["x".repeat(50)]), 24).len(), 1);
    }

    #[test]
    fn long_lines_go_on_below_and_lose_nothing() {
        let (left, right) = ("é".repeat(100), "a few words at the right ".repeat(2));
        let row = format!("{left}   {right}");
        assert_eq!(wrapped(&row), [left.clone(), format!("{INDENT}{right}")]);
        let words = format!("{left} {right}");
        let lines = wrapped(&words);
        assert_eq!(lines.len(), 2);
        assert!(lines.join(" ").split_whitespace().eq(words.split_whitespace()), "{lines:?}");
        let long = wrapped(&"x".repeat(300));
        assert!(long.iter().all(|line| line.chars().count() <= COLUMNS), "{long:?}");
        assert_eq!(long.concat().matches('x').count(), 300);
        assert_eq!(shown(false, |screen| screen.output("\nshort\n\n")), "short\n");
    }

    #[test]
    fn colours_are_for_terminals() {
        let show = |screen: &mut Screen| {
            screen.heading("One")?;
            screen.command("spawnlet get sessions")?;
            screen.call("cancel_session", &json!({"sessionId": "x"}))?;
            screen.answer(&json!({"cancelled": true}))
        };
        assert_eq!(
            shown(false, show),
            "\n== One\n$ spawnlet get sessions\n-> cancel_session {\"sessionId\":\"x\"}\n\
             <- {\"cancelled\":true}\n"
        );
        assert!(shown(true, show).contains("\u{1b}[1m== One\u{1b}[0m"));
    }
}
