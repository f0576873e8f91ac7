//! Command lines as users write them: split by shell quoting, never given to a shell.
//!
//! What a shell would do beyond splitting (variables, `~`, pipes, `&&`, redirections, comments) is
//! refused with a hint and the place, because carrying it out is not possible and passing it on
//! literally is never what was meant. Inside single quotes everything stands for itself; what is
//! needed literally can also be written in `argv`.

/// Why a command line is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} (character {position})")]
pub struct CommandError {
    /// What is wrong and what to write in its place.
    pub message: String,
    /// Where, counted in characters from 1.
    pub position: usize,
}

/// Splits a command line into program and arguments.
///
/// # Errors
///
/// The first thing in it that only a shell could carry out, a quote that is not closed, or a line
/// without a word.
pub fn split(command: &str) -> Result<Vec<String>, CommandError> {
    refuse_shell_syntax(command)?;
    // The scan above leaves nothing that shell-words refuses; its answer is still not trusted.
    let words = shell_words::split(command).map_err(|error| CommandError {
        message: format!("cannot be split by shell quoting: {error}"),
        position: command.chars().count(),
    })?;
    match words.first() {
        Some(program) if !program.is_empty() => Ok(words),
        Some(_) | None => Err(CommandError {
            message: "names no program; expected a program and its arguments".to_owned(),
            position: 1,
        }),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Quote {
    None,
    Single,
    Double,
}

fn refuse_shell_syntax(command: &str) -> Result<(), CommandError> {
    let mut quote = Quote::None;
    let mut quote_start = 0;
    let mut at_word_start = true;
    let mut chars = command.chars().enumerate().peekable();
    while let Some((index, char)) = chars.next() {
        let position = index + 1;
        let next = chars.peek().map(|(_, next)| *next);
        let refused = |message: String| Err(CommandError { message, position });
        match (quote, char) {
            (_, '\0') => return refused("holds a NUL character".to_owned()),
            (Quote::Single, '\'') | (Quote::Double, '"') => quote = Quote::None,
            (Quote::Single, _) => {}
            (Quote::None | Quote::Double, '\\') => {
                if chars.next().is_none() {
                    return refused("ends in a backslash; write `\\\\` for one".to_owned());
                }
            }
            (Quote::None, '\'' | '"') => {
                quote = if char == '"' { Quote::Double } else { Quote::Single };
                quote_start = position;
            }
            (Quote::None | Quote::Double, _) => {
                if let Some(message) = shell_hint(char, next, quote, at_word_start) {
                    return refused(message);
                }
            }
        }
        at_word_start = quote == Quote::None && char.is_whitespace();
    }
    if quote == Quote::None {
        return Ok(());
    }
    Err(CommandError {
        message: "opens a quote that is not closed".to_owned(),
        position: quote_start,
    })
}

/// What to do in place of the shell's meaning of this character, if it has one here.
fn shell_hint(char: char, next: Option<char>, quote: Quote, at_word_start: bool) -> Option<String> {
    let plain = quote == Quote::None;
    let hint = match char {
        '$' => match next {
            Some(next) if next.is_ascii_alphanumeric() || "_{(*@#?$!-".contains(next) => {
                "variables are not expanded: write the value, use `env`, or single quotes for a literal `$`"
            }
            _ => return None,
        },
        '`' => {
            "command substitution is not carried out: use a script, or single quotes for a literal one"
        }
        '~' if plain && at_word_start => {
            "is not expanded to a home directory: write the absolute path"
        }
        '&' if plain && next == Some('&') => {
            "`&&` needs a shell: use a script, or argv: [sh, -c, ...]"
        }
        '&' if plain => "the daemon starts the agent itself: leave `&` out, or quote it",
        '|' if plain => "a pipe needs a shell: use a script, or argv: [sh, -c, ...]",
        ';' if plain => "two commands need a shell: use a script, or argv: [sh, -c, ...]",
        '<' | '>' if plain => {
            "redirections need a shell: standard input and output are the protocol's"
        }
        '(' | ')' if plain => "a subshell needs a shell: quote a literal parenthesis",
        '\n' | '\r' if plain => "is a line break: write one line, or use argv",
        '#' if plain && at_word_start => "begins a comment in a shell: quote it",
        _ => return None,
    };
    Some(format!("`{}`: {hint}", char.escape_debug()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_split_by_shell_quoting() {
        let words = split(r#"npx -y 'my agent' "two words" a\ b --x=1 '$HOME' '~' "#).unwrap();
        assert_eq!(words, ["npx", "-y", "my agent", "two words", "a b", "--x=1", "$HOME", "~"]);
    }

    #[test]
    fn what_only_a_shell_can_do_is_refused_with_its_place() {
        let cases = [
            ("a && b", 3),
            ("a & b", 3),
            ("a | b", 3),
            ("a; b", 2),
            ("a $HOME", 3),
            ("a \"${HOME}\"", 4),
            ("~/bin/agent", 1),
            ("a ~", 3),
            ("a `b`", 3),
            ("a \"`b`\"", 4),
            ("a > b", 3),
            ("a 2>&1", 4),
            ("a < b", 3),
            ("a $(b)", 3),
            ("a\nb", 2),
            ("a # b", 3),
            ("(a)", 1),
            ("a\0b", 2),
        ];
        for (command, position) in cases {
            let error = split(command).unwrap_err();
            assert_eq!(error.position, position, "{command}: {error}");
        }
    }

    #[test]
    fn what_a_shell_takes_literally_is_accepted() {
        for command in
            ["a b~c", "a $", "a \"x & y | z\"", "a 'x && y'", "a \\$HOME", "a b#c", "a --x={}"]
        {
            assert!(split(command).is_ok(), "{command}");
        }
    }

    #[test]
    fn an_open_quote_a_last_backslash_and_an_empty_line_are_refused() {
        for (command, position) in
            [("a 'b", 3), ("a \"b", 3), ("a \\", 3), ("", 1), ("  ", 1), ("'' a", 1)]
        {
            assert_eq!(split(command).unwrap_err().position, position, "{command}");
        }
    }
}
