//! Directives that ask the client for files and terminals.

use serde_json::{Value, json};

use crate::agent::{Agent, Stop};
use crate::turn::Turn;

impl Agent {
    /// Does what a directive asks of the client; whether it was one of these.
    pub(crate) fn use_client(
        &mut self,
        turn: &mut Turn,
        name: &str,
        argument: &str,
    ) -> Result<bool, Stop> {
        let text = match name {
            "fs" => self.file(turn, argument)?,
            "terminal" => self.terminal(turn, argument)?,
            "terminal-open" => {
                let created = self.create(turn, argument)?;
                told(&created, "terminalId")
            }
            "rpc" => {
                let (method, params) = argument.split_once(':').unwrap_or((argument, "{}"));
                let params = serde_json::from_str(params).unwrap_or(Value::Null);
                let answer = self.call(turn, method, params)?;
                if answer["error"].is_null() {
                    answer["result"].to_string()
                } else {
                    failure(&answer)
                }
            }
            _ => return Ok(false),
        };
        self.stdout.say(&turn.session, &text)?;
        Ok(true)
    }

    fn call(&mut self, turn: &mut Turn, method: &str, mut params: Value) -> Result<Value, Stop> {
        params["sessionId"] = turn.session.clone().into();
        self.request(turn, method, &params)
    }

    fn file(&mut self, turn: &mut Turn, argument: &str) -> Result<String, Stop> {
        let mut parts = argument.splitn(3, ':');
        let (what, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        if what == "write" {
            let content = parts.next().unwrap_or_default();
            let params = json!({"path": path, "content": content});
            let answer = self.call(turn, "fs/write_text_file", params)?;
            return Ok(if answer["error"].is_null() { "written".into() } else { failure(&answer) });
        }
        let answer = self.call(turn, "fs/read_text_file", json!({"path": path}))?;
        Ok(told(&answer, "content"))
    }

    fn create(&mut self, turn: &mut Turn, words: &str) -> Result<Value, Stop> {
        let mut words = shell_words::split(words).unwrap_or_default().into_iter();
        let command = words.next().unwrap_or_default();
        let params = json!({"command": command, "args": words.collect::<Vec<_>>()});
        self.call(turn, "terminal/create", params)
    }

    /// Runs a program to its end; says how it ended and what it wrote.
    fn terminal(&mut self, turn: &mut Turn, words: &str) -> Result<String, Stop> {
        let created = self.create(turn, words)?;
        let Some(id) = created["result"]["terminalId"].as_str() else {
            return Ok(failure(&created));
        };
        let params = json!({"terminalId": id});
        let ended = self.call(turn, "terminal/wait_for_exit", params.clone())?;
        let output = self.call(turn, "terminal/output", params.clone())?;
        self.call(turn, "terminal/release", params)?;
        let status = &ended["result"];
        let how = match status["exitCode"].as_u64() {
            Some(code) => code.to_string(),
            None => told(&ended, "signal"),
        };
        Ok(format!("{how}: {}", told(&output, "output")))
    }
}

fn told(answer: &Value, field: &str) -> String {
    answer["result"][field].as_str().map_or_else(|| failure(answer), str::to_owned)
}

fn failure(answer: &Value) -> String {
    let error = &answer["error"];
    format!("error {}: {}", error["code"], error["message"].as_str().unwrap_or_default())
}
